"""Trying again: bounded by attempts and by time, with waits that grow and are drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.log import retry as retry_module
from pipeline.delta.log.retry import RetryPolicy, retried_until, with_retries
from pipeline.errors import (
    CommitConflictError,
    JournalError,
    NullViolationError,
    PipelineError,
    SettingsError,
    StorageError,
)

CONFLICT = CommitConflictError(dataset="d", location="/d", condition="DELTA_CONCURRENT_APPEND")
REFUSAL = NullViolationError(dataset="d", counts={"id": 1})


class Attempts:
    """Fails so many times, then returns its number."""

    def __init__(self, failures: int, error: PipelineError) -> None:
        self.failures, self.error, self.seen = failures, error, list[int]()

    def __call__(self, number: int) -> int:
        self.seen.append(number)
        if len(self.seen) <= self.failures:
            raise self.error
        return number


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that are asked for; the clock moves by them."""
    asked: list[float] = []
    monkeypatch.setattr(retry_module.time, "sleep", asked.append)
    monkeypatch.setattr(retry_module.time, "monotonic", lambda: sum(asked))
    return asked


def test_an_attempt_that_succeeds_is_not_repeated(waits: list[float]) -> None:
    attempts = Attempts(0, CONFLICT)
    assert (with_retries(attempts, RetryPolicy(), "d"), attempts.seen, waits) == (1, [1], [])


def test_conflicts_are_tried_again_until_one_attempt_succeeds(waits: list[float]) -> None:
    attempts = Attempts(3, CONFLICT)
    assert with_retries(attempts, RetryPolicy(), "d") == 4
    assert (attempts.seen, len(waits)) == ([1, 2, 3, 4], 3)


def test_what_can_t_change_is_not_tried_again(waits: list[float]) -> None:
    attempts = Attempts(1, REFUSAL)
    with pytest.raises(NullViolationError):
        with_retries(attempts, RetryPolicy(), "d")
    assert (attempts.seen, waits) == ([1], [])


def test_the_last_conflict_is_told_when_the_attempts_are_used_up(waits: list[float]) -> None:
    attempts = Attempts(99, CONFLICT)
    with pytest.raises(CommitConflictError):
        with_retries(attempts, RetryPolicy(attempts=4), "d")
    assert (attempts.seen, len(waits)) == ([1, 2, 3, 4], 3)


def test_no_attempt_begins_after_the_time_is_over(waits: list[float]) -> None:
    attempts = Attempts(10_000, CONFLICT)
    policy = RetryPolicy(attempts=10_000, first_wait_seconds=1, longest_wait_seconds=1, total_seconds=10)
    with pytest.raises(CommitConflictError):
        with_retries(attempts, policy, "d")
    assert 10 <= sum(waits) <= 11


@given(attempt=st.integers(1, 49), draw=st.floats(0, 1))
def test_a_wait_is_between_half_and_all_of_the_doubled_one_and_never_above_the_longest(
    attempt: int, draw: float
) -> None:
    policy = RetryPolicy()
    wait = policy.wait_seconds(attempt, 0.0, draw)
    assert wait is not None
    doubled = min(policy.first_wait_seconds * 2.0 ** (attempt - 1), policy.longest_wait_seconds)
    assert doubled / 2 <= wait <= doubled


def test_an_error_that_says_nothing_is_not_retryable() -> None:
    assert not PipelineError.retryable


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"attempts": "3"}, "attempts"), ({"attempts": 0}, "attempts"), ({"total_seconds": None}, "total_seconds")],
)
def test_bounds_of_another_type_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RetryPolicy(**arguments)
    assert caught.value.setting == f"RetryPolicy.{named}"


def test_a_call_is_repeated_while_its_error_may_pass_and_once_more_when_it_is_to_end() -> None:
    calls, waits = list[int](), list[float]()

    def act() -> str:
        calls.append(len(calls))
        if len(calls) < 4:
            raise StorageError(dataset="d", location="/d", reason="full")
        return "done"

    def outlast(*, ends_at: int) -> tuple[str, int]:
        calls.clear()
        return retried_until(
            act, RetryPolicy(), passes=lambda error: error.may_pass, is_last=lambda: len(calls) >= ends_at,
            wait=lambda _, seconds: waits.append(seconds),
        )  # fmt: skip

    assert outlast(ends_at=9) == ("done", 4)
    assert len(waits) == 3
    with pytest.raises(StorageError):
        outlast(ends_at=1)
    assert calls == [0, 1]


def test_an_error_that_does_not_pass_is_not_waited_for() -> None:
    def act() -> None:
        raise JournalError(dataset="d", path="/j", reason="it is cut off")

    with pytest.raises(JournalError):
        retried_until(
            act, RetryPolicy(), passes=lambda error: error.may_pass, is_last=lambda: False,
            wait=lambda *_: pytest.fail("waited"),
        )  # fmt: skip
