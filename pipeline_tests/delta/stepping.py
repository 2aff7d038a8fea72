"""A process with a JVM of its own that takes steps over a store, and the requests that each step makes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.settings import SparkSettings
from pipeline_tests.conftest import brief_conf
from pipeline_tests.object_stores import AnyStore

# Roots in buckets, each with the confs for the process alone, and not for its Spark.
Unusable = Sequence[tuple[str, Mapping[str, str]]]


class Child:
    """The process. `requests` and `jobs`, which are Spark's, are those of the newest step."""

    def __init__(
        self, store: AnyStore, settings: SparkSettings, root: str, *steps: str, writer: str = "one",
        unusable: Unusable = (), conf: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        job = {
            "cache": str(settings.cache), "conf": dict(brief_conf(settings)) | dict(store.hadoop) | dict(conf or {}),
            "root": root, "steps": steps, "writer": writer, "unusable": unusable,
        }  # fmt: skip
        command = [sys.executable, "-m", "pipeline_tests.children.bucket", json.dumps(job)]
        self.store, self.requests, self.jobs = store, list[str](), 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def next(self) -> Any:
        """The result of the next step; `requests` are those that it made."""
        self.wait()
        self.store.requests.clear()
        self.go()
        result = self.result()
        self.requests = list(self.store.requests)
        return result

    def wait(self) -> None:
        """Wait until the process can take its next step."""
        self._answer("step")

    def result(self) -> Any:
        """The result of the step that was begun."""
        answer = self._answer("result")
        self.jobs = answer["jobs"]
        self.go()
        return answer["result"]

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()
        self.process.wait()

    def _answer(self, name: str) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        answer = json.loads(line)
        assert name in answer
        return answer

    def go(self) -> None:
        """Let the process go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def child(store: AnyStore, settings: SparkSettings, root: str, *steps: str, **options: Any) -> Iterator[Child]:
    process = Child(store, settings, root, *steps, **options)
    try:
        yield process
    finally:
        process.end()
