"""The names of all metadata and tags that Dagster sees, each with its meaning.

Here belongs every name, as one constant, with its meaning as the text below it. The reference page is made of them.
Names that begin with `dagster/` are Dagster's own, those with `delta/` and `pipeline/` are the pipeline's. The values
belong to `metadata` and to the modules that record them.
"""

from __future__ import annotations

# --- a materialization: which commit ----------------------------------------------------------------------------------

VERSION = "delta/version"
"""The version of the commit that the run made. If `delta/committed` is false, the version that was current."""

COMMITTED = "delta/committed"
"""Whether the run made a commit. A write that changes nothing makes none."""

SKIPPED = "delta/skipped"
"""Whether an earlier attempt had already written these rows; they are in `delta/version`."""

CACHED = "delta/cached"
"""True if the step was skipped, since `delta/version` has the rows that it would have written."""

ATTEMPTS = "delta/attempts"
"""The number of attempts of the write until its commit."""

TABLE_ID = "delta/table_id"
"""The id of the table. A table that is dropped and created again has another id."""

OPERATION = "delta/operation"
"""Delta's name of the operation in the commit."""

TIMESTAMP = "delta/timestamp"
"""The time of the commit."""

WRITE_SECONDS = "delta/write_seconds"
"""The duration of the write, retries included."""

FEATURES = "delta/features"
"""The table features of the table after the commit."""

RECORD = "delta/record"
"""The path of the record that is kept beside the tables."""

BATCHES = "delta/batches"
"""For a stream: the newest 20 batches with their epoch, version and rows."""

# --- a materialization: what was written ------------------------------------------------------------------------------

ROWS_WRITTEN = "delta/rows_written"
"""Rows in the files that the commit added. At a partition key, those of that partition."""

ROWS_UPDATED = "delta/rows_updated"
"""Rows that the commit updated, if Delta counts them (a merge)."""

ROWS_DELETED = "delta/rows_deleted"
"""Rows that the commit deleted, if Delta counts them (a merge, a replace)."""

FILES_ADDED = "delta/files_added"
"""Data files that the commit added. At a partition key, those of that partition."""

FILES_REMOVED = "delta/files_removed"
"""Data files that the commit removed from the table. At a partition key, those of that partition."""

BYTES_ADDED = "delta/bytes_added"
"""Size of the files that the commit added. At a partition key, of those of that partition."""

COMMIT_PREFIX = "delta/commit_"
"""The beginning of a total's name. At a partition key, `delta/commit_rows_written` and similar names are the counts of
the whole commit."""

TABLE_ROWS = "dagster/row_count"
"""Rows of the table at that version, from the log. Missing if a file has no statistics."""

PARTITION_ROWS = "dagster/partition_row_count"
"""Rows that the partition holds, 0 for a key that is now empty. After an append, the rows that were added."""

SAMPLE = "delta/sample"
"""A few rows of the commit, if the table is on this machine's disk; at most `sample_rows` of the IO manager."""

# --- a materialization: what was read ---------------------------------------------------------------------------------

SOURCES = "delta/sources"
"""The version of every source that was read."""

VERDICT = "delta/verdict"
"""For a consumer of changes: whether it read nothing, changes, or everything."""

CHANGES = "delta/changes"
"""For a consumer of changes: for each source the verdict with its reason, the versions, and the rows by change type."""

COLUMN_LINEAGE = "dagster/column_lineage"
"""The columns of the sources that each column comes from, by Spark's plan. Left out on a Connect server that this
package did not start, and for a column from a function over whole partitions, a subquery or a checkpoint."""

# --- a materialization: quality and schema ----------------------------------------------------------------------------

VIOLATIONS = "delta/violations"
"""For each constraint that was evaluated before the write: the number of rows that break it, with examples."""

AUDIT = "delta/audit"
"""For each expectation that was judged before the commit (`audit="before"`): what was found."""

ROWS_DROPPED = "delta/rows_dropped"
"""Rows that the write left out and counted (`on_violation="drop"`)."""

ROWS_QUARANTINED = "delta/rows_quarantined"
"""Rows that the write left out and put into the quarantine table."""

QUARANTINE = "delta/quarantine"
"""The name of the quarantine table."""

QUARANTINE_VERSION = "delta/quarantine_version"
"""The version of the quarantine table that holds these rows."""

FINGERPRINT = "delta/schema_fingerprint"
"""SHA-256 over names, types, nullability, nesting, order and partition columns of the table."""

FINGERPRINT_BEFORE = "delta/schema_fingerprint_before"
"""The fingerprint before the write, if the write changed the schema."""

SCHEMA_CHANGES = "delta/schema_changes"
"""The schema changes that the write made, in words."""

# --- a materialization: the table, in Dagster's own names -------------------------------------------------------------

TABLE_NAME = "dagster/table_name"
"""The name in the catalog. If the table is not registered, the parts of the asset key, joined by dots. A definition has
it too, if the table is registered."""

URI = "dagster/uri"
"""The location of the table. The folder of an export, which a definition has too."""

