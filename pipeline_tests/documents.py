"""The documentation as the tests read it: README and the pages of `pipeline docs`, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.cli.docs import TOPICS, page

REPOSITORY = Path(__file__).parents[1]
README = "README"


def documents() -> dict[str, str]:
    """By name, the texts in the order of a first reading."""
    return {README: (REPOSITORY / "README.md").read_text(encoding="utf-8")} | {name: page(name) for name in TOPICS}


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command line of all code blocks, once each, without comments."""
    lines = [line for text in documents().values() for block in blocks(text, "bash") for line in block.splitlines()]
    plain = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return list(dict.fromkeys(line for line in plain if line and not line.startswith("#")))
