"""The warm server of a project: found, or started in the background, for the commands that need Spark.

Here belongs the decision whether a command uses one. A server belongs to one project, user, working directory and set
of settings, environment and versions: its folder has the digest of all of them, so that no other one is used. It ends
by itself after `IDLE_MINUTES` without a client.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import secrets
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.delta.server.process import (
    START_SECONDS,
    address,
    answers,
    connected,
    end,
    locked,
    running,
    start_locked,
)
from pipeline.delta.spark.connect import embedded_environment
from pipeline.delta.spark.server_record import (
    HOST,
    RELEASE_SIGNAL,
    Server,
    other_servers,
    own,
    read_record,
    warm_folder_name,
)
from pipeline.delta.spark.session import open_session
from pipeline.delta.storage.options import account_confs
from pipeline.errors import ServerError, WarmServerError
from pipeline.settings import STATE_FOLDER, Settings, SparkSettings, load_settings

IDLE_MINUTES = 30
# So many servers of a user that end by themselves stay without clients. For another one the oldest is asked to end.
MOST_SERVERS = 3
# With less free memory `auto` starts no server: it would keep its memory when the command has ended.
LEAST_FREE_BYTES = 2 << 30
OLD_FOLDER_SECONDS = 7 * 24 * 3600
_KEY = "key"
_KEY_BYTES = 32
_DIGEST = 16
_PACKAGES = ("delta-first-pipeline", "pyspark", "delta-spark")
# What the environment tells Spark, its Python and the clients of a storage.
_VARIABLES = (
    "AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "HOME", "HTTPS_", "HTTP_", "JAVA_", "JDK_", "KRB5", "LANG", "LC_", "LD_",
    "NO_PROXY", "PATH", "PYSPARK_", "PYTHON", "SPARK_", "TMPDIR", "TZ", "_JAVA_",
)  # fmt: skip
# The programs whose processes are commands or runs. In another one, such as a notebook or a test, the code around the
# run may use Spark too, and needs it in its process.
_PACKAGE = Path(__file__).parents[2]
_PROGRAMS = frozenset({"pipeline", "dagster", "dagster-daemon", "dagster-graphql", "dagster-webserver", "dg"})
# Processes of another machine or container are unknown here, although they may share the folder.
_NAMESPACES = ("/proc/self/ns/pid", "/proc/self/ns/net")


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")


_sayers: list[Callable[[str], None]] = [_to_standard_error]


@contextmanager
def said_by(say: Callable[[str], None]) -> Iterator[None]:
    """In the block, pass the lines for the user to this function. Otherwise they go to standard error."""
    _sayers.append(say)
    try:
        yield
    finally:
        _sayers.remove(say)


def open_project_session(settings: SparkSettings) -> SparkSession:
    """The process's session: that of `open_session`, but on a warm server of the project if the settings allow it.

    Raises:
        WarmServerError: `warm` is `require`, and there can't be a server.
        PipelineError: as `open_session` raises.
    """
    return open_session(replace(settings, remote=warm_remote(settings) or settings.remote))


def warm_remote(settings: SparkSettings) -> str | None:
    """The address of a warm server, with its token. If none answers, one is started. If Spark runs here instead, None.

    Raises:
        WarmServerError: `warm` is `require`, and there can't be a server.
        JarsUnavailableError: and the other errors of `delta_jars`.
    """
    if settings.warm == "never" or settings.remote:
        return None
    settings, project = _ordered(settings), load_settings()
    folder = _home(project)
    reason = _forbidden(settings, _ordered(project.spark))
    if reason is None:
        try:
            folder /= _digest(folder, settings)
            server = _found(folder) or _replaced(folder, may_fail=settings.warm == "auto")
            return address(folder, server)
        except ServerError as error:
            reason = error.reason
            if settings.warm == "auto":
                _say(f"There is no warm Spark server, so Spark runs in this process: {reason}.")
    if settings.warm == "require":
        raise WarmServerError(folder=str(folder), reason=reason)
    return None


def warm_servers(project: Settings) -> list[tuple[Path, Server]]:
    """The warm servers of a project and this user that run, each with its folder."""
    found = [(folder, _recorded(folder)) for folder in warm_folders(project)]
    return [(folder, server) for folder, server in found if server is not None]


def warm_folders(project: Settings) -> list[Path]:
    """The state folders of the warm servers of a project and this user, whether they run or not."""
    return sorted(path for path in _home(project).glob("*") if path.is_dir())


def _home(project: Settings) -> Path:
    return project.project / STATE_FOLDER / warm_folder_name()


def _ordered(settings: SparkSettings) -> SparkSettings:
    return replace(settings, conf=tuple(sorted(settings.conf)))


def _forbidden(settings: SparkSettings, loaded: SparkSettings) -> str | None:
    """Why these settings have no warm server. If nothing forbids it, None."""
    if SparkContext._active_spark_context is not None:
        return "this process has a Spark session of its own"
    if settings.master != SparkSettings.master:
        return f"the master is set ({settings.master})"
    if settings.warm == "auto" and not _is_command():
        return "this process is no command"
    if settings != loaded:
        return "the settings of the session are not those of the project"
    return None


def _is_command() -> bool:
    """Whether this process is one of `_PROGRAMS`, by its script or by `python -m`, or runs a module of this package."""
    program = Path(sys.argv[0] if sys.argv else "")
    if _PACKAGE in program.parents:
        return True
    name = program.parent.name if program.name == "__main__.py" else program.name
    return name.replace("_", "-") in _PROGRAMS


def _digest(home: Path, settings: SparkSettings) -> str:
    """A digest of what a server was started with. The key keeps secrets from being guessed by it."""
    facts = {
        "packages": [_version(name) for name in _PACKAGES],
        "python": [sys.prefix, sys.version],
        "folder": str(Path.cwd()),
        "machine": [platform.node(), *(os.readlink(path) for path in _NAMESPACES if os.path.exists(path))],
        "settings": asdict(settings),
        "accounts": account_confs(settings),
        "environment": sorted(one for one in embedded_environment().items() if one[0].upper().startswith(_VARIABLES)),
    }
    text = json.dumps(facts, default=str, sort_keys=True)
    return hmac.new(_key(home), text.encode(), hashlib.sha256).hexdigest()[:_DIGEST]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _key(home: Path) -> bytes:
    """The project's key, made once.

    Raises:
        ServerError: the folder can't be written.
    """
    path = home / _KEY
    try:
        own(home)
        if not path.exists():
            whole = home / f"{_KEY}.{uuid.uuid4().hex}"
            with os.fdopen(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            try:
                with suppress(FileExistsError):
                    os.link(whole, path)
            finally:
                whole.unlink()
        return path.read_bytes()
    except OSError as error:
        raise ServerError(folder=str(home), reason=f"its folder can't be written ({error})") from error


def _recorded(folder: Path) -> Server | None:
    """The server that runs. A record that can't be read is that of no server."""
    with suppress(ServerError):
        return running(folder)
    return None