STORAGE_KIND = "dagster/storage_kind"
"""Always `delta`."""

COLUMN_SCHEMA = "dagster/column_schema"
"""The columns with type, description and nullability; partition columns carry the tag `partition_column`. A definition
has it too."""

# --- a materialization of an export -----------------------------------------------------------------------------------

EXPORT_VERSION = "delta/export_version"
"""The version of the table that the folder now has."""

EXPORT_ROWS = "delta/export_rows"
"""Rows in all files of the folder."""

EXPORT_ROWS_WRITTEN = "delta/export_rows_written"
"""Rows in the files that were written."""

EXPORT_WRITTEN = "delta/export_written"
"""The folders of the partitions that were written, the first 20. Without partition columns it has an empty name."""

EXPORT_DROPPED = "delta/export_dropped"
"""The folders of the partitions that were dropped, since they have no rows any more, the first 20."""

EXPORT_REASON = "delta/export_reason"
"""Why everything was exported. Missing if only changed partitions were."""

# --- a definition -----------------------------------------------------------------------------------------------------

DATASET = "pipeline/dataset"
"""The declaration itself. `dataset_asset` and `dataset_metadata` set it for the IO manager."""

FED_ELSEWHERE = "pipeline/fed_elsewhere"
"""True if a sink or another project writes the table too (`is_fed_elsewhere=True`)."""

PARTITION_BY = "delta/partition_by"
"""The partition columns of the table."""

DECLARED_WRITE_MODE = "delta/write_mode"
"""The write mode. The definition of a dataset shows it. A plain asset sets it: `replace`, `append`, `merge` or
`insert_new`."""

DECLARED_FINGERPRINT = "delta/declared_fingerprint"
"""The fingerprint that a table of the declaration has. The check `schema` has it too."""

READS_CHANGES_OF = "delta/reads_changes_of"
"""The sources that are read as changes."""

# --- a plain asset, which declares its table by metadata --------------------------------------------------------------

PARTITION_EXPR = "partition_expr"
"""The partition column of the keys, or one for each dimension. The name is Dagster's own. A partitioned plain asset
needs it."""

KEYS = "delta/keys"
"""The columns that identify a row. The definition of a dataset shows them. A plain asset sets them, as NOT NULL."""

ORDER_BY = "delta/order_by"
"""The column that orders the rows of a key in a merge."""

CACHE = "delta/cache"
"""True: the step of a plain asset is skipped if its outcome is cached. It needs a code version."""

# --- tags of a run ----------------------------------------------------------------------------------------------------

FULL_REFRESH = "pipeline/full_refresh"
"""`"true"`: the consumers of the run read everything and replace their tables."""

NO_CACHE = "pipeline/no_cache"
"""`"true"`: no step of the run is skipped because its outcome is cached."""

ROOT_TAG = "pipeline/root"
"""The root of the project whose schedule of maintenance requested the run."""

# --- an asset check ---------------------------------------------------------------------------------------------------

HELD_TO_VERSION = "delta/held_to_version"
"""For `References`: the version of the other dataset that the values were compared with."""

# --- an observation of a maintenance job ------------------------------------------------------------------------------

VACUUM_FILES = "delta/vacuum_files"
"""How many files a vacuum removed, or would remove."""

VACUUM_APPLIED = "delta/vacuum_applied"
"""Whether the vacuum removed them."""

VACUUM_NEEDED_BY = "delta/vacuum_needed_by"
"""Consumers that still need some of these files, and the version up to which each has read."""

CHECKPOINT_VERSION = "delta/checkpoint_version"
"""The version of the checkpoint."""

LOG_KEPT_FOR = "delta/log_kept_for"
"""Consumers for which the log was not cleaned, and the version up to which each has read."""

CHECKPOINT_WRITTEN = "delta/checkpoint_written"
"""The version of the checkpoint that the maintenance of the table wrote. Missing if none was due."""

FILES_JOINED = "delta/files_joined"
"""How many small files were joined into larger ones."""

TOMBSTONES_EXPIRED = "delta/tombstones_expired"
"""How many tombstones were removed that are older than `keep_hours`."""

FILES_VACUUMED = "delta/files_vacuumed"
"""How many files were removed that no version within the retention needs."""

LOG_FILES_REMOVED = "delta/log_files_removed"
"""How many files of the log were removed that are past its retention and that nothing needs."""

BYTES_RECLAIMED = "delta/bytes_reclaimed"
"""The size of all removed files."""

KEPT_BECAUSE = "delta/kept_because"
"""Why files or entries of the log that are past their retention are kept."""

FILES = "delta/files"
"""Data files of the table after its maintenance."""

BYTES = "delta/bytes"
"""Their size."""

SMALL_FILE_RATIO = "delta/small_file_ratio"
"""The share of small files that could be joined, from 0 to 1."""

LOG_ENTRIES = "delta/log_entries"
"""Entries of the log."""

OLDEST_READABLE = "delta/oldest_readable_version"
"""The oldest version from which on every version can be read."""
