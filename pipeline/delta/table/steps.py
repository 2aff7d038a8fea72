"""The steps that turn a table into what is declared: each is a value with its statement and a description in one line.

Here belong the kinds of steps. `plan` decides which of them a table needs, and `evolve` those of its schema.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructField

from pipeline.dataset.features import SUPPORTED
from pipeline.delta import sql

Path = tuple[str, ...]
# Delta can't add NOT NULL to an existing column. A check constraint with this prefix enforces it instead.
NOT_NULL_PREFIX = "not_null_"


def shown_path(path: Path) -> str:
    """A path as text, its parts joined by dots."""
    return ".".join(path)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of a table: one statement and one commit.

    `gains` are the features that the step adds to the protocol. `automatic` is whether the schema policy lets a write
    take the step, and `needed` whether a write is refused without it.
    """

    kind: ClassVar[str] = ""
    gains: tuple[str, ...] = ()
    automatic: bool = False
    needed: ClassVar[bool] = True

    def action(self) -> str:
        """The clause after the table's name in ALTER TABLE."""
        raise NotImplementedError

    def statement(self, location: str) -> str:
        """The full statement for a table at this location."""
        return f"ALTER TABLE {sql.path_table(location)} {self.action()}"

    def __str__(self) -> str:
        """The step in one line."""
        raise NotImplementedError

    def difference(self) -> str:
        """The difference in the error of a refused write."""
        return str(self)

    def document(self, location: str) -> dict[str, Any]:
        """The step as JSON types."""
        fields = {name: value for name, value in asdict(self).items() if name != "field"}
        return {"step": self.kind, "description": str(self), "statement": self.statement(location)} | fields


@dataclass(frozen=True, kw_only=True)
class SetProperty(Step):
    """A table property gets a value; `before` is None if it was not set.

    `along` are properties that Delta validates together with this one, with the values that the table has or will have:
    Delta validates each statement on its own.
    """

    kind = "set property"
    name: str
    value: str
    before: str | None
    along: tuple[tuple[str, str], ...] = ()

    def action(self) -> str:  # noqa: D102
        pairs = ((self.name, self.value), *self.along)
        return f"SET TBLPROPERTIES ({', '.join(f'{sql.string(name)} = {sql.string(value)}' for name, value in pairs)})"

    def __str__(self) -> str:
        return f"property {self.name}: {self.before or 'not set'} -> {self.value}"

    def difference(self) -> str:  # noqa: D102
        return f"property {self.name}: declared {self.value!r}, the table has {self.before!r}"


@dataclass(frozen=True, kw_only=True)
class UnsetProperty(Step):
    """One of our own table properties is removed, as it is no longer declared; a write is not refused without it."""

    kind = "unset property"
    needed = False
    name: str
    before: str

    def action(self) -> str:  # noqa: D102
        return f"UNSET TBLPROPERTIES IF EXISTS ({sql.string(self.name)})"

    def __str__(self) -> str:
        return f"property {self.name}: {self.before} -> not set"


@dataclass(frozen=True, kw_only=True)
class EnableFeature(Step):
    """A feature that has no property of its own is enabled."""

    kind = "enable feature"
    name: str

    def action(self) -> str:  # noqa: D102
        return f"SET TBLPROPERTIES ({sql.string(SUPPORTED + self.name)} = 'supported')"

    def __str__(self) -> str:
        return f"feature {self.name}: enabled"


@dataclass(frozen=True, kw_only=True)
class DropFeature(Step):
    """A feature is dropped from the protocol; Delta first rewrites the files that need it."""

    kind = "drop feature"
    name: str

    def action(self) -> str:  # noqa: D102
        return f"DROP FEATURE {sql.identifier(self.name)}"

    def __str__(self) -> str:
        return f"feature {self.name}: dropped from the protocol"


@dataclass(frozen=True, kw_only=True)
class AddColumn(Step):
    """A column or nested field is added, NULL in every existing row; if `after` is None, it comes first."""

    kind = "add column"
    path: Path
    field: StructField
    type: str
    after: str | None

    def action(self) -> str:  # noqa: D102
        place = "FIRST" if self.after is None else f"AFTER {sql.identifier(self.after)}"
        definition = f"{sql.names_path(self.path)} {sql.type_name(self.field.dataType)}{sql.comment(self.field)}"
        return f"ADD COLUMNS ({definition} {place})"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: added as {self.type}"


@dataclass(frozen=True, kw_only=True)
class WidenColumn(Step):
    """A column's type is widened; no file is rewritten."""

    kind = "widen column"
    path: Path
    type: str
    before: str

    def action(self) -> str:  # noqa: D102
        return f"ALTER COLUMN {sql.names_path(self.path)} TYPE {self.type}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: {self.before} -> {self.type}"


@dataclass(frozen=True, kw_only=True)
class RelaxNotNull(Step):
    """A column may be NULL from now on; `check` enforced NOT NULL before, None if the column's own schema did."""

    kind = "relax not null"
    path: Path
    check: str | None

    def action(self) -> str:  # noqa: D102
        if self.check is not None:
            return f"DROP CONSTRAINT IF EXISTS {sql.identifier(self.check)}"
        return f"ALTER COLUMN {sql.names_path(self.path)} DROP NOT NULL"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: NOT NULL -> NULL allowed"


