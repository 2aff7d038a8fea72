"""The reading of the environment and of `[tool.pipeline]`: names, defaults and precedence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import SettingsError
from pipeline.errors.spelling import near
from pipeline.settings import readers
from pipeline.settings.addresses import refuse_unreachable
from pipeline.settings.storage import read_storage
from pipeline.settings.values import LOCAL_FRAME_MAX_BYTES, STATE_FOLDER, Settings, SparkSettings, WarmMode

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "PIPELINE_"


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` with a `pyproject.toml`. If there is none, `start` itself."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return start


def load_settings(environ: Mapping[str, str] | None = None, start: Path | None = None) -> Settings:
    """Read the settings once.

    Args:
        environ: the variables to read. If None, the process environment.
        start: the folder at or below the project. If None, the working directory.

    Raises:
        SettingsError: an unknown name, or a value of the wrong form.
    """
    environ = os.environ if environ is None else environ
    project = find_project(Path.cwd() if start is None else start)
    table = _tool(project, "pipeline")
    values = _project_values(table) | _environment_values(environ)
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    cache_home = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    root = readers.uri("root", values.get("root", f"{STATE_FOLDER}/tables"), project, home)
    landing = readers.uri("landing", values.get("landing", f"{STATE_FOLDER}/landing"), project, home)
    storage = read_storage(table.get(_STORAGE, {}), environ)
    uris = (root, landing, *(one.uri for one in storage))
    spark = SparkSettings(
        master=values.get("master", "local[*]"),
        remote=environ.get("SPARK_REMOTE") or None,
        warm=_warm(values, environ),
        driver_memory=values.get("driver_memory", "2g"),
        cache=readers.absolute_path(values.get("cache", str(cache_home / "delta-first-pipeline")), project, home),
        maven_repository=values.get("maven_repository"),
        schemes=tuple(dict.fromkeys(uri.partition("://")[0] for uri in uris if "://" in uri)),
        conf=values.get("spark_conf", ()),
        storage=storage,
    )
    refuse_unreachable(root, spark)
    return Settings(
        project=project,
        root=root,
        landing=landing,
        datasets=values.get("datasets"),
        catalog=values.get("catalog"),
        vacuum=values.get("vacuum", "dry"),
        running=values.get("running", ()),
        local_frame_max_bytes=values.get("local_frame_max_bytes", LOCAL_FRAME_MAX_BYTES),
        spark=spark,
    )


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "root": readers.required_text,
    "landing": readers.required_text,
    "datasets": readers.reference,
    "catalog": readers.required_text,
    "vacuum": readers.vacuum_mode,
    "running": readers.names,
    "local_frame_max_bytes": readers.byte_count,
    "master": readers.required_text,
    "warm": readers.warm_mode,
    "driver_memory": readers.memory,
    "cache": readers.required_text,
    "maven_repository": readers.repository,
    "spark_conf": readers.spark_conf,
}
_ONLY_IN_PROJECT = frozenset({"spark_conf"})
# It is read with the environment, which its values may name.
_STORAGE = "storage"


def _warm(values: Mapping[str, Any], environ: Mapping[str, str]) -> WarmMode:
    warm: WarmMode = values.get("warm", SparkSettings.warm)
    is_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    forbids = is_ci or environ.get("SPARK_REMOTE") or "master" in values
    return "never" if warm == "auto" and forbids else warm


def setting_names() -> tuple[str, ...]:
    """Every environment variable that is read, in the order of the reference."""
    return (*(PREFIX + name.upper() for name in _READERS if name not in _ONLY_IN_PROJECT), "SPARK_REMOTE")


def _unknown(setting: str, name: str, known: list[str]) -> SettingsError:
    close = near(name, known, most=1)
    expected = f"{close[0]} or another that `pipeline docs reference` lists" if close else f"one of {', '.join(known)}"
    return SettingsError(setting=setting, problem="it is not a known name", expected=expected)


def _environment_values(environ: Mapping[str, str]) -> dict[str, Any]:
    names = [name for name in _READERS if name not in _ONLY_IN_PROJECT]
    values = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in names or variable != variable.upper():
            raise _unknown(variable, variable, [PREFIX + n.upper() for n in names])
        if value:
            values[name] = _READERS[name](variable, value)
    return values


def _project_values(table: Mapping[str, Any]) -> dict[str, Any]:
    known = [*_READERS, _STORAGE]
    for name in table:
        if name not in known:
            raise _unknown(f"[tool.pipeline] {name}", name, known)
    return {name: read(f"[tool.pipeline] {name}", table[name]) for name, read in _READERS.items() if name in table}


def dagster_module(folder: Path) -> str | None:
    """The module that `[tool.dagster]` of the folder's own `pyproject.toml` names. If it names none, None."""
    module = _tool(folder, "dagster").get("module_name")
    return module if isinstance(module, str) else None


def _tool(folder: Path, name: str) -> dict[str, Any]:
    """A tool's table in the folder's `pyproject.toml`. If there is none, empty."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(setting=str(path), problem=str(error), expected="valid TOML in UTF-8") from error
    tool = document.get("tool", {})
    table = tool.get(name, {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise SettingsError(setting=f"[tool.{name}]", problem="it is not a table", expected="a table of settings")
    return table
