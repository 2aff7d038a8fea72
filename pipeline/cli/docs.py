"""`pipeline docs`: the pages of the documentation, which are part of the package.

Here belong the order of the pages and their printing. No settings are read, so that the pages can be read even if the
settings are wrong.
"""

from __future__ import annotations

from importlib.resources import files

import click

from pipeline.errors import UnknownTopicError
from pipeline.errors.spelling import near

# In the order of a first reading. The paragraph after the title of a page is its line in the list.
TOPICS = (
    "datasets",
    "history",
    "changes",
    "sink",
    "quality",
    "operations",
    "migrating",
    "scaling",
    "clusters",
    "benchmarks",
    "coming-from",
    "architecture",
    "subjects",
    "reference",
    "changelog",
)


@click.command()
@click.argument("topic", required=False)
def docs(topic: str | None) -> None:
    """Print the page of TOPIC, or the list of topics."""
    if topic is not None:
        click.echo(page(topic), nl=False)
        return
    width = max(map(len, TOPICS))
    for name in TOPICS:
        click.echo(f"{name:<{width}}  {summary(page(name))}")


def page(topic: str) -> str:
    """The text of a page, in Markdown.

    Raises:
        UnknownTopicError: there is no page of that name.
    """
    if topic not in TOPICS:
        raise UnknownTopicError(name=topic, near=near(topic, TOPICS), known=TOPICS)
    return (files("pipeline") / "docs" / f"{topic}.md").read_text(encoding="utf-8")


def summary(text: str) -> str:
    """The summary of a page: the paragraph below its title, in one line."""
    return " ".join(text.split("\n\n", 2)[1].split())
