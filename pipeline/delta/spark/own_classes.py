"""The calls of our own Java classes, in this process's JVM or on a Connect server.

They read the plans of frames, and do with the log of a table what Delta has no statement for. A session that was opened
without our jar, or on a server that this package did not start, lacks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.spark.session import is_connect

# The class that answers the requests of Connect clients, and Spark's conf with the classes that a server asks about a
# relation that it does not know.
REQUESTS = "io.pipeline.delta.Requests"
RELATION_PLUGINS = "spark.connect.extensions.relation.classes"
_COLUMN = "value"


def analyzed_plan(frame: DataFrame) -> dict[str, Any] | None:
    """The nodes of the analyzed plan as `plan`, and as `scans` the Delta table of each leaf. If unknown, None.

    A table has its `location`, `version` (None for a change feed) and `columns` by Spark's ids; another leaf is None.
    """
    answer: dict[str, Any] | None = _of_frame(frame, "analyzed")
    return answer


def executed_scans(frame: DataFrame) -> list[dict[str, str]] | None:
    """The options `Location`, `PartitionFilters` and `PushedFilters` of each scan. If the plan is unknown, None."""
    answer: list[dict[str, str]] | None = _of_frame(frame, "executed")
    return answer


def write_checkpoint(session: SparkSession, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Write a checkpoint by a request of `TableLogs`, and return its answer. If the session lacks our classes, None.

    Raises the errors of Spark.
    """
    answer: dict[str, Any] | None = _of_log(session, "checkpoint", request)
    return answer


def forget_log(session: SparkSession, location: str) -> None:
    """Let Delta read a table's log from its files again. A server without our classes must be started again."""
    _of_log(session, "forget", {"location": location})


def _of_frame(frame: DataFrame, name: str) -> Any:
    return _answer(frame.sparkSession, f"pipeline/plan-{name}", "PlanFacts", name, frame)


def _of_log(session: SparkSession, name: str, request: Mapping[str, Any]) -> Any:
    return _answer(session, f"pipeline/log-{name}", "TableLogs", name, json.dumps(request))


def _answer(session: SparkSession, request: str, java_class: str, method: str, about: DataFrame | str) -> Any:
    """The answer of a server to a request, or of a method in this process's JVM. If they lack our classes, None."""
    ours = _classes(session)
    if ours is None:
        return None
    if is_connect(session):
        return json.loads(_ask(session, request, about))
    given: Any = about
    of_jvm = (session._jsparkSession, about) if isinstance(about, str) else (given._jdf,)
    return json.loads(getattr(getattr(ours, java_class), method)(*of_jvm))


def _classes(session: SparkSession) -> Any:
    """The package of our classes in a classic session, or that a server has them. If they are missing, None."""
    if is_connect(session):
        return REQUESTS in (session.conf.get(RELATION_PLUGINS, "") or "").split(",") or None
    jvm: Any = session._jvm
    return None if isinstance(jvm.io.pipeline.delta.PlanFacts, JavaPackage) else jvm.io.pipeline.delta


def _ask(session: SparkSession, name: str, about: DataFrame | str) -> str:
    """The answer of a server to one request."""
    import pyspark.sql.connect.proto as protocol
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LogicalPlan

    class Request(LogicalPlan):
        def plan(self, session: Any) -> protocol.Relation:
            relation = self._create_proto_relation()
            relation.extension.type_url = name
            relation.extension.value = (
                str(about).encode() if self._child is None else self._child.plan(session).SerializeToString()
            )
            return relation

    connect, frame = cast("Any", session), cast("Any", about)
    request = Request(None if isinstance(about, str) else frame._plan)
    ((answer,),) = ConnectFrame(request, connect).select(_COLUMN).collect()
    return str(answer)
