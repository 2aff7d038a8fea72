"""The confs of our sessions, each with its purpose.

Here belong their names and values. `session` and `connect` set them.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from pipeline.delta.storage.object_stores import extras_of
from pipeline.delta.storage.options import account_confs, with_prefixes
from pipeline.settings import SparkSettings

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# The meaning of rows and names depends on these: every session gets them, whoever runs its server. With substitution
# on, a variable would replace `${x}` within quotes too, and a quoted name has no escape for `$`.
SEMANTIC_CONFS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
}
# These keep a JVM small and fast that is used for days.
_BOUNDS = {
    # Spark keeps thousands of finished jobs for a UI that is off here.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.connect.ui.retainedSessions": "10",
    "spark.connect.ui.retainedStatements": "10",
    # These pools start a thread for each task, up to their bound of 1 024, and keep it for a minute.
    "spark.sql.shuffleExchange.maxThreadThreshold": "16",
    "spark.sql.resultQueryStage.maxThreadThreshold": "16",
    # A merge, an append and a read of the feed have about a hundred generated classes together. Spark caches 100 in
    # all, so most were compiled again each time: 77 in a round of the three, and 4 with this bound.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
# The meaning of our statements depends on these; each has the default of Spark or Delta. With a caller's dynamic
# overwrite old partitions would stay, an unchecked replaceWhere would write rows outside the slice, and raw literals
# would address other values.
STATEMENT_CONFS = {
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Without the second a replaced slice has its deletions in the change feed, and not its new rows.
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
    "spark.databricks.delta.replaceWhere.dataColumnsWithCDF.enabled": "true",
}
# A private session has these in addition. Without `java8API` Delta passes the literals of a REPLACE WHERE on as Java's
# old dates, which lack days of 1582. Other readers misread timestamps in INT96.
WRITE_CONFS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # A timestamp's partition value without a zone is read in the zone of the reader.
    "spark.databricks.delta.write.utcTimestampPartitionValues": "true",
    # A statement that skips a file it should read, and rewrites the others, loses the file's rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # What a commit says of its rows.
    "spark.databricks.delta.history.metricsEnabled": "true",
    "spark.databricks.delta.stats.collect": "true",
}
# Spark hides a conf in its UI and its event log if the name or the value matches. Its own pattern, which is the first
# part, does not match each name of a key in Hadoop's confs, nor an address with a user.
_REDACTION = (
    "(?i)secret|password|token|access[.]?key|account[.]key|encryption[.]key|private[.]key|credential|passphrase"
    "|fs[.]azure[.]sas|connectionurl|[?&](sig|signature)=|://[^/@ ]*@"
)
# With each of these log stores a commit is one conditional request, so that two drivers lose nothing: a PUT on S3, the
# copy or rename of a complete file on Azure, and the end of an upload on GCS. Those of Azure and GCS are Delta's own.
_S3_LOG_STORE = "io.pipeline.delta.ConditionalS3LogStore"
_AZURE_LOG_STORE = "io.delta.storage.AzureLogStore"
_GCS_LOG_STORE = "io.delta.storage.GCSLogStore"
# Delta's own log store for disks, but its listing asks for fewer files: a commit to a long log costs what it costs to a
# short one.
_FOLDER_LOG_STORE = "io.pipeline.delta.FolderLogStore"
# The class for all schemes. Delta refuses it beside one for a single scheme.
_LOG_STORE_OF_ALL = "spark.delta.logStore.class"
# Hadoop's default for Azure and GCS can't commit files of Spark's writers, which have no id of a job. An export uses
# them; Delta has a committer of its own.
_FILE_COMMITTER = "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitterFactory"
CONDITIONAL_LOG_STORES = frozenset({_S3_LOG_STORE, _AZURE_LOG_STORE, _GCS_LOG_STORE})
_OBJECT_STORE_CONFS = {
    # A client repeats a request whose answer was lost. With this conf the writer learns that the existing entry is its
    # own.
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    # A vacuum is in the history of a table. On S3 Delta's default leaves it out, for want of a safe log store.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}
# The confs for each extra of this package, by name.
_CONFS_BY_EXTRA = {
    "s3": {
        "spark.delta.logStore.s3.impl": _S3_LOG_STORE,
        "spark.delta.logStore.s3a.impl": _S3_LOG_STORE,
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        # A store that doesn't answer, or that is busy, is given up. By default a busy one is asked again for days.
        "spark.hadoop.fs.s3a.attempts.maximum": "3",
        "spark.hadoop.fs.s3a.retry.limit": "4",
        "spark.hadoop.fs.s3a.retry.throttle.limit": "6",
        "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
        "spark.hadoop.fs.s3a.connection.timeout": "60s",
    },
    "azure": {
        "spark.delta.logStore.abfs.impl": _AZURE_LOG_STORE,
        "spark.delta.logStore.abfss.impl": _AZURE_LOG_STORE,
        # The client would send figures of its use to the account, also at its end: without an answer the JVM stays.
        "spark.hadoop.fs.azure.metrics.collection.enabled": "false",
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.abfs": _FILE_COMMITTER,
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.abfss": _FILE_COMMITTER,
    },
    # Hadoop's own defaults are for another connector: Google's can't read their block size. And they name an account
    # that only machines of Google have.
    "gcs": {
        "spark.delta.logStore.gs.impl": _GCS_LOG_STORE,
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "spark.hadoop.fs.gs.block.size": str(64 << 20),
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.gs": _FILE_COMMITTER,
        "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
    },
}
# Spark adds this class path to `spark.driver.extraClassPath`, which therefore belongs to the user alone.
CLASS_PATH = "spark.driver.defaultExtraClassPath"
_DEFAULT_CLASS_PATH = "hive-jackson/*"  # Spark's own value
# On a cluster these have Spark's defaults: executors can't reach a driver on loopback, and the cores of this machine
# are not those of the cluster.
_OF_ONE_MACHINE = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
    "spark.databricks.delta.snapshotPartitions",
)
FEW_CORES = 2


def log_store_conf(location: str) -> str:
    """The conf with the class of Delta's log store for the scheme of a URI."""
    return f"spark.delta.logStore.{location.partition('://')[0]}.impl"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def confs(settings: SparkSettings, jars: list[Path]) -> dict[str, str]:
    """Every conf of an embedded session with these jars. A conf of the settings has precedence over ours.

    On one machine sizes follow the cores: with Delta's and Spark's defaults a small table costs more in empty tasks
    than in work.
    """
    parallel = str(cores())
    # On few cores parallel garbage collection takes them from the work: a first write is a sixth slower with it.
    collector = ["-XX:+UseSerialGC"] if not settings.is_cluster and cores() <= FEW_CORES else []
    quiet = files("pipeline.delta.spark").joinpath("log4j2.properties")
    ours = {
        "spark.app.name": "pipeline",
        "spark.driver.memory": settings.driver_memory,
        CLASS_PATH: os.pathsep.join([*map(str, jars), _DEFAULT_CLASS_PATH]),
        # As a URI: the launcher splits this text at spaces.
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={Path(str(quiet)).as_uri()}", *collector]
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _REDACTION,
        **_BOUNDS,
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.sql.catalogImplementation": "in-memory",
        # The folders of schemas, which stay empty: our tables are external. Without this conf Spark makes a
        # `spark-warehouse` where it is started.
        "spark.sql.warehouse.dir": (settings.cache / "warehouse").as_uri(),
        "spark.sql.shuffle.partitions": parallel,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": parallel,
        "spark.databricks.delta.snapshotPartitions": parallel,
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    }
    if _LOG_STORE_OF_ALL not in with_prefixes(settings.conf):
        ours[log_store_conf("file://")] = _FOLDER_LOG_STORE
    if settings.is_cluster:
        ours = {name: value for name, value in ours.items() if name not in _OF_ONE_MACHINE}
    for extra in extras_of(settings.schemes):
        ours |= _OBJECT_STORE_CONFS | _CONFS_BY_EXTRA[extra]
    ours |= account_confs(settings)
    return ours | SEMANTIC_CONFS | STATEMENT_CONFS | WRITE_CONFS | with_prefixes(settings.conf)
