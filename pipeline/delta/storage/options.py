"""The account of each bucket for the file systems of this process, taken from the confs that Spark gets.

Here belongs the reading of Hadoop's confs for S3, Azure and GCS. What they lack comes from the environment, as in
Hadoop's own chain of credentials. Like environment variables, the confs hold for the whole process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HADOOP = "spark.hadoop."
_S3A, _AZURE, _GCS = "fs.s3a.", "fs.azure.", "fs.gs."
_DEFAULT_REGION = "us-east-1"
# The fields of a key file of Google that the client requires.
_KEY_FIELDS = ("client_email", "private_key", "private_key_id")
# Confs of Hadoop by name, without Spark's prefix.
_CONFS: dict[str, str] = {}


@dataclass(frozen=True)
class _Account:
    """A provider of credentials that do not expire."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        return {
            "access_key_id": self.access_key, "secret_access_key": self.secret_key, "token": self.token,
            "expires_at": None,
        }  # fmt: skip


def use_confs(confs: Mapping[str, str]) -> None:
    """Use the accounts in these Spark confs for the file systems of this process that are opened from now on."""
    named = {name.removeprefix(_HADOOP): text for name, text in confs.items() if name.startswith(_HADOOP)}
    _CONFS.update({name: text for name, text in named.items() if name.startswith((_S3A, _AZURE, _GCS))})


def s3_options(bucket: str) -> dict[str, Any]:
    """The client's options for a bucket: its own confs before the general ones, as Hadoop reads them."""

    def conf(name: str) -> str | None:
        return _CONFS.get(f"{_S3A}bucket.{bucket}.{name}") or _CONFS.get(f"{_S3A}{name}") or None

    endpoint = conf("endpoint")
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"{'http' if conf('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    environ = os.environ.get
    region = conf("endpoint.region") or environ("AWS_REGION") or environ("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    options: dict[str, Any] = {"region": region} | ({"endpoint": endpoint} if endpoint else {})
    key = conf("access.key")
    if key is not None:
        # As single options, the client would join the keys with a session token of the environment.
        options["credential_provider"] = _Account(key, conf("secret.key") or "", conf("session.token"))
    return options


def azure_options(authority: str) -> dict[str, Any]:
    """The client's options for a container, from an authority as `container@account.dfs.core.windows.net`."""
    host = authority.partition("@")[2]
    account = host.partition(".")[0]
    options = {"account_name": account, "account_key": _CONFS.get(f"{_AZURE}account.key.{host}")}
    emulator = _CONFS.get(f"{_AZURE}abfs.endpoint")
    if emulator is not None:
        scheme = "http" if _CONFS.get(f"{_AZURE}always.use.https") == "false" else "https"
        options["endpoint"] = f"{scheme}://{emulator}/{account}"
    return {name: value for name, value in options.items() if value}


def gcs_options(bucket: str) -> dict[str, Any]:  # noqa: ARG001  same signature as the others
    """The client's options for a bucket. Without a key file, the account comes from the environment or the machine."""
    endpoint = _CONFS.get(f"{_GCS}storage.root.url")
    if endpoint is not None and _CONFS.get(f"{_GCS}auth.type") == "UNAUTHENTICATED":
        # The client takes an endpoint only as part of a key. This one has no account.
        key = {"gcs_base_url": endpoint.rstrip("/"), "disable_oauth": True}
        return {"service_account_key": json.dumps(key | dict.fromkeys(_KEY_FIELDS, ""))}
    file = _CONFS.get(f"{_GCS}auth.service.account.json.keyfile")
    return {} if file is None else {"service_account_path": file}
