"""Declarations and settings that can't be used: datasets, registries, names, settings."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors.base import PipelineError
from pipeline.errors.listing import listed
from pipeline.errors.spelling import distinguishable


@dataclass(eq=False, kw_only=True)
class DeclarationError(PipelineError):
    """A dataset's declaration contradicts itself or breaks Delta's rules; raised when it is declared."""

    dataset: str
    problems: tuple[str, ...]

    sentence = "The declaration of dataset {dataset!r} can't be used:{problems}"


@dataclass(eq=False, kw_only=True)
class RegistryError(PipelineError):
    """Datasets can't be used together: names or locations collide, or the lineage has a cycle or a gap."""

    problems: tuple[str, ...]

    sentence = "These datasets can't be used together:{problems}"


@dataclass(eq=False, kw_only=True)
class UnknownDatasetError(PipelineError):
    """No dataset is declared under the requested name.

    If the call also accepts tables without a declaration, there is no such table below `root` either.
    """

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    root: str = ""

    def message(self) -> str:
        """The name, with its code points if it looks like a known one, and the root that was searched."""
        shown = distinguishable((self.name, *self.near))(self.name)
        named = repr(self.name) if shown == self.name else f"'{shown}'"
        elsewhere = f", and there is no such table below {self.root}" if self.root else ""
        return f"No dataset is declared under the name {named}{elsewhere}."

    def remedy(self) -> str:
        """The near misses. If there are none, all names; without any, the setting that names the datasets."""
        if self.near:
            return f"Did you mean {' or '.join(map(repr, self.near))}?"
        if not self.known:
            return "No dataset is declared: let PIPELINE_DATASETS name the collection of yours."
        return f"{'Declared datasets and tables' if self.root else 'Declared datasets'}: {listed(self.known)}."


@dataclass(eq=False, kw_only=True)
class UnknownTopicError(PipelineError):
    """The documentation has no page of the requested name."""

    name: str
    near: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    sentence = "The documentation has no page {name!r}."

    def remedy(self) -> str:
        """The near misses. If there are none, all names."""
        return f"Did you mean {' or '.join(self.near)}?" if self.near else f"The pages are: {listed(self.known)}."


@dataclass(eq=False, kw_only=True)
class SettingsError(PipelineError):
    """An environment variable or a key of [tool.pipeline] has an unknown name or an invalid value."""

    setting: str
    problem: str
    expected: str

    sentence = "The setting {setting} can't be used: {problem}"
    next_step = "Expected: {expected}."
