"""Sessions whose statements reach Delta, or do not, and whose answers never come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pipeline.delta.write import write as write_module


class LosesAnswers:
    """A session that raises in place of the answer to a statement that writes."""

    def __init__(
        self, session: SparkSession, *, arrives: bool, only: str = "", then: Callable[[], object] | None = None
    ) -> None:
        self.session = session
        self.then = then
        self.arrives = arrives
        self.only = only

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def sql(self, statement: str) -> Any:
        if statement.startswith(("INSERT", "MERGE")) and self.only in statement:
            if self.arrives:
                answer = self.session.sql(statement)
                answer.collect()
                if self.then is not None:
                    self.then()
                    return answer
            raise PySparkRuntimeError("the answer was lost")
        return self.session.sql(statement)


def act_after_writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """From now on each write is followed by a call before its commit is read from the log."""
    _replace(monkeypatch, arrives=True, then=act)


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, arrives: bool, only: str = "") -> None:
    """From now on every write whose statement holds `only` loses the answer to it."""
    _replace(monkeypatch, arrives=arrives, only=only)


def _replace(monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    real = write_module.private_session

    @contextmanager
    def losing(session: SparkSession, confs: Mapping[str, str]) -> Iterator[Any]:
        with real(session, confs) as clone:
            yield LosesAnswers(clone, **how)

    monkeypatch.setattr(write_module, "private_session", losing)
