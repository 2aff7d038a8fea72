"""What Spark's plans say of a frame: a class of our jar reads them in the JVM that has them.

Here belongs the call of that class, in this process's JVM or on a Connect server. A server that was not started by this
package lacks the class: nothing is known of its plans. No row is read, and no Spark job runs.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.spark.session import is_connect

PLAN_FACTS = "io.pipeline.delta.PlanFacts"
# Spark's conf with the classes that a Connect server asks about a relation that it does not know.
RELATION_PLUGINS = "spark.connect.extensions.relation.classes"
# The types of our relations, and the column of the answer.
_ANALYZED, _EXECUTED = "pipeline/plan-analyzed", "pipeline/plan-executed"
_COLUMN = "value"


def analyzed_plan(frame: DataFrame) -> dict[str, Any] | None:
    """The nodes of the analyzed plan as `plan`, and as `scans` the Delta table of each leaf. If unknown, None.

    A table has its `location`, `version` (None for a change feed) and `columns` by Spark's ids; another leaf is None.
    """
    facts: dict[str, Any] | None = _facts(frame, _ANALYZED)
    return facts


def executed_scans(frame: DataFrame) -> list[dict[str, str]] | None:
    """The options `Location`, `PartitionFilters` and `PushedFilters` of each scan. If the plan is unknown, None."""
    scans: list[dict[str, str]] | None = _facts(frame, _EXECUTED)
    return scans


def _facts(frame: DataFrame, kind: str) -> Any:
    session = frame.sparkSession
    text = _of_server(frame, kind) if is_connect(session) else _of_jvm(session, frame, kind)
    return None if text is None else json.loads(text)


def _of_jvm(session: SparkSession, frame: DataFrame, kind: str) -> str | None:
    jvm: Any = session._jvm
    facts = jvm.io.pipeline.delta.PlanFacts
    if isinstance(facts, JavaPackage):  # the session was opened without our jar
        return None
    return str(facts.analyzed(frame._jdf) if kind == _ANALYZED else facts.executed(frame._jdf))


def _of_server(frame: DataFrame, kind: str) -> str | None:
    if PLAN_FACTS not in (frame.sparkSession.conf.get(RELATION_PLUGINS, "") or "").split(","):
        return None
    import pyspark.sql.connect.proto as protocol
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LogicalPlan

    class Extension(LogicalPlan):
        def plan(self, session: Any) -> protocol.Relation:
            relation = self._create_proto_relation()
            relation.extension.type_url = kind
            relation.extension.value = self._child.plan(session).SerializeToString()  # type: ignore[union-attr]
            return relation

    connect: Any = frame
    ((text,),) = ConnectFrame(Extension(connect._plan), connect.sparkSession).select(_COLUMN).collect()
    return str(text)
