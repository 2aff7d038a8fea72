"""The start of the JVM of an embedded session, with confs that nobody else can see.

pyspark gives spark-submit each conf on its command line, which every user of a machine can read. Here they go by a file
that its user alone may read, and that is gone when the JVM is up. Options of the JVM itself stand on its command line
whatever is done here: Spark's launcher puts them there.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark import SparkContext

SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"  # what pyspark has spark-submit run if it is told nothing else
_PROPERTIES = "--properties-file"
_DEFAULTS = "--load-spark-defaults"
_PREFIX = "pipeline-spark-"
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def start_jvm(confs: Mapping[str, str]) -> None:
    """Start this process's JVM with these confs; does nothing if it has one, or is to use one that is named to it.

    They rank as they would on the command line: before spark-defaults.conf and a properties file of the user's, and
    behind what PYSPARK_SUBMIT_ARGS says by name.

    Raises:
        OSError: the confs can't be written, or a properties file of the user's can't be read.
        RuntimeError: the JVM did not start.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    given = shlex.split(os.environ.get(SUBMIT_ARGUMENTS, _SHELL))
    with _private_folder() as folder:
        file = folder / "spark.properties"
        arguments, theirs = with_properties(given, file)
        # The last of two lines with one name counts; an empty line ends one that goes on.
        before = Path(theirs).read_bytes() + b"\n\n" if theirs is not None else b""
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
            written.write(before + as_properties(confs))
        with environment(**{SUBMIT_ARGUMENTS: shlex.join(arguments)}):
            SparkContext._ensure_initialized()


def with_properties(arguments: list[str], file: Path) -> tuple[list[str], str | None]:
    """Arguments of spark-submit with this properties file, and the one that they had, if any.

    Without one of the user's, spark-submit is told to read spark-defaults.conf, which it else would leave aside.
    """
    kept: list[str] = []
    theirs = None
    rest = iter(arguments)
    for argument in rest:
        if argument == _PROPERTIES:
            theirs = next(rest, None)
        elif argument.startswith(f"{_PROPERTIES}="):
            theirs = argument.partition("=")[2]
        else:
            kept.append(argument)
    defaults = [_DEFAULTS] if theirs is None and _DEFAULTS not in kept else []
    return [_PROPERTIES, str(file), *defaults, *kept], theirs


def as_properties(confs: Mapping[str, str]) -> bytes:
    """A Java properties file that gives back every name and value as it is."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in confs.items()).encode("ascii")


def _escaped(text: str) -> str:
    return "".join(_escaped_character(character) for character in text)


def _escaped_character(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character.isalnum() and character.isascii():
        return character
    if character.isprintable() and character.isascii():
        return f"\\{character}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Environment variables for the time in which the JVM is launched."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_environment(values)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that its user alone may look into; gone at the end, or after a kill when the next one is made.

    Whoever has made it holds a lock on it.
    """
    _clear()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with _locked(folder, fcntl.LOCK_EX):
            if not folder.exists():  # another process has cleared it before it was locked
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


def _clear() -> None:
    """Remove the folders of this user whose makers are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # gone, held by its maker, or somebody else's
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(folder)
