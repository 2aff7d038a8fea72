"""An asset of a thousand rows through the IO manager of dagster-delta for pyarrow, which overwrites the table."""

import pyarrow as pa
from dagster import Definitions, asset, in_process_executor
from dagster_delta import DeltaLakePyarrowIOManager, LocalConfig, WriteMode


@asset(key_prefix="peers")
def by_delta() -> pa.Table:
    return pa.table({"id": range(1000), "name": [f"row {number}" for number in range(1000)]})


manager = DeltaLakePyarrowIOManager(root_uri=".pipeline", storage_options=LocalConfig(), mode=WriteMode.overwrite)
defs = Definitions(assets=[by_delta], resources={"io_manager": manager}, executor=in_process_executor)
