"""How a dataset's files are written, kept and maintained, and which changes of its schema a write may make by itself.

Here belong `StoragePolicy`, `MaintenancePolicy` and `SchemaPolicy`, the properties and confs that follow from them, and
the contradictions in them. Which steps a policy allows belongs to `pipeline.delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pyspark.sql.types import StructType

from pipeline.dataset.expectations import is_cron
from pipeline.dataset.schema import walk

Codec = Literal["snappy", "zstd", "gzip", "lz4", "lz4_raw", "uncompressed"]
SchemaMode = Literal["exact", "add columns", "widen types", "evolve", "overwrite"]

# Delta has no property for some of the policy. Our own properties keep it in the table for the next writer.
OURS = "pipeline.storage."
CODEC = f"{OURS}codec"
TARGET_FILE_BYTES = f"{OURS}targetFileBytes"
# Delta passes a table's properties to the Parquet writer (`TransactionalWrite.scala`), which reads this one.
DICTIONARY = "parquet.enable.dictionary"
_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class StoragePolicy:
    """How data files are written, and how long old ones are kept; None leaves Delta's or Spark's own default.

    Args:
        codec: Parquet's compression in every file that is written here, also by a merge and by OPTIMIZE.
        dictionary_encoding: whether Parquet may encode a column by a dictionary.
        statistics_columns: the columns, by dotted path, of which files keep the smallest and the greatest value.
        target_file_bytes: the size that OPTIMIZE, auto-compaction and optimized writes aim at. Open-source Delta has no
            property for it, so it holds only for what is written here.
        auto_compact: whether a write joins small files afterwards, in a commit of its own.
        optimized_write: whether rows are shuffled before the write, into fewer and larger files.
        deleted_file_retention_hours: how long files are kept that no longer belong to the table.
        log_retention_hours: how long the log is kept; at least as long as the files.
        transaction_retention_hours: how long the identifier of a batch is remembered.
        checkpoint_interval_commits: after how many commits Delta writes a checkpoint by itself.
    """

    codec: Codec | None = None
    dictionary_encoding: bool | None = None
    statistics_columns: tuple[str, ...] | None = None
    target_file_bytes: int | None = None
    auto_compact: bool | None = None
    optimized_write: bool | None = None
    deleted_file_retention_hours: int | None = None
    log_retention_hours: int | None = None
    transaction_retention_hours: int | None = None
    checkpoint_interval_commits: int | None = None


@dataclass(frozen=True, kw_only=True)
class MaintenancePolicy:
    """When a table is maintained, and by which steps. A step that has nothing to do makes no commit.

    Tombstones that are older than their `keep_hours` are always removed.

    Args:
        scheduled: whether the job of the dataset's group maintains the table. `pipeline maintain all` always does.
        cron: when that job runs, in UTC. All datasets of a group that declare it declare the same. If none does, daily
            at 01:30.
        checkpoint: whether a checkpoint is written once there are as many commits since the newest one as
            `checkpoint_interval_commits`.
        small_file_ratio: the share of small files from which on they are joined, from 0 to 1. A file is small below
            half of `target_file_bytes`, or else 16 MiB, if others of its partition are small too. None: never.
        vacuum: whether files are removed that no version within the retention needs.
        clean_log: whether entries of the log are removed that are past their retention and that nothing needs.
    """

    scheduled: bool = True
    cron: str | None = None
    checkpoint: bool = True
    small_file_ratio: float | None = 0.5
    vacuum: bool = True
    clean_log: bool = True


@dataclass(frozen=True, kw_only=True)
class SchemaPolicy:
    """Which differences between declaration and table a write settles by itself; any other refuses the write.

    Args:
        mode: `exact` none; `add columns` columns and nested fields that the table lacks; `widen types` types that are
            narrower in the table; `evolve` both, and NOT NULL that is no longer declared, and declared renames;
            `overwrite` any, but only by a write that replaces the whole table.
        renames: columns with a new name, as (dotted path in the table, new name). The values are kept.
        drops: columns to drop from the table, by dotted path. `pipeline conform apply` drops them. A column of that
            name that is added later has none of the old values.
    """

    mode: SchemaMode = "exact"
    renames: tuple[tuple[str, str], ...] = ()
    drops: tuple[str, ...] = ()


def _switch(value: bool) -> str:
    return "true" if value else "false"


def storage_properties(policy: StoragePolicy) -> dict[str, str]:
    """The table properties that declare the policy."""
    columns = policy.statistics_columns
    hours = {
        "delta.deletedFileRetentionDuration": policy.deleted_file_retention_hours,
        "delta.logRetentionDuration": policy.log_retention_hours,
        "delta.setTransactionRetentionDuration": policy.transaction_retention_hours,
    }
    optional = {
        CODEC: policy.codec,
        DICTIONARY: None if policy.dictionary_encoding is None else _switch(policy.dictionary_encoding),
        "delta.dataSkippingStatsColumns": None if columns is None else ",".join(columns),
        TARGET_FILE_BYTES: None if policy.target_file_bytes is None else str(policy.target_file_bytes),
        "delta.autoOptimize.autoCompact": None if policy.auto_compact is None else _switch(policy.auto_compact),
        "delta.autoOptimize.optimizeWrite": None if policy.optimized_write is None else _switch(policy.optimized_write),
        **{name: None if value is None else f"interval {value} hours" for name, value in hours.items()},
        "delta.checkpointInterval": None
        if policy.checkpoint_interval_commits is None
        else str(policy.checkpoint_interval_commits),
    }
    return {name: value for name, value in optional.items() if value is not None}


def storage_confs(properties: Mapping[str, str]) -> dict[str, str]:
    """The session confs for a write to a table with these properties: Delta reads them from no table property."""
    confs = {}
    if CODEC in properties:
        confs["spark.sql.parquet.compression.codec"] = properties[CODEC]
    size = properties.get(TARGET_FILE_BYTES, "")
    if size.isascii() and size.isdigit():  # anybody can set a property to anything
        delta = "spark.databricks.delta"
        # OPTIMIZE leaves files of at least half the size alone, so that a second OPTIMIZE has nothing to do.
        confs |= {
            f"{delta}.optimize.maxFileSize": size,
            f"{delta}.optimize.minFileSize": str(int(size) // 2),
            f"{delta}.autoCompact.maxFileSize": size,
            f"{delta}.optimizeWrite.binSize": f"{max(1, int(size) // _MEBIBYTE)}m",
        }
    return confs


def maintenance_problems(policy: MaintenancePolicy | None) -> Iterator[str]:
    """Messages about invalid values in a maintenance policy."""
    if policy is None:
        return
    if policy.cron is not None and not is_cron(policy.cron):
        yield f"maintenance: {policy.cron!r} is no cron expression of five fields"
    if policy.small_file_ratio is not None and not 0 <= policy.small_file_ratio <= 1:
        yield "maintenance: small_file_ratio is not between 0 and 1"


def storage_problems(policy: StoragePolicy, schema: StructType) -> Iterator[str]:
    """Messages about invalid values in a storage policy, and about contradictions between it and the schema."""
    if policy.codec is not None and policy.codec not in get_args(Codec):
        yield f"storage: codec {policy.codec!r} is none of {', '.join(get_args(Codec))}"
    paths = {path for path, _ in walk(schema)}
    for column in policy.statistics_columns or ():
        if column not in paths:
            yield f"storage: statistics_columns names {column!r}, which is not in the schema"
    positive = (
        "target_file_bytes",
        "log_retention_hours",
        "transaction_retention_hours",
        "checkpoint_interval_commits",
    )
    for name in positive:
        value = getattr(policy, name)
        if value is not None and value <= 0:
            yield f"storage: {name} is not positive"
    files_hours, log_hours = policy.deleted_file_retention_hours, policy.log_retention_hours
    if files_hours is not None and files_hours < 0:
        yield "storage: deleted_file_retention_hours is negative"
    if files_hours is not None and log_hours is not None and log_hours < files_hours:
        yield "storage: log_retention_hours is less than deleted_file_retention_hours; versions would lose their log"


def schema_problems(policy: SchemaPolicy, schema: StructType, *, maps_columns: bool) -> Iterator[str]:
    """Messages about contradictions in a schema policy, or between it and the schema."""
    if policy.mode not in get_args(SchemaMode):
        yield f"schema_policy: mode {policy.mode!r} is none of {', '.join(get_args(SchemaMode))}"
    paths = {path for path, _ in walk(schema)}
    if (policy.renames or policy.drops) and not maps_columns:
        yield "schema_policy: renames and drops need features.column_mapping 'name' or 'id'"
    for old, new in policy.renames:
        parent = old.rpartition(".")[0]
        path = f"{parent}.{new}" if parent else new
        if path not in paths:
            yield f"schema_policy: {old!r} is renamed to {path!r}, which is not in the schema"
    for path in policy.drops:
        if path in paths:
            yield f"schema_policy: drops names {path!r}, which is in the schema"
    for old in {old for old, _ in policy.renames} & set(policy.drops):
        yield f"schema_policy: {old!r} is renamed and dropped"
