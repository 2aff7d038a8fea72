"""The start of an embedded session's JVM, with confs that no other user can read.

pyspark passes each conf to spark-submit on its command line, which every user of a machine can read. This module passes
them in a file that only its user may read, and that is removed when the JVM is up. Spark's launcher puts the options of
the JVM on the command line of the JVM, so they are passed in an argument file of Java, which is removed with it.

At the level DEBUG, py4j logs each call with its values, and some loggers of the JVM log requests with their headers, or
the confs of a session. These levels are raised.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"  # pyspark's default for spark-submit
_PROPERTIES = "--properties-file"
_DEFAULTS = "--load-spark-defaults"
_PREFIX = "pipeline-spark-"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SPARK = "spark."
# The parts of options as Spark's launcher splits them (`CommandBuilderUtils.parseOptionString`).
_OPTION_PARTS = re.compile(
    r"""(?P<space>\s+)|(?P<plain>[^\s\\'"]+)|\\(?P<escaped>.)|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)["]""",
    re.DOTALL,
)
# The options of spark-submit that set a conf by its name.
_BY_NAME = ("--conf", "-c")
# The logger of calls into the JVM, and loggers of the JVM whose messages at DEBUG contain tokens or confs.
_CALLS = "py4j"
_TALKATIVE = (
    "org.apache.http.headers", "org.apache.http.wire", "org.apache.spark.sql.internal.SharedState",
    "org.sparkproject.connect", "software.amazon.awssdk",
)  # fmt: skip
# The confs that the JVM of this process was started with.
_GIVEN: dict[str, str] = {}
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def start_jvm(confs: Mapping[str, str]) -> frozenset[str]:
    """Start this process's JVM with these confs, unless it has one, or PYSPARK_GATEWAY_PORT names one.

    The confs override spark-defaults.conf and a properties file of the user. Confs that PYSPARK_SUBMIT_ARGS sets by
    name override them, as on the command line.

    Returns the names of the confs that the JVM has. The others must be set by calls.

    Raises:
        OSError: the confs can't be written, or a properties file of the user can't be read.
        RuntimeError: the JVM did not start.
    """
    logger = logging.getLogger(_CALLS)
    if logger.level == logging.NOTSET:  # a level that the user has set stays
        logger.setLevel(logging.INFO)
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        arguments = shlex.split(os.environ.get(SUBMIT_ARGUMENTS, _SHELL))
        _start(confs, arguments)
        overridden = _set_by_name(arguments)
        _GIVEN.clear()
        # Spark ignores names without its prefix.
        _GIVEN.update({n: text for n, text in confs.items() if n.startswith(_SPARK) and n not in overridden})
    return frozenset(name for name, text in confs.items() if _GIVEN.get(name) == text)


def quiet_loggers() -> None:
    """Raise the level of the JVM's loggers whose messages at DEBUG contain tokens or the values of confs."""
    log4j: Any = SparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    with suppress(Py4JError, TypeError):  # another library logs, and py4j has no such class
        for name in _TALKATIVE:
            if log4j.LogManager.getLogger(name).isDebugEnabled():
                log4j.core.config.Configurator.setLevel(name, log4j.Level.INFO)


def _set_by_name(arguments: list[str]) -> set[str]:
    """The names of the confs that arguments of spark-submit set."""
    pairs = [after for option, after in pairwise(arguments) if option in _BY_NAME]
    pairs += [argument.partition("=")[2] for argument in arguments if argument.startswith("--conf=")]
    return {pair.partition("=")[0] for pair in pairs}


def _start(confs: Mapping[str, str], submit_arguments: list[str]) -> None:
    with _private_folder() as folder:
        file = folder / "spark.properties"
        arguments, users_file = with_properties(submit_arguments, file)
        # Of two lines with one name the last counts. The empty line ends a last line that continues.
        users_lines = Path(users_file).read_bytes() + b"\n\n" if users_file is not None else b""
        options = java_options(confs.get(_JAVA_OPTIONS, ""))
        if options:
            _write_private(folder / "java.options", as_java_arguments(options))
            quoted = str(folder / "java.options").replace("\\", "\\\\").replace('"', '\\"')
            confs = {**confs, _JAVA_OPTIONS: f'"@{quoted}"'}
        _write_private(file, users_lines + as_properties(confs))
        with environment(**{SUBMIT_ARGUMENTS: shlex.join(arguments)}):
            SparkContext._ensure_initialized()


def with_properties(arguments: list[str], file: Path) -> tuple[list[str], str | None]:
    """Arguments of spark-submit with this properties file, and the properties file that they had, if any.

    If they had none, an option makes spark-submit read spark-defaults.conf too, which it otherwise would ignore.
    """
    others: list[str] = []
    users_file = None
    rest = iter(arguments)
    for argument in rest:
        if argument == _PROPERTIES:
            users_file = next(rest, None)
        elif argument.startswith(f"{_PROPERTIES}="):
            users_file = argument.partition("=")[2]
        else:
            others.append(argument)
    defaults = [_DEFAULTS] if users_file is None and _DEFAULTS not in others else []
    return [_PROPERTIES, str(file), *defaults, *others], users_file


def java_options(text: str) -> list[str]:
    """The options in a conf's text. If Spark's launcher would refuse the text or one of them, an empty list."""
    options: list[str] = []
    end, is_open = 0, False
    for part in _OPTION_PARTS.finditer(text):
        if part.start() != end:
            return []
        end = part.end()
        if part.lastgroup == "space":
            is_open = False
            continue
        value = part[str(part.lastgroup)]
        value = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) if part.lastgroup == "double" else value
        if is_open:
            options[-1] += value
        else:
            options.append(value)
        is_open = True
    refused = end != len(text) or any(option.startswith("-Xmx") for option in options)
    return [] if refused else options


def as_java_arguments(options: list[str]) -> bytes:
    """An argument file of Java (`java @file`) with these options."""
    quoted = (option.translate({ord(c): f"\\{_ESCAPED.get(c, c)[-1]}" for c in '\\"\n\r\t\f'}) for option in options)
    return "".join(f'"{option}"\n' for option in quoted).encode()


def _write_private(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)


def as_properties(confs: Mapping[str, str]) -> bytes:
    """A Java properties file. Java reads every name and value back unchanged."""
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
    """Set environment variables in the block; None removes one. Afterwards the old values are restored."""
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
    """A folder that only its user may read. It is removed at the end; after a kill, when the next one is made.

    The process that made it holds a lock on it.
    """
    _remove_abandoned()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with _locked(folder, fcntl.LOCK_EX):
            if not folder.exists():  # another process has removed it before it was locked
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


def _remove_abandoned() -> None:
    """Remove this user's folders whose processes have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is removed, locked by its process, or another user's
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(folder)
