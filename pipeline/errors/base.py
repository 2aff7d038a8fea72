"""The base class of all errors, and how their fields appear in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pipeline.errors.listing import bounded, cut, listed

# The most characters of a single field, such as a reason or a condition.
_LONGEST_FIELD = 4_000


def rebuilt(kind: type[PipelineError], values: dict[str, Any]) -> PipelineError:
    """Build an error of another process again, from its fields."""
    return kind(**values)


def shown(value: object) -> object:
    """A field as text: a tuple as one line per item, counts by name as one line; at most the first 20 items."""
    if isinstance(value, tuple):
        return "".join(f"\n  - {line}" for line in bounded(value))
    if isinstance(value, Mapping):
        return listed(f"{name}: {count} row{'s' if count != 1 else ''}" for name, count in value.items())
    return cut(value, _LONGEST_FIELD) if isinstance(value, str) else value


@dataclass(eq=False, kw_only=True)
class PipelineError(Exception):
    """The base class; catch it to show one readable message.

    A subclass gives its sentence and its remedy as templates over its fields. If they depend on more, it overrides the
    methods.
    """

    retryable: ClassVar[bool] = False
    may_pass: ClassVar[bool] = False
    sentence: ClassVar[str] = ""
    next_step: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """A retryable error may also pass."""
        cls.may_pass = cls.may_pass or cls.retryable

    def _filled(self, template: str) -> str:
        return template.format_map({field.name: shown(getattr(self, field.name)) for field in fields(self)})

    def message(self) -> str:
        """The sentence without the remedy."""
        return self._filled(self.sentence)

    def remedy(self) -> str:
        """The command or change that helps. If none is known, an empty string."""
        return self._filled(self.next_step)

    def __str__(self) -> str:
        remedy = self.remedy()
        return f"{self.message()}\n  -> {remedy}" if remedy else self.message()

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})