@dataclass(frozen=True, kw_only=True)
class SetNotNull(Step):
    """A column may not be NULL any more; a check enforces it, since Delta can't add NOT NULL to a column."""

    kind = "set not null"
    path: Path

    @property
    def check(self) -> str:
        """The name of the check that enforces NOT NULL."""
        return not_null_check(self.path)

    @property
    def condition(self) -> str:
        """SQL that is true for a row without NULL in the column."""
        return f"{sql.names_path(self.path)} IS NOT NULL"

    def action(self) -> str:  # noqa: D102
        return f"ADD CONSTRAINT {sql.identifier(self.check)} CHECK ({self.condition})"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: NULL allowed -> NOT NULL, by the check {self.check}"


def not_null_check(path: Path) -> str:
    """The name of the check that enforces NOT NULL of a column. Those of `a.b` and of `a_b` differ."""
    digest = f"_{hashlib.sha256(repr(path).encode()).hexdigest()[:8]}" if len(path) > 1 else ""
    return f"{NOT_NULL_PREFIX}{'_'.join(path)}{digest}"


@dataclass(frozen=True, kw_only=True)
class RenameColumn(Step):
    """A column or nested field is renamed and keeps its values."""

    kind = "rename column"
    path: Path
    to: str

    def action(self) -> str:  # noqa: D102
        return f"RENAME COLUMN {sql.names_path(self.path)} TO {sql.identifier(self.to)}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: renamed to {self.to}, values kept"


@dataclass(frozen=True, kw_only=True)
class DropColumn(Step):
    """A column or nested field is dropped with its values: a later column of the same name has none of them."""

    kind = "drop column"
    path: Path

    def action(self) -> str:  # noqa: D102
        return f"DROP COLUMNS ({sql.names_path(self.path)})"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: dropped with its values"


@dataclass(frozen=True, kw_only=True)
class MoveColumn(Step):
    """A column or nested field gets another position; if `after` is None, it comes first."""

    kind = "move column"
    path: Path
    after: str | None

    def action(self) -> str:  # noqa: D102
        place = "FIRST" if self.after is None else f"AFTER {sql.identifier(self.after)}"
        return f"ALTER COLUMN {sql.names_path(self.path)} {place}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: moved {'first' if self.after is None else f'after {self.after}'}"


@dataclass(frozen=True, kw_only=True)
class AddCheck(Step):
    """A check constraint is added; refused if existing rows break it."""

    kind = "add check"
    name: str
    condition: str
    before: str | None = None

    def action(self) -> str:  # noqa: D102
        return f"ADD CONSTRAINT {sql.identifier(self.name)} CHECK ({self.condition})"

    def __str__(self) -> str:
        return f"check {self.name}: added as {self.condition}"

    def difference(self) -> str:  # noqa: D102
        return f"property delta.constraints.{self.name}: declared {self.condition!r}, the table has {self.before!r}"


@dataclass(frozen=True, kw_only=True)
class DropCheck(Step):
    """A check constraint is dropped that is not declared, or is declared with another condition."""

    kind = "drop check"
    name: str
    before: str

    def action(self) -> str:  # noqa: D102
        return f"DROP CONSTRAINT IF EXISTS {sql.identifier(self.name)}"

    def __str__(self) -> str:
        return f"check {self.name}: dropped, it was {self.before}"

    def difference(self) -> str:  # noqa: D102
        return f"property delta.constraints.{self.name}: the table has {self.before!r}, the declaration does not"


@dataclass(frozen=True, kw_only=True)
class SetClustering(Step):
    """The clustering columns change; an empty tuple ends clustering."""

    kind = "set clustering"
    columns: tuple[str, ...]
    before: tuple[str, ...]

    def action(self) -> str:  # noqa: D102
        return f"CLUSTER BY ({sql.names(self.columns)})" if self.columns else "CLUSTER BY NONE"

    def __str__(self) -> str:
        return f"clustering: {', '.join(self.before) or 'none'} -> {', '.join(self.columns) or 'none'}"


@dataclass(frozen=True, kw_only=True)
class SetDefault(Step):
    """The default of a column that a write leaves out changes; None removes the default. Existing rows stay."""

    kind = "set default"
    column: str
    expression: str | None
    before: str | None

    def action(self) -> str:  # noqa: D102
        change = "DROP DEFAULT" if self.expression is None else f"SET DEFAULT {self.expression}"
        return f"ALTER COLUMN {sql.identifier(self.column)} {change}"

    def __str__(self) -> str:
        return f"column {self.column}: default {self.before or 'none'} -> {self.expression or 'none'}"


@dataclass(frozen=True, kw_only=True)
class SetComment(Step):
    """A column's comment changes; a write is not refused without it."""

    kind = "set comment"
    needed = False
    path: Path
    comment: str
    before: str | None

    def action(self) -> str:  # noqa: D102
        return f"ALTER COLUMN {sql.names_path(self.path)} COMMENT {sql.string(self.comment)}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: comment {self.before!r} -> {self.comment!r}"
