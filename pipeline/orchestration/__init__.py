"""The Dagster adapter: it translates between Dagster and `pipeline.delta`, and decides nothing.

`build_definitions` builds a project's definitions. `dataset_asset`, `dataset_checks` and `DeltaIOManager` also work in
a project with definitions of its own. `dataset_out` and `dataset_metadata` connect Dagster's other forms of assets
with a dataset.
"""

from pipeline.delta.read.changes import Changes
from pipeline.delta.write.consume import Touched
from pipeline.orchestration.checks.table_checks import dataset_checks
from pipeline.orchestration.dataset_asset import dataset_asset, dataset_metadata, dataset_out, dataset_spec
from pipeline.orchestration.definitions import build_definitions
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.resources import DeltaSparkResource

__all__ = [
    "Changes",
    "DeltaIOManager",
    "DeltaSparkResource",
    "Touched",
    "build_definitions",
    "dataset_asset",
    "dataset_checks",
    "dataset_metadata",
    "dataset_out",
    "dataset_spec",
]
