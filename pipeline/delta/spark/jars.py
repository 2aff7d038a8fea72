"""The jars of Delta and of object stores in the cache folder, into which they are downloaded once.

A jar is used only if it is the published file, whoever put it there. Each start verifies that. Complete jars are also
used from a read-only folder, and without a network.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

from pipeline.delta.storage.download import PART, Published, fetch, shown_url
from pipeline.delta.storage.published_jars import jars_for
from pipeline.errors import CacheFolderError, JarsUnavailableError, SparkUnavailableError
from pipeline.settings import SparkSettings

# The jar that is part of this package: the log stores for S3 and for disks, and the reader of plans.
OWN_JAR = Path(str(files("pipeline.delta.spark").joinpath("jvm").joinpath("pipeline.jar")))
FETCH_SECONDS = 900.0
POLL_SECONDS = 0.1
LOG_EVERY_SECONDS = 2.0
_LOG = logging.getLogger(__name__)
_LOCK = "lock"


def jar_path(coordinate: str, cache: Path) -> Path:
    """The path of a Maven coordinate's jar in the cache."""
    organisation, name, version = _parts(coordinate)
    return cache / "jars" / f"{organisation}_{name}-{'-'.join(version)}.jar"


def jar_url(coordinate: str, repository: str) -> str:
    """The address of a Maven coordinate's jar in a repository."""
    organisation, name, version = _parts(coordinate)
    folder = f"{organisation.replace('.', '/')}/{name}/{version[0]}"
    return f"{repository.rstrip('/')}/{folder}/{name}-{'-'.join(version)}.jar"


def _parts(coordinate: str) -> tuple[str, str, list[str]]:
    """The organisation, the name, and the version with the classifier if the coordinate has one."""
    organisation, name, *version = coordinate.split(":")
    return organisation, name, version


def delta_jars(settings: SparkSettings) -> list[Path]:
    """Delta's jars in the cache folder, and our own. Missing or damaged ones are downloaded first, which is logged.

    Raises:
        JarsUnavailableError: they can't be downloaded now.
        JarRefusedError: the repository, or a proxy before it, refuses them.
        WrongJarError: a received file is not the published one.
        CacheFolderError: the folder can't be read or written, or is full.
    """
    published = jars_for(settings.schemes)
    if _missing(published, settings.cache):
        ends = time.monotonic() + FETCH_SECONDS
        repository = settings.maven_repository or public_repository()
        with _locked(settings.cache / "jars", repository, ends):
            _fetch_all(_missing(published, settings.cache), settings.cache, repository, ends)
    return [*(jar_path(coordinate, settings.cache) for coordinate in published), OWN_JAR]


def _missing(published: Mapping[str, Published], cache: Path) -> dict[str, Published]:
    """The jars whose published file is not in the cache."""
    try:
        return {name: jar for name, jar in published.items() if not _holds(jar_path(name, cache), jar)}
    except OSError as error:
        raise _unusable(cache / "jars", error) from error


def _holds(path: Path, jar: Published) -> bool:
    return path.is_file() and jar.is_at(path)


def _fetch_all(missing: Mapping[str, Published], cache: Path, repository: str, ends: float) -> None:
    if missing:
        megabytes = sum(jar.size for jar in missing.values()) / 1e6
        _LOG.info("Fetching %d jars of Delta, %.1f MB, from %s", len(missing), megabytes, shown_url(repository))
    for coordinate, published in missing.items():
        target = jar_path(coordinate, cache)
        fetch(jar_url(coordinate, repository), target, published, ends, _progress_log(target.name, published.size))
        _LOG.info("%s: %d kB, checked", target.name, published.size // 1000)


def _progress_log(name: str, size: int) -> Callable[[int], None]:
    """A function that gets the number of received bytes, and logs it every few seconds."""
    logged = time.monotonic()

    def log(count: int) -> None:
        nonlocal logged
        if time.monotonic() - logged >= LOG_EVERY_SECONDS:
            logged = time.monotonic()
            _LOG.info("%s: %d of %d kB", name, count // 1000, size // 1000)

    return log


@contextmanager
def _locked(folder: Path, repository: str, ends: float) -> Iterator[None]:
    """One process at a time downloads. The lock ends with its process. Partial files of dead processes are removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("a")
    except OSError as error:
        raise _unusable(folder, error) from error
    with lock:
        while not _is_locked(lock.fileno(), folder):
            if time.monotonic() > ends:
                reason = "another process that downloads them does not end"
                raise JarsUnavailableError(
                    jar="Delta's jars", cache=str(folder), url=shown_url(repository), reason=reason
                )
            time.sleep(POLL_SECONDS)
        try:
            for partial in folder.glob(f"*{PART}"):
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error
        yield


def _is_locked(handle: int, folder: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(folder, error) from error
    return True


def _unusable(folder: Path, error: OSError) -> CacheFolderError:
    return CacheFolderError(folder=str(folder), reason=error.strerror or str(error))


@cache
def public_repository() -> str:
    """The default repository of Spark itself; its Ivy contains the address.

    Raises:
        SparkUnavailableError: pyspark has no such Ivy.
    """
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.submodule_search_locations[0]) / "jars" if spec and spec.submodule_search_locations else Path()
    for path in sorted(folder.glob("ivy-*.jar")):
        with zipfile.ZipFile(path) as jar:
            constants = jar.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
        address = re.search(rb"https://[\w.-]+/maven2/", constants)
        if address is not None:
            return address[0].decode("ascii")
    raise SparkUnavailableError(where=os.fspath(folder), reason="pyspark is installed without its jars")
