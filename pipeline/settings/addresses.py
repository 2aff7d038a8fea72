"""The address of a Spark Connect server, and the check that it can reach the root."""

from __future__ import annotations

import re

from pipeline.errors import SettingsError

# The address of a Connect server with its parameters after the host. A user is not valid in it, but may be given.
_REMOTE = re.compile(
    r"(?:(?P<scheme>\w+)://)?(?:[^/;?#]*@)?(?P<host>[\w.-]+|\[[\da-fA-F:.]+\])(?P<port>:\d+)?(?:[/;?#].*)?", re.DOTALL
)


def shown_remote(remote: str) -> str:
    """The address of a Connect server without its parameters and its user, which may hold a token."""
    address = _REMOTE.fullmatch(remote)
    if address is None:
        return "sc://***" if remote.startswith("sc://") else "***"
    scheme = f"{address['scheme']}://" if address["scheme"] else ""
    return f"{scheme}{address['host']}{address['port'] or ''}"


def refuse_unreachable(root: str, remote: str | None) -> None:
    """Refuse a root on this machine for a Spark on another machine, which would use its own disk at that path."""
    if remote is None or ("://" in root and not root.startswith("file:")):
        return
    address = _REMOTE.fullmatch(remote)
    host = address["host"].strip("[]") if address is not None and address["scheme"] == "sc" else "localhost"
    if host not in ("localhost", "::1") and not host.startswith("127."):
        raise SettingsError(
            setting="PIPELINE_ROOT",
            problem=f"{root} lies on this machine, and SPARK_REMOTE runs Spark on {host}",
            expected="a root that both can reach, such as s3a://bucket/folder",
        )
