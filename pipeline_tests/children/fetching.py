"""Fetch made-up jars into a cache folder, and print the names of what is there."""

import json
import sys
from pathlib import Path

import pytest

from pipeline.delta.spark import jars
from pipeline.delta.storage.download import Published
from pipeline.settings import SparkSettings


def main(cache: str, repository: str, published: str) -> None:
    """Fetch what `published` maps to its size and digest."""
    made_up = {coordinate: Published(size, digest) for coordinate, (size, digest) in json.loads(published).items()}
    pytest.MonkeyPatch().setattr(jars, "jars_for", lambda _: made_up)
    settings = SparkSettings(cache=Path(cache), maven_repository=repository)
    print(json.dumps([path.name for path in jars.delta_jars(settings)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
