"""The Dagster adapter: translates between Dagster and `pipeline.delta`, decides nothing.

`dataset_asset`, `dataset_checks` and `DeltaIOManager` work in any Dagster project; `dataset_out` and `dataset_metadata`
make Dagster's other forms of assets ones of a dataset.
"""

from pipeline.delta.read.changes import Changes
from pipeline.delta.write.consume import Touched
from pipeline.orchestration.checks import dataset_checks
from pipeline.orchestration.dataset_asset import dataset_asset, dataset_metadata, dataset_out, dataset_spec
from pipeline.orchestration.io_manager import DeltaIOManager
from pipeline.orchestration.resources import DeltaSparkResource

__all__ = [
    "Changes",
    "DeltaIOManager",
    "DeltaSparkResource",
    "Touched",
    "dataset_asset",
    "dataset_checks",
    "dataset_metadata",
    "dataset_out",
    "dataset_spec",
]
