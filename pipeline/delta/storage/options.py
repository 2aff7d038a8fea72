"""The account of each bucket for the file systems of this process, taken from the confs that Spark gets.

Here belongs the reading of Hadoop's confs for S3. What they lack comes from the environment, as Hadoop's own chain of
credentials takes it. Credentials belong to the process, as environment variables do: so they are kept here, by bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_HADOOP = "spark.hadoop."
_S3A = "fs.s3a."
# The confs of Spark that name an account, newest last.
_CONFS: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class S3Options:
    """How a bucket is reached. What is None comes from the environment."""

    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False

    def __repr__(self) -> str:
        return f"S3Options(endpoint={self.endpoint!r}, region={self.region!r})"


def use_confs(confs: Mapping[str, str]) -> None:
    """Use the accounts in these Spark confs for all file systems of this process."""
    _CONFS.update({name.removeprefix(_HADOOP): text for name, text in confs.items() if _S3A in name})


def s3_options(bucket: str) -> S3Options:
    """The options of a bucket: its own confs before the general ones, as Hadoop reads them."""

    def conf(name: str) -> str | None:
        return _CONFS.get(f"{_S3A}bucket.{bucket}.{name}") or _CONFS.get(f"{_S3A}{name}") or None

    return S3Options(
        access_key=conf("access.key"), secret_key=conf("secret.key"), session_token=conf("session.token"),
        endpoint=conf("endpoint"), region=conf("endpoint.region"), path_style=conf("path.style.access") == "true",
    )  # fmt: skip
