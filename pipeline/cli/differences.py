"""The differences of two manifests as a table of text, from their JSON documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.cli.output import count, print_table


def print_differences(differences: Iterable[Mapping[str, Any]]) -> None:
    """Print a line for each dataset of two runs."""
    print_table(
        ("dataset", "changed", "version", "rows", "fingerprint"),
        [
            (
                item["dataset"],
                ", ".join(item["changes"]) or "nothing",
                _pair(item, lambda outcome: str(outcome["version"])),
                _pair(item, lambda outcome: count(outcome["rows_written"])),
                _pair(item, lambda outcome: str(outcome["fingerprint"])[:12]),
            )
            for item in differences
        ],
    )


def _pair(item: Mapping[str, Any], spell: Callable[[Mapping[str, Any]], str]) -> str:
    texts = ["-" if item[side] is None else spell(item[side]) for side in ("before", "after")]
    return texts[0] if texts[0] == texts[1] else " -> ".join(texts)
