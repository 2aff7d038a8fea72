"""The account and the address of a bucket: `[tool.pipeline.storage."s3://bucket"]`.

Here belong the names of the options and their form. What Hadoop and the clients call them is the subject of
`pipeline.delta.storage.options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import SettingsError
from pipeline.errors.spelling import near
from pipeline.settings.log_requests import LogRequests, check_log_requests, is_address, read_log_requests

# The extra of this package that brings the client for a scheme.
SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "abfs": "azure", "abfss": "azure", "gs": "gcs"}
_FLAGS = ("path_style", "anonymous")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": (
        "endpoint", "region", "path_style", "profile", "access_key_id", "secret_access_key", "session_token",
        "anonymous",
    ),
    "azure": ("endpoint", "account_key", "sas_token", "client_id", "client_secret", "tenant_id"),
    "gcs": ("service_account_file",),
}  # fmt: skip
# Of each line one option may be given, with all those that it goes together with.
_ACCOUNTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "s3": (("profile",), ("access_key_id", "secret_access_key"), ("anonymous",)),
    "azure": (("account_key",), ("sas_token",), ("client_id", "client_secret", "tenant_id")),
    "gcs": (("service_account_file",),),
}
# A bucket, or a container with the host of its account. A user before a bucket is refused.
_NAME = r"[^/?#@:\s]+"
_AUTHORITY: Mapping[str, str] = {"s3": _NAME, "azure": f"{_NAME}@{_NAME}", "gcs": _NAME}
_TABLE = "[tool.pipeline.storage]"
_VARIABLE = "env"
_LOG = "log"


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """The account and the address of one bucket or container. The `repr` shows only the URI.

    Args:
        uri: `s3://bucket`, `abfss://container@account.dfs.core.windows.net` or `gs://bucket`.
        options: names and values. For S3 `endpoint`, `region`, `path_style`, and an account: `profile`, a profile of
            the shared credentials file; `access_key_id` and `secret_access_key`, if need be with `session_token`; or
            `anonymous`. For Azure `endpoint`, and `account_key`, `sas_token`, or `client_id`, `client_secret` and
            `tenant_id`. For Google `service_account_file`. In TOML `{ env = "NAME" }` takes a value from a variable.
        log: how this process reaches the bucket, if in another way than Spark. In TOML the table `log` in the bucket's.
    """

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    log: LogRequests = field(default_factory=LogRequests)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def extra(self) -> str:
        """The extra of this package for the scheme."""
        return SCHEMES[self.uri.partition("://")[0]]

    @property
    def bucket(self) -> str:
        """The authority of the URI."""
        return self.uri.partition("://")[2]


def read_storage(table: Any, environ: Mapping[str, str]) -> tuple[StorageOptions, ...]:
    """The options of each bucket, from the table in TOML and the environment that its values name.

    Raises:
        SettingsError: an unknown name, a value of the wrong form, or a variable that is not set. No error shows a
            value.
    """
    if not isinstance(table, dict):
        raise SettingsError(setting=_TABLE, problem="it is not a table", expected="a table for each bucket")
    read = [_of_bucket(uri, options, environ) for uri, options in table.items()]
    buckets = [(one.extra, one.bucket) for one in read]
    for one, bucket in zip(read, buckets, strict=True):
        if buckets.count(bucket) > 1:
            raise SettingsError(setting=_named(one.uri), problem="the bucket has two tables", expected="one table")
    return tuple(read)


def _of_bucket(uri: str, table: Any, environ: Mapping[str, str]) -> StorageOptions:
    if not isinstance(table, dict):
        raise SettingsError(setting=_named(uri), problem="it is not a table", expected="a table of options")
    given = {name: value for name, value in table.items() if name != _LOG}
    known = {name for names in _OPTIONS.values() for name in names}
    return StorageOptions(
        uri=uri.rstrip("/"),
        options=tuple((name, _value(f"{_named(uri)} {name}", value, environ)) for name, value in given.items()),
        log=read_log_requests(_named(uri, _LOG), table.get(_LOG, {}), known),
    )


def _value(setting: str, value: Any, environ: Mapping[str, str]) -> str:
    """A text, a flag as `true` or `false`, or the value of the variable that `{ env = "NAME" }` names."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) and [*value] == [_VARIABLE] and isinstance(value[_VARIABLE], str):
        variable = value[_VARIABLE]
        if not environ.get(variable):
            raise SettingsError(
                setting=setting, problem=f"the variable {variable} is not set", expected=f"a value in {variable}"
            )
        return environ[variable]
    if not isinstance(value, str) or not value.strip():
        expected = 'a text that is not empty, true or false, or { env = "NAME" }'
        raise SettingsError(setting=setting, problem=f"got a value of type {type(value).__name__}", expected=expected)
    return value.strip()


def _check(storage: StorageOptions) -> None:
    scheme, _, authority = storage.uri.partition("://")
    if scheme not in SCHEMES or not re.fullmatch(_AUTHORITY[SCHEMES[scheme]], authority):
        expected = f"a scheme of {', '.join(SCHEMES)} and a bucket or container@host, as in s3://bucket"
        raise SettingsError(setting=_named(storage.uri), problem="it is not the URI of a bucket", expected=expected)
    names = [name for name, _ in storage.options]
    known = _OPTIONS[storage.extra]
    for name, value in storage.options:
        setting = f"{_named(storage.uri)} {name}"
        if not isinstance(value, str):  # constructed in code
            raise SettingsError(setting=setting, problem="it is of another type", expected="a text")
        if name not in known:
            close = near(name, known, most=1)
            expected = close[0] if close else f"one of {', '.join(known)}"
            raise SettingsError(setting=setting, problem="it is not a known name", expected=expected)
        if name in _FLAGS and value not in ("true", "false"):
            raise SettingsError(setting=setting, problem="it is neither true nor false", expected="true or false")
        if name == "endpoint" and not is_address(value):
            expected = "https://host or http://host:port, without a user"
            raise SettingsError(setting=setting, problem="it is not the address of a server", expected=expected)
    _check_account(storage, names)
    check_log_requests(_named(storage.uri, _LOG), storage.log, takes_endpoint=storage.extra == "s3")


def _check_account(storage: StorageOptions, names: list[str]) -> None:
    """An account is of one kind, and complete."""
    kinds = [kind for kind in _ACCOUNTS[storage.extra] if any(name in names for name in kind)]
    if len(kinds) > 1:
        problem = f"it has accounts of {len(kinds)} kinds: {'; '.join(' and '.join(kind) for kind in kinds)}"
        raise SettingsError(setting=_named(storage.uri), problem=problem, expected="one of them")
    missing = [name for kind in kinds for name in kind if name not in names]
    if "session_token" in names and "access_key_id" not in names:
        missing += ["access_key_id"]
    if missing:
        raise SettingsError(
            setting=_named(storage.uri), problem=f"it lacks {', '.join(missing)}", expected="a complete account"
        )


def _named(uri: str, part: str = "") -> str:
    """The table of a bucket, or a part of it, as in TOML. Of a URI that may hold a user or a signature, the scheme."""
    scheme, separator, rest = uri.partition("://")
    authority = _AUTHORITY[SCHEMES.get(scheme, "s3")]
    shown = rest if re.fullmatch(rf"{authority}(/[^?#@:\s]*)?", rest) else "..."
    scheme = scheme if scheme in SCHEMES or separator else "..."
    return f'[tool.pipeline.storage."{scheme}{separator}{shown if separator else ""}"{part and f".{part}"}]'
