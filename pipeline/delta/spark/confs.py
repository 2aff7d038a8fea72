"""The confs of our sessions, and what each of them is for.

Here belong their names and values; how a session is given them is `session`'s and `connect`'s.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from pipeline.settings import SparkSettings

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# What the meaning of rows and names depends on: the same in every session, whoever runs its server. A variable would be
# put in the place of `${x}` within quotes too, and a quoted name has no escape for `$`.
SEMANTIC_CONFS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
}
# What keeps a JVM that is used for days as small and as quick as it was.
_BOUNDS = {
    # What Spark keeps of work that is done, for a UI that nobody sees here; it keeps thousands.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.connect.ui.retainedSessions": "10",
    "spark.connect.ui.retainedStatements": "10",
    # Pools that start a thread for each task up to their bound, which is 1 024, and keep it for a minute.
    "spark.sql.shuffleExchange.maxThreadThreshold": "16",
    "spark.sql.resultQueryStage.maxThreadThreshold": "16",
    # A merge, an append and a look at the feed have about a hundred generated classes between them. Spark keeps 100 of
    # all, so that most were compiled again each time: 77 in a round of the three, then 4.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
# What the meaning of our statements depends on, each with Spark's and Delta's own default. A caller's dynamic overwrite
# would leave old partitions, an unchecked replaceWhere would take stray rows, raw literals would address other values.
STATEMENT_CONFS = {
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Without the second a replaced slice has its deletions in the change feed, and not its new rows.
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
    "spark.databricks.delta.replaceWhere.dataColumnsWithCDF.enabled": "true",
}
# What a private session has beside them. Delta hands on the literals of a REPLACE WHERE as Java's old dates, which lack
# days of 1582, unless it is told to use the new ones; instants as INT96 are read wrong by other readers.
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
    # A partition value of an instant without its zone is read by the zone of whoever reads.
    "spark.databricks.delta.write.utcTimestampPartitionValues": "true",
    # A statement that rewrites a file without some of those it should have read has lost their rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # What a commit says of its rows.
    "spark.databricks.delta.history.metricsEnabled": "true",
    "spark.databricks.delta.stats.collect": "true",
}
FEW_CORES = 2


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def confs(settings: SparkSettings, jars: list[Path]) -> dict[str, str]:
    """Every conf of an embedded session; the settings' own win.

    Sizes follow the cores: with Delta's and Spark's defaults a small table costs more in empty tasks than in work.
    """
    parallel = str(cores())
    # On few cores threads that collect garbage take them from the work: a first write is a sixth slower with them.
    collector = ["-XX:+UseSerialGC"] if settings.master.startswith("local") and cores() <= FEW_CORES else []
    quiet = files("pipeline.delta.spark").joinpath("log4j2.properties")
    ours = {
        "spark.app.name": "pipeline",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        # As a URI: the launcher splits this text at spaces.
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={Path(str(quiet)).as_uri()}", *collector]
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_BOUNDS,
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.sql.catalogImplementation": "in-memory",
        # Nothing is kept in a catalog; left alone, Spark makes an empty folder of that name where it is started.
        "spark.sql.warehouse.dir": (settings.cache / "warehouse").as_uri(),
        "spark.sql.shuffle.partitions": parallel,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": parallel,
        "spark.databricks.delta.snapshotPartitions": parallel,
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    }
    if not settings.master.startswith("local"):
        # A cluster's executors can't reach a driver on loopback, nor jars that lie on this machine only.
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            del ours[name]
        ours["spark.jars"] = ",".join(map(str, jars))
    return ours | SEMANTIC_CONFS | STATEMENT_CONFS | WRITE_CONFS | dict(settings.conf)
