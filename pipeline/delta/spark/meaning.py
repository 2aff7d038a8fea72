"""What a statement, a file and a frame mean, whatever the confs of the caller's session.

It is held in a session of ours. A frame that is handed out runs in its caller's session, so there it is refused.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from pipeline.dataset import Dataset
from pipeline.delta.spark.confs import SEMANTIC_CONFS, STATEMENT_CONFS, WRITE_CONFS
from pipeline.delta.spark.session import is_connect
from pipeline.errors import SessionConfError

# What a private session has none of: old meanings, and properties that a new table would have undeclared.
_LEGACY, _DEFAULTS = "spark.sql.legacy.", "spark.databricks.delta.properties.defaults."
# An identifier of the caller's own: Delta would take a second write of ours for a repeat of the first, and skip it.
_IDENTIFIER = "spark.databricks.delta.write.txn"
# What a frame is read wrong with that is handed out, since it runs in its caller's session: by name the value.
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
# Delta leaves out partitions by what a filter of the source column says of the computed one, reckoned in the reader's
# zone: rows at the edge of a day would be missing.
_BY_COMPUTED = "spark.databricks.delta.generatedColumn.partitionFilterOptimization.enabled"


def hold_session_confs(session: SparkSession) -> None:
    """Give a session of ours all that the meaning of a statement and of the files it writes depends on."""
    known: Any = session.conf.getAll if is_connect(session) else {}  # one answer from the server for all of them
    for name, value in (SEMANTIC_CONFS | STATEMENT_CONFS | WRITE_CONFS).items():
        if (known.get(name) if known else session.conf.get(name, None)) != value:
            session.conf.set(name, value)
    names = list(known) if known else _settings(session)
    for name in names:
        # Spark knows no names of defaults, and so calls none of them modifiable.
        is_ours_alone = name.startswith((_DEFAULTS, _IDENTIFIER))
        if is_ours_alone or (name.startswith(_LEGACY) and session.conf.isModifiable(name)):
            session.conf.unset(name)


def refuse_misreading(session: SparkSession, dataset: Dataset) -> None:
    """Refuse to hand out a frame of a dataset that the session's confs would give other rows or values.

    Raises:
        SessionConfError: with each such conf, its value and what is needed.
    """
    known: Any = session.conf.getAll if is_connect(session) else None

    def said(name: str, default: str = "") -> str:
        value = session.conf.get(name, None) if known is None else known.get(name)
        return default if value is None else str(value)

    problems = [f"{name} is {said(name)}" for name, wrong in _MISREAD.items() if said(name).upper() == wrong.upper()]
    instants = any(isinstance(field.dataType, TimestampType) for field in dataset.schema.fields)
    zone = said(_ZONE, "UTC")
    if dataset.features.generated and instants and zone not in _UTC and said(_BY_COMPUTED, "true") == "true":
        problems.append(f"{_ZONE} is {zone}, and {_BY_COMPUTED} is not false")
    if problems:
        raise SessionConfError(dataset=dataset.name, problems=tuple(problems))


def _settings(session: SparkSession) -> list[str]:
    """The names of a classic session's settings; pyspark asks for each by itself, which takes a second."""
    jvm_session: Any = session._jsparkSession
    return str(jvm_session.conf().getAll().keys().mkString("\n")).split("\n")
