"""Programs that tests run as processes of their own, each `python -m` with its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.settings import SparkSettings


def child_settings(
    root: str, cache: str, conf: Iterable[tuple[str, str]], remote: str | None = None
) -> SparkSettings:  # fmt: skip
    """The settings of a process with two cores that uses tables below a root, a folder or a URI."""
    scheme, separator, _ = root.partition("://")
    return SparkSettings(
        master="local[2]", remote=remote, cache=Path(cache), schemes=(scheme,) if separator else (), conf=tuple(conf)
    )  # fmt: skip
