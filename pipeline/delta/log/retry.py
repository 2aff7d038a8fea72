"""Retries of a write after a conflict: the number of attempts and the waits between them.

Here belong the bounds and the arithmetic. Each error class defines whether it may be retried (`retryable`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.errors import PipelineError, SettingsError
from pipeline.settings import refuse_other_types

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Bounds of retries: the attempts in all, the first and the longest wait, and the time since the first attempt.

    The bound of a wait doubles from `first_wait_seconds` on. Each wait is random between half of its bound and the
    bound, so that two writers with a conflict don't retry at the same time.
    """

    attempts: int = 50
    first_wait_seconds: float = 0.1
    longest_wait_seconds: float = 5.0
    total_seconds: float = 600.0

    def __post_init__(self) -> None:
        refuse_other_types(self)
        if self.attempts < 1:
            raise SettingsError(setting="RetryPolicy.attempts", problem=f"got {self.attempts}", expected="1 or more")

    def wait_seconds(self, attempt: int, elapsed_seconds: float, draw: float) -> float | None:
        """The wait after this failed attempt, counted from 1. If it was the last attempt, None.

        Args:
            draw: a random number from 0 to 1.
        """
        if attempt >= self.attempts or elapsed_seconds >= self.total_seconds:
            return None
        doubled = self.first_wait_seconds * 2.0 ** min(attempt - 1, 32)
        return min(doubled, self.longest_wait_seconds) * (0.5 + draw / 2)


NO_RETRY = RetryPolicy(attempts=1)


def with_retries(attempt: Callable[[int], _T], policy: RetryPolicy, dataset: str) -> _T:
    """Call `attempt` with the attempt's number, from 1, until one succeeds, and return its result.

    Raises:
        PipelineError: the first that is not retryable, or else that of the last attempt.
    """
    started = time.monotonic()
    number = 1
    while True:
        try:
            return attempt(number)
        except PipelineError as error:
            elapsed = time.monotonic() - started
            wait = policy.wait_seconds(number, elapsed, random.random()) if error.retryable else None  # noqa: S311
            if wait is None:
                raise
            _LOG.info("%s: attempt %d failed (%s); the next is in %.2f s", dataset, number, error.message(), wait)
            time.sleep(wait)
        number += 1


def retried_until(
    act: Callable[[], _T],
    policy: RetryPolicy,
    *,
    passes: Callable[[PipelineError], bool],
    is_last: Callable[[], bool],
    wait: Callable[[PipelineError, float], None],
) -> tuple[_T, int]:
    """The result of a call that is repeated after transient errors, and the number of calls.

    Args:
        passes: whether an error is transient.
        is_last: whether the next call is the last one. It is asked before each call.
        wait: waits after an error, which it gets together with the number of seconds.

    Raises:
        PipelineError: the first that is not transient, or else that of the last call.
    """
    started, attempt = time.monotonic(), 1
    while True:
        is_last_call = is_last()
        try:
            return act(), attempt
        except PipelineError as error:
            seconds = policy.wait_seconds(attempt, time.monotonic() - started, random.random())  # noqa: S311
            if seconds is None or is_last_call or not passes(error):
                raise
            wait(error, seconds)
        attempt += 1
