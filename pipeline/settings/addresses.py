"""The address of a Spark Connect server, the hosts of a master, and the check that they can reach the root."""

from __future__ import annotations

import re
import socket

from pipeline.errors import SettingsError
from pipeline.settings.values import SparkSettings

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


def refuse_unreachable(root: str, spark: SparkSettings) -> None:
    """Refuse a root on this machine for a Spark on another machine, which would use its own disk at that path."""
    problem = unreachable(root, spark)
    if problem:
        expected = "a root that both can reach, such as s3a://bucket/folder"
        raise SettingsError(setting="PIPELINE_ROOT", problem=f"{root} {problem}", expected=expected)


def unreachable(location: str, spark: SparkSettings) -> str:
    """Why Spark can't reach a location that this process can: Spark runs on another machine. If it can, empty."""
    if "://" in location and not location.startswith("file:"):
        return ""
    setting, hosts = "PIPELINE_MASTER", _hosts_of(spark.master) if spark.is_cluster else []
    if spark.remote is not None:
        address = _REMOTE.fullmatch(spark.remote)
        hosts = [address["host"].strip("[]")] if address is not None and address["scheme"] == "sc" else []
        setting = "SPARK_REMOTE"
    elsewhere = [host for host in hosts if not _is_this_machine(host)]
    return f"lies on this machine, and {setting} runs Spark on {elsewhere[0]}" if elsewhere else ""


def _hosts_of(master: str) -> list[str]:
    """The hosts that a cluster's master names. `yarn`, whose hosts are in Hadoop's files, stands for itself."""
    if master.startswith("local-cluster["):
        return []
    addresses = master.removeprefix("k8s://").rpartition("://")[2].partition("/")[0].split(",")
    return [address.partition("]")[0][1:] if address[:1] == "[" else address.partition(":")[0] for address in addresses]


def _is_this_machine(host: str) -> bool:
    """Whether a host is this machine, by its name or an address. Names are not resolved."""
    host, name = host.lower(), socket.gethostname().lower()
    if host in ("localhost", "::1", name, name.partition(".")[0]) or host.startswith((f"{name}.", "127.")):
        return True
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, flags=socket.AI_NUMERICHOST)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)  # the system refuses the addresses of others
    except OSError:
        return False
    return True
