"""The reading of one value: its form is checked, and an error names the setting.

A reader takes the name of the setting, for its errors, and the value from TOML or from a variable.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.errors import SettingsError

_REPOSITORIES = "spark.jars.repositories"


def absolute_path(value: str, project: Path, home: Path) -> Path:
    """An absolute path. A relative value is relative to the project, not to the working directory."""
    if value == "~" or value.startswith("~/"):
        return (home / value[2:]).resolve()
    return (project / value).resolve()


# Parts of a URI that may hold a secret: user and password before an @ after the scheme, where a password may contain
# slashes; a user alone, except the container that Azure's schemes name there; a query or fragment, as a signature.
_CREDENTIALS = re.compile(
    r"[^:/]+://(?:[^/@]*:(?!\d+/)[^@]*@|(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^/@]*@|[^?#]*[?#])"
)


def uri(setting: str, value: str, project: Path, home: Path) -> str:
    """A URI as it is, or a plain path made absolute against the project."""
    require_uri_without_secret(setting, value)
    if "://" in value or value.startswith("file:"):
        return value.rstrip("/")
    return str(absolute_path(value, project, home))


def require_uri_without_secret(setting: str, value: str) -> None:
    """Refuse a URI with a user, a key or a signature, or of a wrong form. A plain path passes.

    Raises:
        SettingsError: it shows nothing of the URI.
    """
    problem = None
    if _CREDENTIALS.match(value):
        problem = "the URI holds a user, key or signature; those come from the environment, a profile or the instance"
    elif re.match(r"[a-z][a-z0-9+]+:(?!//)", value) and not value.startswith("file:/"):
        problem = "it has a scheme and no authority"
    elif "://" in value and not _is_uri(value):
        problem = "it is not a URI"
    if problem is not None:
        raise SettingsError(setting=setting, problem=problem, expected="an absolute URI without credentials, or a path")


def _is_uri(value: str) -> bool:
    try:
        return bool(urlsplit(value).scheme)
    except ValueError:
        return False


def repository(setting: str, value: Any) -> str:
    """The address of a Maven repository. It may hold a user and a password, so errors don't show it."""
    text = required_text(setting, value)
    try:
        parts = urlsplit(text)
        is_address = parts.port != 0 and bool(parts.hostname) == (parts.scheme != "file")
    except ValueError:
        is_address = False
    if not is_address or not re.fullmatch(r"(https?|file):[!-~]+", text) or re.search("[?#]", text):
        expected = "https://host/path, http://host/path or file:///path, with %20 for a space"
        raise SettingsError(setting=setting, problem="it is not the address of a repository", expected=expected)
    return text


def required_text(setting: str, value: Any) -> str:
    """A text that is not empty, without the space around it."""
    if not isinstance(value, str) or not value.strip():
        got = repr(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"
        raise SettingsError(setting=setting, problem=f"got {got}", expected="a text that is not empty")
    return value.strip()


def memory(setting: str, value: Any) -> str:
    """A size of memory as Spark spells it."""
    text = required_text(setting, value).lower()
    if not re.fullmatch(r"[1-9][0-9]*[mgt]", text):
        raise SettingsError(
            setting=setting, problem=f"got {value!r}", expected="a whole number and m, g or t, as in 2g"
        )
    return text


def reference(setting: str, value: Any) -> str:
    """The place of an object, as `package.module:name`."""
    text = required_text(setting, value)
    module, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="package.module:name_of_a_collection")
    return text


def vacuum_mode(setting: str, value: Any) -> str:
    """`dry` or `apply`."""
    return _one_of(("dry", "apply"), "dry or apply", setting, value)


def warm_mode(setting: str, value: Any) -> str:
    """`auto`, `never` or `require`."""
    return _one_of(("auto", "never", "require"), "auto, never or require", setting, value)


def _one_of(known: tuple[str, ...], expected: str, setting: str, value: Any) -> str:
    if value not in known:
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected=expected)
    return str(value)


def names(setting: str, value: Any) -> tuple[str, ...]:
    """A list of names, or one text with commas between them, the form in the environment."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="names with commas between them")
    return tuple(dict.fromkeys(name.strip() for name in names))


def byte_count(setting: str, value: Any) -> int:
    """A positive number of bytes."""
    if not re.fullmatch(r"[1-9][0-9]*", str(value)):
        raise SettingsError(setting=setting, problem=f"got {value!r}", expected="a whole number of bytes")
    return int(value)


def spark_conf(setting: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Spark confs by name. No error shows a value."""
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
