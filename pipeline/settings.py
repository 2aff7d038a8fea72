"""Settings: the environment and `[tool.pipeline]` of the project, read once, frozen, and passed down.

Here belong the names, defaults, precedence and validation of an operator's settings. Declarations of datasets do not
belong here, nor any secret: storage credentials come from the usual sources of the storage clients.

The environment wins over `pyproject.toml`, and that wins over the defaults. A value is never merged. An unknown name is
an error, so that a misspelt setting is never ignored.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pipeline.errors import SettingsError
from pipeline.errors.argument_types import type_problems
from pipeline.errors.spelling import near

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VacuumMode = Literal["dry", "apply"]

PREFIX = "PIPELINE_"
STATE_FOLDER = ".pipeline"
LOCAL_FRAME_MAX_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Where and how Spark runs. The `repr` leaves out fields that may hold a secret.

    Args:
        master: the Spark master of an embedded Spark. A cluster's master needs a root that the cluster reaches.
        remote: a Spark Connect server with Delta, as `sc://host:port`. If it is set, no Spark starts here and `master`
            is not used.
        driver_memory: the memory of an embedded Spark.
        cache: the folder of Delta's jars and of start scripts for Java.
        maven_repository: the Maven repository that the jars come from, if not the public one.
        schemes: the schemes of the URIs that Spark reads and writes. They are those of `root` and `landing`, and can't
            be set.
        conf: further Spark confs, a table of names and values; they win over the confs that the pipeline sets.
    """

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    driver_memory: str = "2g"
    cache: Path = field(default_factory=lambda: Path.home() / ".cache" / "delta-first-pipeline")
    maven_repository: str | None = field(default=None, repr=False)
    schemes: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        refuse_other_types(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything an operator can set.

    Args:
        project: the folder of the project. It is detected and can't be set.
        root: the URI or folder under which the tables lie. Spark resolves it, so it must be reachable where Spark runs.
        landing: the URI or folder in which input files arrive.
        datasets: the collection of declared datasets, as `package.module:name`.
        catalog: the catalog, or catalog and schema with a dot between them, in which the tables of datasets without a
            `table_name` are registered. Without it, only datasets with a `table_name` are registered.
        vacuum: whether the schedule `vacuum_weekly` lists files (`dry`) or removes them (`apply`).
        running: the schedules and sensors that run without being switched on in Dagster. In the environment, names
            with commas between them.
        local_frame_max_bytes: how much memory of the run's own process one input in pandas, polars or pyarrow may take.
        spark: where and how Spark runs.
    """

    project: Path
    root: str
    landing: str
    datasets: str | None = None
    catalog: str | None = None
    vacuum: VacuumMode = "dry"
    running: tuple[str, ...] = ()
    local_frame_max_bytes: int = LOCAL_FRAME_MAX_BYTES
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        refuse_other_types(self)


def refuse_other_types(settings: Any) -> None:
    """Check the types of a dataclass of settings that is constructed in code.

    The error shows the value, unless the field is left out of the `repr` of its settings.

    Raises:
        SettingsError: for the first field whose value is not of its type.
    """
    shown = {one.name for one in fields(settings) if one.repr}
    for wrong in type_problems(settings):
        expected, problem = wrong.expected, "it is of another type"
        if re.split(r"[.\[]", wrong.path, maxsplit=1)[0] in shown:
            expected += f"; did you mean {wrong.near_miss}?" if wrong.near_miss else ""
            problem = f"got {wrong.got}"
        raise SettingsError(setting=f"{type(settings).__name__}.{wrong.path}", problem=problem, expected=expected)


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
    values = _project_values(project) | _environment_values(environ)
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    cache_home = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    root = _uri("root", values.get("root", f"{STATE_FOLDER}/tables"), project, home)
    landing = _uri("landing", values.get("landing", f"{STATE_FOLDER}/landing"), project, home)
    spark = SparkSettings(
        master=values.get("master", "local[*]"),
        remote=environ.get("SPARK_REMOTE") or None,
        driver_memory=values.get("driver_memory", "2g"),
        cache=_path(values.get("cache", str(cache_home / "delta-first-pipeline")), project, home),
        maven_repository=values.get("maven_repository"),
        schemes=tuple(dict.fromkeys(uri.partition("://")[0] for uri in (root, landing) if "://" in uri)),
        conf=values.get("spark_conf", ()),
    )
    _refuse_unreachable(root, spark.remote)
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


def _path(value: str, project: Path, home: Path) -> Path:
    """An absolute path. A relative value is relative to the project, not to the working directory."""
    if value == "~" or value.startswith("~/"):
        return (home / value[2:]).resolve()
    return (project / value).resolve()


# Parts of a URI that may hold a secret: user and password before an @ after the scheme, where a password may contain
# slashes; a user alone, except the container that Azure's schemes name there; a query or fragment, as a signature.
_CREDENTIALS = re.compile(
    r"[^:/]+://(?:[^/@]*:(?!\d+/)[^@]*@|(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^/@]*@|[^?#]*[?#])"
)


def _uri(setting: str, value: str, project: Path, home: Path) -> str:
    """A URI as it is, or a plain path made absolute against the project."""
    problem = None
    if _CREDENTIALS.match(value):
        problem = "the URI holds a user, key or signature; those come from the environment, a profile or the instance"
    elif re.match(r"[a-z][a-z0-9+]+:(?!//)", value) and not value.startswith("file:/"):
        problem = "it has a scheme and no authority"
    elif "://" in value and not _is_uri(value):
        problem = "it is not a URI"
    if problem is not None:
        raise SettingsError(setting=setting, problem=problem, expected="an absolute URI without credentials, or a path")
    if "://" in value or value.startswith("file:"):
        return value.rstrip("/")
    return str(_path(value, project, home))


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


def _refuse_unreachable(root: str, remote: str | None) -> None:
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


def _is_uri(value: str) -> bool:
    try:
        return bool(urlsplit(value).scheme)
    except ValueError:
        return False


def _repository(setting: str, value: Any) -> str:
    """The address of a Maven repository. It may hold a user and a password, so errors don't show it."""
    text = _text(setting, value)
    try:
        parts = urlsplit(text)
        is_address = parts.port != 0 and bool(parts.hostname) == (parts.scheme != "file")
    except ValueError:
        is_address = False
    if not is_address or not re.fullmatch(r"(https?|file):[!-~]+", text) or re.search("[?#]", text):
        expected = "https://host/path, http://host/path or file:///path, with %20 for a space"
        raise SettingsError(setting=setting, problem="it is not the address of a repository", expected=expected)
    return text


def _text(setting: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        got = repr(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"
        raise SettingsError(setting=setting, problem=f"got {got}", expected="a text that is not empty")
    return value.strip()


def _memory(setting: str, value: Any) -> str:
    text = _text(setting, value).lower()
    if not re.fullmatch(r"[1-9][0-9]*[mgt]", text):
        raise SettingsError(
            setting=setting, problem=f"got {value!r}", expected="a whole number and m, g or t, as in 2g"
        )
    return text


def _reference(setting: str, value: Any) -> str:
    text = _text(setting, value)
    module, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="package.module:name_of_a_collection")
    return text


def _vacuum(setting: str, value: Any) -> str:
    if value not in ("dry", "apply"):
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="dry or apply")
    return str(value)


def _names(setting: str, value: Any) -> tuple[str, ...]:
    """A list of names, or one text with commas between them, the form in the environment."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="names with commas between them")
    return tuple(dict.fromkeys(name.strip() for name in names))


def _bytes(setting: str, value: Any) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", str(value)):
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="a whole number of bytes")
    return int(value)


def _conf(setting: str, value: Any) -> tuple[tuple[str, str], ...]:
    expected = "a table of Spark confs with text, number or true/false"
    if not isinstance(value, dict):
        raise SettingsError(setting=setting, problem=f"got a value of type {type(value).__name__}", expected=expected)
    for name, conf in value.items():  # a conf may hold a secret, so no error shows its value
        if not isinstance(conf, str | int | float | bool):
            problem = f"{name} has a value of type {type(conf).__name__}"
            if isinstance(conf, dict):
                problem += ", as from a name with dots that is not quoted"
            raise SettingsError(setting=setting, problem=problem, expected=expected)
    if "@" in str(value.get(_REPOSITORIES, "")):  # spark-submit prints them
        problem, expected = f"{_REPOSITORIES} has a user or a password", "addresses without; spark.jars.ivySettings"
        raise SettingsError(setting=setting, problem=problem, expected=f"{expected} names a file that may have them")
    return tuple(sorted((k, str(v).lower() if isinstance(v, bool) else str(v)) for k, v in value.items()))


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "root": _text,
    "landing": _text,
    "datasets": _reference,
    "catalog": _text,
    "vacuum": _vacuum,
    "running": _names,
    "local_frame_max_bytes": _bytes,
    "master": _text,
    "driver_memory": _memory,
    "cache": _text,
    "maven_repository": _repository,
    "spark_conf": _conf,
}
_REPOSITORIES = "spark.jars.repositories"
_ONLY_IN_PROJECT = frozenset({"spark_conf"})


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


def _project_values(project: Path) -> dict[str, Any]:
    table = _tool(project, "pipeline")
    for name in table:
        if name not in _READERS:
            raise _unknown(f"[tool.pipeline] {name}", name, list(_READERS))
    return {name: _READERS[name](f"[tool.pipeline] {name}", value) for name, value in table.items()}


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
