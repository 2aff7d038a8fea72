"""Checkpoints of a table, for which Delta has no SQL statement.

A class of ours writes them where the session runs. If the session lacks it, as on a server that this package did not
start, one embedded child process writes the checkpoints of all requested tables, since its start costs more than they
do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import IO, Any

from pyspark.sql import SparkSession

from pipeline.delta.log.commits import commit_file
from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.spark.failures import SPARK_ERRORS, failure_of
from pipeline.delta.spark.own_classes import write_checkpoint
from pipeline.delta.spark.session import open_session
from pipeline.settings import load_settings

CHILD_SECONDS = 900
_ANSWER = "checkpoint: "


class CheckpointFailedError(Exception):
    """The child process could not write a checkpoint. The text is the reason."""


class Checkpoints:
    """Writes checkpoints, one table after another. If a child process was started, it ends with the block.

    Args:
        session: the session, or a function that opens it when it is first needed.
    """

    def __init__(self, session: SparkSession | Callable[[], SparkSession]) -> None:
        self._session = session
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.communicate()
        if self._errors is not None:
            self._errors.close()

    @cached_property
    def session(self) -> SparkSession:
        """The session, which is opened if it is not yet."""
        return self._session() if callable(self._session) else self._session

    def write(self, location: str, keep: int | None, version: int | None = None) -> tuple[int, bool]:
        """Write a checkpoint, and return its version and whether the clean-up of the log was left out.

        Args:
            keep: a version whose commit, and all later ones, the clean-up of the log must not remove.
            version: the version of the checkpoint. The log is not cleaned then. If None, the newest version.

        Raises:
            CheckpointFailedError: the child process reports an error, or has ended. Otherwise Spark's own errors.
        """
        file = None if keep is None else commit_file(location, keep)
        request = {"location": location, "keep": keep, "file": file, "version": version}
        answer = write_checkpoint(self.session, request) or self._request(request)
        if "error" in answer:
            raise CheckpointFailedError(str(answer["error"]))
        return int(answer["version"]), bool(answer["kept"])

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._started()
        assert child.stdin is not None  # noqa: S101  both are pipes
        assert child.stdout is not None  # noqa: S101
        timer = threading.Timer(CHILD_SECONDS, child.kill)
        timer.start()
        try:
            child.stdin.write(f"{json.dumps(request)}\n")
            child.stdin.flush()
            for line in child.stdout:
                if line.startswith(_ANSWER):
                    answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                    return answer
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        return {"error": self._exit_reason(child)}

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            if self._errors is not None:  # of a child that has ended
                self._errors.close()
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  closed at exit
            self._child = subprocess.Popen(  # noqa: S603  this very module
                [sys.executable, "-m", __name__],
                env=embedded_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                text=True, encoding="utf-8",
            )  # fmt: skip
        return self._child

    def _exit_reason(self, child: subprocess.Popen[str]) -> str:
        status = child.wait()
        assert self._errors is not None  # noqa: S101  made with the child
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"the process that writes it ended with status {status}"


def _serve() -> None:
    """Write the checkpoint that each line of the standard input requests, until the input ends."""
    # On this machine: on a cluster a second driver would wait for the cores that the server has.
    session = open_session(replace(load_settings().spark, master="local[*]"))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = write_checkpoint(session, request)
        except SPARK_ERRORS as error:
            answer = {"error": failure_of(error).summary}
        print(f"{_ANSWER}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    _serve()
