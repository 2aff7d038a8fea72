"""An asset that holds its slot until it is let go."""

from __future__ import annotations

import time
from pathlib import Path

from dagster import Definitions, InputContext, IOManager, OutputContext
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.orchestration import dataset_asset
from pipeline.orchestration.executor import one_process_executor

HELD = Dataset(name="held", schema=StructType([StructField("n", LongType())]))


class Nowhere(IOManager):
    """Keeps nothing."""

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Let the value go."""

    def load_input(self, context: InputContext) -> object:
        """Nothing is there."""
        return None


@dataset_asset(HELD)
def held() -> int:
    Path("started").touch()
    while not Path("go").exists():
        time.sleep(0.05)
    return 1


defs = Definitions(assets=[held], resources={"delta_io_manager": Nowhere()}, executor=one_process_executor)