def _found(folder: Path) -> Server | None:
    server = _recorded(folder)
    return server if server is not None and answers(folder, server) else None


def _replaced(folder: Path, *, may_fail: bool) -> Server:
    """A server of this folder that was started now, or meanwhile by another command.

    Raises:
        ServerError: it can't be started, or `may_fail` and there is too little free memory.
    """
    with locked(folder, START_SECONDS):
        server = _recorded(folder)
        if server is not None and answers(folder, server):
            return server
        if server is not None:
            _abandon(folder, server)
        if may_fail and psutil.virtual_memory().available < LEAST_FREE_BYTES:
            raise ServerError(folder=str(folder), reason=f"less than {LEAST_FREE_BYTES >> 30} GiB of memory is free")
        _make_room(folder)
        _say(
            f"Starting Spark in the background for this and later commands. It ends after {IDLE_MINUTES} idle minutes, "
            "or with: pipeline spark stop"
        )
        return start_locked(folder, _free_port(), IDLE_MINUTES, lambda _: None)


def _make_room(folder: Path) -> None:
    """Ask the oldest servers of this user to end if there are many, and remove folders that were not used for long."""
    now = time.time()
    others = other_servers()
    for process in others[: max(0, len(others) - MOST_SERVERS + 1)]:
        with suppress(psutil.Error):
            if now - process.create_time() > START_SECONDS:  # before that it may not know the signal yet
                process.send_signal(RELEASE_SIGNAL)
    for other in folder.parent.iterdir():
        with suppress(OSError, ServerError):
            is_old = other.is_dir() and now - (other / "lock").stat().st_mtime > OLD_FOLDER_SECONDS
            if is_old and other != folder:
                with locked(other):
                    if read_record(other) is None:  # one of another machine would be unknown here
                        shutil.rmtree(other)


def _abandon(folder: Path, server: Server) -> None:
    """End a server that hangs. One with clients may be busy with their writes, and ends by itself after them."""
    if not connected(folder, server):
        end(folder, server, seconds=0)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def _say(line: str) -> None:
    _sayers[-1](line)
