"""The requests of this process to a bucket: `[tool.pipeline.storage."s3://bucket".log]`.

Here belong the options that these requests may have apart from Spark's, and their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pipeline.errors import SettingsError
from pipeline.errors.spelling import near

_ADDRESS = re.compile(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?")
# The least and the greatest value of each number.
_NUMBERS: Mapping[str, tuple[int, int]] = {
    "connect_timeout_seconds": (1, 300), "timeout_seconds": (1, 300), "retries": (0, 10),
}  # fmt: skip
_ENDPOINT, _LOG_STORE = "endpoint", "log_store"


@dataclass(frozen=True, kw_only=True)
class LogRequests:
    """How this process reaches a bucket, in which it reads logs without Spark.

    Args:
        endpoint: the address of the same store for this process, in S3. Without it, that of the bucket.
        connect_timeout_seconds: how long a connection may take, from 1 to 300.
        timeout_seconds: how long a request with its answer may take, from 1 to 300.
        retries: how often a request is repeated, from 0 to 10, as long as the first was less than 15 s ago.
    """

    endpoint: str | None = None
    connect_timeout_seconds: int = 5
    timeout_seconds: int = 20
    retries: int = 3


def is_address(text: str) -> bool:
    """Whether a text is the address of a server, without a user."""
    try:
        return bool(_ADDRESS.fullmatch(text)) and urlsplit(text).port != 0
    except ValueError:
        return False


def read_log_requests(setting: str, table: Any, of_bucket: Iterable[str]) -> LogRequests:
    """The requests that a table in TOML describes, with values that are not checked yet.

    Args:
        of_bucket: the names of the options of the bucket, which hold for logs and data.

    Raises:
        SettingsError: it is not a table, or has an option that can't differ or is not known. No error shows a value.
    """
    if not isinstance(table, dict):
        raise SettingsError(setting=setting, problem="it is not a table", expected="a table of options")
    known = (_ENDPOINT, *_NUMBERS)
    for name in table:
        if name in known:
            continue
        close = near(name, known, most=1)
        problem, expected = "it is not a known name", close[0] if close else f"one of {', '.join(known)}"
        if name in of_bucket:
            problem = "logs and data have one account, since Spark commits with that of the data"
            expected = "it in the table of the bucket"
        elif name == _LOG_STORE:
            problem = "Delta has one log store for all buckets of a scheme"
            expected = "spark.delta.logStore.SCHEME.impl in [tool.pipeline.spark_conf]"
        raise SettingsError(setting=f"{setting} {name}", problem=problem, expected=expected)
    return LogRequests(**table)


def check_log_requests(setting: str, log: LogRequests, *, takes_endpoint: bool) -> None:
    """Check the values.

    Raises:
        SettingsError: a value is not of its type or out of its bounds, or the kind of store has no endpoint.
    """
    for name, (least, greatest) in _NUMBERS.items():
        value = getattr(log, name)
        if type(value) is not int or not least <= value <= greatest:
            expected = f"a whole number from {least} to {greatest}"
            raise SettingsError(setting=f"{setting} {name}", problem="it is out of its bounds", expected=expected)
    if log.endpoint is None:
        return
    if not takes_endpoint:
        problem = "only a bucket in S3 has an endpoint for logs"
        raise SettingsError(setting=f"{setting} {_ENDPOINT}", problem=problem, expected="none")
    if not isinstance(log.endpoint, str) or not is_address(log.endpoint):
        expected = "https://host or http://host:port, without a user"
        raise SettingsError(
            setting=f"{setting} {_ENDPOINT}", problem="it is not the address of a server", expected=expected
        )
