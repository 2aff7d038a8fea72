"""An asset of a thousand rows through the IO manager of dagster-deltalake-pandas, which overwrites the table."""

from __future__ import annotations

import pandas as pd
from dagster import Definitions, asset, in_process_executor
from dagster_deltalake import LocalConfig
from dagster_deltalake_pandas import DeltaLakePandasIOManager


@asset(key_prefix="peers")
def by_deltalake() -> pd.DataFrame:
    return pd.DataFrame({"id": range(1000), "name": [f"row {number}" for number in range(1000)]})


manager = DeltaLakePandasIOManager(root_uri=".pipeline", storage_options=LocalConfig())
defs = Definitions(assets=[by_deltalake], resources={"io_manager": manager}, executor=in_process_executor)
