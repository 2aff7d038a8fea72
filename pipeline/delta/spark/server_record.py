"""The record of the background server in its state folder: the process, the port, and the token that its clients need.

Here belong the record, the token's file and the check whether a process is the recorded one. Only their user may read
the folder and both files. A process is the server only if it began at the recorded time and has the command line of a
server of this very folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.delta.storage.local_files import write_file
from pipeline.errors import ServerError

HOST = "127.0.0.1"
MODULE = "pipeline.delta.server.serve"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of a variable
# It asks a server that ends by itself to end now, if it has no client.
RELEASE_SIGNAL = signal.SIGUSR1
_TOKEN_BYTES = 32
_COMMAND_LINE_SECONDS = 1.0
_RECORD = "server.json"
_TOKEN = "token"  # noqa: S105  the name of a file
_READY = "ready"
_IDLE = "--idle-minutes"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that was started. `began` is the time at which its process began, in the form of `beginning`."""

    pid: int
    began: str
    port: int
    log: str
    idle_minutes: int | None = None

    @property
    def remote(self) -> str:
        """The value for SPARK_REMOTE."""
        return f"sc://{HOST}:{self.port}"


def arguments(folder: Path, port: int, idle_minutes: int | None) -> list[str]:
    """The arguments that Python gets for a server of this folder."""
    idle = [] if idle_minutes is None else [_IDLE, str(idle_minutes)]
    return ["-m", MODULE, "--port", str(port), *idle, "--state", str(folder.absolute())]


def warm_folder_name() -> str:
    """The name of the folder in which a project keeps the folders of this user's warm servers."""
    return f"warm-{os.geteuid()}"


def other_servers() -> list[psutil.Process]:
    """The processes of this user's warm servers, of any project, the oldest first."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            is_warm = line[1:3] == ["-m", MODULE] and Path(line[-1]).parent.name == warm_folder_name()
            if is_warm and process.uids().effective == os.geteuid():
                found.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(found)]


def beginning(process: psutil.Process) -> str:
    """The time at which a process began, as boot and ticks since then, so that a clock change does not change it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        line = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return str(process.create_time())  # a kernel without /proc
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    # The program's name is in parentheses and may contain any character. The 22nd field is the 20th after it.
    return f"{boot} {line.rpartition(')')[2].split()[19]}"


def read_record(folder: Path) -> Server | None:
    """The server that this state folder records, whether it runs or not. If there is no record, None.

    Raises:
        ServerError: the folder's record can't be read.
    """
    path = folder / _RECORD
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ServerError(folder=str(folder), reason=f"{path.name} can't be read ({error})") from error


def _parsed(text: str) -> Server:
    server = Server(**json.loads(text))
    if not (type(server.pid) is type(server.port) is int and isinstance(server.began, str) and server.pid > 0):
        raise ValueError("it names no process")
    return server


def process_of(folder: Path, server: Server) -> psutil.Process | None:
    """The server's process. If it is gone, or the process is not this folder's server, None."""
    try:
        process = psutil.Process(server.pid)
        same = (
            beginning(process) == server.began
            and _command_line(process)[1:] == arguments(folder, server.port, server.idle_minutes)
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return None
    return process if same else None


def _command_line(process: psutil.Process) -> list[str]:
    """The command line of a process. If it has none, empty.

    A new process has none for a moment: the kernel replaces the program before it sets the arguments, and the parent
    process may continue in between.
    """
    end = time.monotonic() + _COMMAND_LINE_SECONDS
    while not (line := process.cmdline()) and process.is_running() and time.monotonic() < end:
        time.sleep(0.001)
    return line


def remember(folder: Path, server: Server) -> None:
    """Write the record atomically."""
    write_file(folder / _RECORD, json.dumps(asdict(server)).encode())


def forget(folder: Path) -> None:
    """Remove the record, the token and the sign of a server that is ready."""
    for name in (_RECORD, _TOKEN, _READY):
        (folder / name).unlink(missing_ok=True)


def set_ready(folder: Path, pid: int) -> None:
    """Write that the server with this process is ready: its session is complete, and its executors are checked."""
    write_file(folder / _READY, str(pid).encode())


def is_ready(folder: Path, pid: int) -> bool:
    """Whether the server with this process has written that it is ready."""
    with contextlib.suppress(OSError):
        return (folder / _READY).read_text(encoding="ascii", errors="replace") == str(pid)
    return False


def own(folder: Path) -> None:
    """Create the folder; only its user may read it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def new_token(folder: Path) -> str:
    """Make a random token and write it to a file that only its user may read."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    path = folder / _TOKEN
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token)
    return token


def token_of(folder: Path, port: int) -> str | None:
    """The token of this folder's server. If it does not run at that port, or others may read the file, None."""
    with contextlib.suppress(ServerError, OSError, ValueError):
        server = read_record(folder)
        if server is None or server.port != port or process_of(folder, server) is None:
            return None
        with (folder / _TOKEN).open(encoding="ascii") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
                return file.read().strip() or None
    return None
