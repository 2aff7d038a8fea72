"""The same meaning of statements, files and frames, whatever the confs of the caller's session.

In a session of ours the confs are set. A frame that we hand out runs in its caller's session, so wrong confs there are
refused.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from pipeline.dataset import Dataset
from pipeline.delta.spark.confs import SEMANTIC_CONFS, STATEMENT_CONFS, WRITE_CONFS
from pipeline.delta.spark.session import is_connect
from pipeline.errors import SessionConfError

# A private session has no confs with these prefixes: legacy behaviour, and undeclared properties of a new table.
_LEGACY, _DEFAULTS = "spark.sql.legacy.", "spark.databricks.delta.properties.defaults."
# The caller's own transaction identifier: Delta would take our second write for a repeat of the first, and skip it.
_IDENTIFIER = "spark.databricks.delta.write.txn"
# Values of confs, by name, with which the caller's session would misread a frame that we hand out.
_MISREAD = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
}
_ZONE = "spark.sql.session.timeZone"
_UTC = ("UTC", "Etc/UTC", "Z", "+00:00")
# Delta derives a partition filter on the generated column from one on its source column, in the reader's zone: rows at
# the edge of a day would be missing.
_BY_COMPUTED = "spark.databricks.delta.generatedColumn.partitionFilterOptimization.enabled"


def set_session_confs(session: SparkSession) -> None:
    """Set in a session of ours every conf on which the meaning of statements and of written files depends."""
    known: Any = session.conf.getAll if is_connect(session) else {}  # one answer from the server for all of them
    for name, value in (SEMANTIC_CONFS | STATEMENT_CONFS | WRITE_CONFS).items():
        if (known.get(name) if known else session.conf.get(name, None)) != value:
            session.conf.set(name, value)
    names = list(known) if known else _settings(session)
    for name in names:
        # Spark does not register Delta's default properties, so `isModifiable` is false for them.
        is_ours_alone = name.startswith((_DEFAULTS, _IDENTIFIER))
        if is_ours_alone or (name.startswith(_LEGACY) and session.conf.isModifiable(name)):
            session.conf.unset(name)


def refuse_misreading(session: SparkSession, dataset: Dataset) -> None:
    """Refuse to hand out a frame of a dataset if the session's confs would change its rows or values.

    Raises:
        SessionConfError: with each such conf, its value and the value that is needed.
    """
    known: Any = session.conf.getAll if is_connect(session) else None

    def value_of(name: str, default: str = "") -> str:
        value = session.conf.get(name, None) if known is None else known.get(name)
        return default if value is None else str(value)

    values = {name: value_of(name) for name in _MISREAD}
    problems = [f"{name} is {value}" for name, value in values.items() if value.upper() == _MISREAD[name].upper()]
    instants = any(isinstance(field.dataType, TimestampType) for field in dataset.schema.fields)
    zone = value_of(_ZONE, "UTC")
    if dataset.features.generated and instants and zone not in _UTC and value_of(_BY_COMPUTED, "true") == "true":
        problems.append(f"{_ZONE} is {zone}, and {_BY_COMPUTED} is not false")
    if problems:
        raise SessionConfError(dataset=dataset.name, problems=tuple(problems))


def _settings(session: SparkSession) -> list[str]:
    """The names of a classic session's settings. pyspark's `getAll` calls the JVM for each, which takes a second."""
    jvm_session: Any = session._jsparkSession
    return str(jvm_session.conf().getAll().keys().mkString("\n")).split("\n")
