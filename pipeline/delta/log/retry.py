"""How often, and after which waits, a write that met another commit is tried again.

Here belong the bounds and the arithmetic. What may be tried again is said by the errors themselves (`retryable`).
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
    """Bounds on trying again: attempts in all, the first and the longest wait, and the time from the first attempt on.

    Waits double from `first_wait_seconds` on; each is drawn between half of that and all of it, so that writers that
    met once don't meet again.
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
        """How long to wait after this attempt, counted from 1, has failed; None where it was the last.

        Args:
            draw: a random number from 0 to 1.
        """
        if attempt >= self.attempts or elapsed_seconds >= self.total_seconds:
            return None
        doubled = self.first_wait_seconds * 2.0 ** min(attempt - 1, 32)
        return min(doubled, self.longest_wait_seconds) * (0.5 + draw / 2)


NO_RETRY = RetryPolicy(attempts=1)


def with_retries(attempt: Callable[[int], _T], policy: RetryPolicy, dataset: str) -> _T:
    """What the first attempt that succeeds returns; each is told its number, from 1.

    Raises:
        PipelineError: one that is not retryable at once, or else that of the last attempt.
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
            _LOG.info("%s: attempt %d failed (%s), the next in %.2f s", dataset, number, error.message(), wait)
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
    """What comes of a call that is repeated after errors that may pass, and the number of calls.

    Args:
        passes: whether an error may pass.
        is_last: whether the call that begins is to be the last.
        wait: is told the error, and for how many seconds to wait.

    Raises:
        PipelineError: one that does not pass, or else that of the last call.
    """
    started, attempt = time.monotonic(), 1
    while True:
        is_over = is_last()
        try:
            return act(), attempt
        except PipelineError as error:
            seconds = policy.wait_seconds(attempt, time.monotonic() - started, random.random())  # noqa: S311
            if seconds is None or is_over or not passes(error):
                raise
            wait(error, seconds)
        attempt += 1
