"""What a state folder knows of the warm server: which process, which port, and the token that its clients need.

Here belong the record, the token's file and the question whether a process is the one that is meant. Both files are
the user's own, in a folder that nobody else may look into. A record is data: a process is only taken for the server if
it began when the record says, and was started with the command line of a server of this very folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.errors import ServerError

HOST = "127.0.0.1"
MODULE = "pipeline.delta.spark.server"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name of a variable
_TOKEN_BYTES = 32
_COMMAND_LINE_SECONDS = 1.0
_RECORD = "server.json"
_TOKEN = "token"  # noqa: S105  the name of a file


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that was started; `began` is when its process did, as `beginning` says it."""

    pid: int
    began: str
    port: int
    log: str
    idle_minutes: int | None = None

    @property
    def remote(self) -> str:
        """What SPARK_REMOTE has to be."""
        return f"sc://{HOST}:{self.port}"


def arguments(folder: Path, port: int, idle_minutes: int | None) -> list[str]:
    """What a server of this folder is started with, behind the name of Python."""
    idle = [] if idle_minutes is None else ["--idle-minutes", str(idle_minutes)]
    return ["-m", MODULE, "--port", str(port), *idle, "--state", str(folder.absolute())]


def beginning(process: psutil.Process) -> str:
    """When a process began, in a form that a step of the clock does not change: the boot, and ticks since then."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        line = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return str(process.create_time())  # a kernel without /proc keeps the moment itself
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    # The program's name stands in parentheses and may hold anything; the 22nd field is the 20th behind it.
    return f"{boot} {line.rpartition(')')[2].split()[19]}"


def read_record(folder: Path) -> Server | None:
    """The server that this state folder speaks of, whether it lives or not; None if there is no record.

    Raises:
        ServerError: the folder's record can't be read.
    """
    path = folder / _RECORD
    try:
        return _remembered(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ServerError(folder=str(folder), reason=f"{path.name} can't be read ({error})") from error


def _remembered(text: str) -> Server:
    server = Server(**json.loads(text))
    if not (type(server.pid) is type(server.port) is int and isinstance(server.began, str) and server.pid > 0):
        raise ValueError("it names no process")
    return server


def process_of(folder: Path, server: Server) -> psutil.Process | None:
    """The server's process; None if it is gone, or is another than this folder's server."""
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
    """The command line of a process; empty if it has none.

    A process that was just started has none for a moment: the kernel replaces the program before it sets the
    arguments, and whoever started it may go on in between.
    """
    end = time.monotonic() + _COMMAND_LINE_SECONDS
    while not (line := process.cmdline()) and process.is_running() and time.monotonic() < end:
        time.sleep(0.001)
    return line


def remember(folder: Path, server: Server) -> None:
    """Write the record, at once."""
    temporary = folder / f"{_RECORD}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(server)), encoding="utf-8")
    os.replace(temporary, folder / _RECORD)


def forget(folder: Path) -> None:
    """Remove the record and the token."""
    for name in (_RECORD, _TOKEN):
        (folder / name).unlink(missing_ok=True)


def own(folder: Path) -> None:
    """Make the folder, which its user alone may look into."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def new_token(folder: Path) -> str:
    """A new random token, in a file that its user alone may read."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    path = folder / _TOKEN
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(token)
    return token


def token_of(folder: Path, port: int) -> str | None:
    """The token of this folder's server, if it runs at that port and the file is its user's alone."""
    with contextlib.suppress(ServerError, OSError, ValueError):
        server = read_record(folder)
        if server is None or server.port != port or process_of(folder, server) is None:
            return None
        with (folder / _TOKEN).open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
                return file.read().strip() or None
    return None
