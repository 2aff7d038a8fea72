"""The assets of declared exports: each brings the files in a folder to the version that was just committed.

Here belong the assets and their metadata. What is written belongs to `pipeline.delta.export`. A run brings the whole
folder up to date, whatever its partition keys: the commits show which partitions changed. The keys are those of the
dataset's asset, so that Dagster shows both side by side.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    BetaWarning,
    MaterializeResult,
    MetadataValue,
    PartitionsDefinition,
    asset,
)

from pipeline.dataset import Dataset, Export, Registry
from pipeline.dataset.exports import export_asset_name
from pipeline.delta.export.refresh import Refreshed, refresh_export
from pipeline.delta.export.request import ExportRequest
from pipeline.delta.export.target import refuse_elsewhere
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.storage.file_system import local_folder
from pipeline.errors.listing import bounded
from pipeline.orchestration.automation.pools import pool_of_export
from pipeline.orchestration.automation.sensors import on_changed_source
from pipeline.orchestration.failures import with_dagster_failures
from pipeline.orchestration.io.reads import version_written_in_run
from pipeline.orchestration.metadata_keys import (
    EXPORT_DROPPED,
    EXPORT_REASON,
    EXPORT_ROWS,
    EXPORT_ROWS_WRITTEN,
    EXPORT_VERSION,
    EXPORT_WRITTEN,
    URI,
)
from pipeline.orchestration.resources import DeltaSparkResource
from pipeline.settings import Settings


def export_assets(
    registry: Registry, settings: Settings, written: Iterable[AssetsDefinition]
) -> list[AssetsDefinition]:  # fmt: skip
    """An asset for each declared export, partitioned like the asset of its dataset."""
    parts = {spec.key: spec.partitions_def for one in written for spec in one.specs}
    return [
        _asset(dataset, export, settings, parts.get(AssetKey(dataset.asset_key)))
        for dataset in registry
        for export in dataset.exports
    ]


def _asset(
    dataset: Dataset, export: Export, settings: Settings, partitions_def: PartitionsDefinition[Any] | None
) -> AssetsDefinition:
    name, target = export_asset_name(dataset.name, export), _target(export.uri, settings)
    source = AssetKey(dataset.asset_key)
    request = ExportRequest(target=target, format=export.format, columns=export.columns, where=export.where)

    def export_files(context: AssetExecutionContext, spark: DeltaSparkResource) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster resolves it
        refuse_elsewhere(dataset.name, target, settings.spark)
        step = context.op_execution_context.get_step_execution_context()
        pin = ReadOptions(version=version_written_in_run(step, source))
        refreshed = refresh_export(spark.spark_session, dataset.at(settings.root), request, pin)
        context.log.info(export_line(refreshed))
        return MaterializeResult(metadata=export_metadata(refreshed))

    with warnings.catch_warnings():
        # Dagster calls `backfill_policy` beta, but nothing else lets one run address many keys.
        warnings.simplefilter("ignore", BetaWarning)
        decorated = asset(
            key=AssetKey(name.split("/")), deps=[source], partitions_def=partitions_def,
            backfill_policy=BackfillPolicy.single_run(), automation_condition=on_changed_source(),
            pool=pool_of_export(name), group_name=dataset.group, owners=list(dataset.owners), kinds={export.format},
            metadata={URI: target}, description=f"{dataset.name} as {export.format} files, at the newest version.",
        )(with_dagster_failures(export_files))  # fmt: skip
    assert isinstance(decorated, AssetsDefinition)  # noqa: S101  the type that `asset` returns for arguments
    return decorated


def _target(uri: str, settings: Settings) -> str:
    """The URI of a declared folder. A relative path is below the project's folder."""
    folder = local_folder(uri)
    return uri if folder is None or folder.is_absolute() else str(settings.project / folder)


def export_metadata(refreshed: Refreshed) -> Mapping[str, Any]:
    """The metadata of the materialization of an export."""
    reason = {} if refreshed.reason is None else {EXPORT_REASON: refreshed.reason.value}
    return {
        URI: refreshed.target,
        EXPORT_VERSION: MetadataValue.int(refreshed.version),
        EXPORT_ROWS: MetadataValue.int(refreshed.rows),
        EXPORT_ROWS_WRITTEN: MetadataValue.int(refreshed.rows_written),
        EXPORT_WRITTEN: MetadataValue.json(bounded(refreshed.written)),
        EXPORT_DROPPED: MetadataValue.json(bounded(refreshed.dropped)),
    } | reason


def export_line(refreshed: Refreshed) -> str:
    """The log line of an export."""
    if not refreshed.written and not refreshed.dropped and refreshed.reason is None:
        return f"{refreshed.target}: nothing changed, version {refreshed.version}"
    why = f", everything: {refreshed.reason.value}" if refreshed.reason is not None else ""
    counts = f"{len(refreshed.written)} folders written, {len(refreshed.dropped)} dropped"
    return f"{refreshed.target}: version {refreshed.version}, {refreshed.rows_written} rows written, {counts}{why}"
