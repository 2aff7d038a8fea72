"""What is declared or set can't be used: datasets, registries and settings."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError
from pipeline.errors.listing import listed
from pipeline.errors.spelling import distinguishable


@dataclass(eq=False, kw_only=True)
class DeclarationError(PipelineError):
    """A dataset's declaration contradicts itself or Delta's rules; raised where it is declared."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "The declaration of dataset {dataset!r} can't be used:{problems}"


@dataclass(eq=False, kw_only=True)
class RegistryError(PipelineError):
    """A set of datasets can't stand together: names or locations collide, or lineage has a cycle or a gap."""

    problems: tuple[str, ...]

    sentence = "These datasets can't be used together:{problems}"


@dataclass(eq=False, kw_only=True)
class UnknownDatasetError(PipelineError):
    """A dataset was asked for by a name that nobody declared.

    If a table without a declaration would do, no table of that name or path lies below `root` either.
    """

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    root: str = ""

    def message(self) -> str:
        """The name, by its code points if it looks like a known one, and where else was looked."""
        shown = distinguishable((self.name, *self.near))(self.name)
        named = repr(self.name) if shown == self.name else f"'{shown}'"
        elsewhere = f", and no table lies there or below {self.root}" if self.root else ""
        return f"No dataset is declared under the name {named}{elsewhere}."

    def remedy(self) -> str:
        """The near misses, or else all names."""
        if self.near:
            return f"Did you mean {' or '.join(map(repr, self.near))}?"
        return f"{'There are' if self.root else 'Declared are'}: {listed(self.known) or 'none'}."


@dataclass(eq=False, kw_only=True)
class UnknownTopicError(PipelineError):
    """A page of the documentation was asked for by a name that no page has."""

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    sentence = "The documentation has no page {name!r}."

    def remedy(self) -> str:
        """The near misses, or else all names."""
        return f"Did you mean {' or '.join(self.near)}?" if self.near else f"The pages are: {listed(self.known)}."


@dataclass(eq=False, kw_only=True)
class SettingsError(PipelineError):
    """An environment variable or a key of [tool.pipeline] has an unknown name or a value that can't be used."""

    setting: str
    problem: str
    expected: str

    sentence = "The setting {setting} can't be used: {problem}"
    next_step = "Expected: {expected}."
