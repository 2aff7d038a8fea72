"""A command of a project that needs Spark, as its process: it prints where Spark ran and what it answered, as JSON."""

from __future__ import annotations

import importlib
import json
import sys

from pyspark.sql.functions import udf

from pipeline.delta.server.warm import open_project_session
from pipeline.delta.spark.session import is_connect
from pipeline.settings import load_settings


def main(module: str | None) -> None:
    """Count rows. With a module, apply its function `answer` to a row in Spark's own Python."""
    session = open_project_session(load_settings().spark)
    found: dict[str, object] = {"connect": is_connect(session), "rows": session.range(3).count()}
    if module is not None:
        function = udf(importlib.import_module(module).answer, "long")
        found["answer"] = session.range(1).select(function("id")).collect()[0][0]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
