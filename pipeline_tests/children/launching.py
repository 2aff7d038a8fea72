"""Open the session of the project in the working directory, print what it has been given, and end with the input."""

import json
import sys
from typing import Any

from pipeline.delta.spark.session import open_session
from pipeline.settings import load_settings


def main() -> None:
    """Print one JSON document: the confs, a system property, and the heap of the JVM in bytes."""
    context: Any = open_session(load_settings().spark).sparkContext
    java = context._jvm.java.lang
    given = {"planted": java.System.getProperty("planted"), "heap": java.Runtime.getRuntime().maxMemory()}
    print(json.dumps({"confs": dict(context.getConf().getAll())} | given), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
