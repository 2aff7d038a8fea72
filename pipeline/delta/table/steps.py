"""The steps by which a table becomes what is declared: each a value, its statement, and one line that says it.

Here belong the kinds of steps. Which of them a table needs is `plan`'s, and those of its schema `evolve`'s.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructField

from pipeline.dataset.features import SUPPORTED
from pipeline.delta import sql

Path = tuple[str, ...]
# NOT NULL of a column that was made without it: Delta can't alter a column so, and holds it as a check of this name.
NOT_NULL_PREFIX = "not_null_"


def shown_path(path: Path) -> str:
    """A path as people write it."""
    return ".".join(path)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of a table, one statement and one commit.

    `gains` are the features that the protocol has afterwards and had not before; `automatic` is whether the schema
    policy lets a write make it, and `needed` whether a table that lacks it refuses a write.
    """

    kind: ClassVar[str] = ""
    gains: tuple[str, ...] = ()
    automatic: bool = False
    needed: ClassVar[bool] = True

    def action(self) -> str:
        """What follows the table's name in ALTER TABLE."""
        raise NotImplementedError

    def statement(self, location: str) -> str:
        """The statement for a table at that location."""
        return f"ALTER TABLE {sql.path_table(location)} {self.action()}"

    def __str__(self) -> str:
        """The step in one line."""
        raise NotImplementedError

    def difference(self) -> str:
        """What differs, as a refused write says it."""
        return str(self)

    def document(self, location: str) -> dict[str, Any]:
        """The step in JSON's types."""
        fields = {name: value for name, value in asdict(self).items() if name != "field"}
        named = {"step": self.kind, "description": str(self), "statement": self.statement(location)}
        return named | fields


@dataclass(frozen=True, kw_only=True)
class SetProperty(Step):
    """A table property gets a value; `before` is None where it had none.

    `along` are properties that Delta judges it by, as the table has or will have them: it looks at one statement alone.
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
    """A table property that is ours and no longer declared goes; a table that has it takes writes all the same."""

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
    """A feature that has no property of its own is put in force."""

    kind = "enable feature"
    name: str

    def action(self) -> str:  # noqa: D102
        return f"SET TBLPROPERTIES ({sql.string(SUPPORTED + self.name)} = 'supported')"

    def __str__(self) -> str:
        return f"feature {self.name}: enabled"


@dataclass(frozen=True, kw_only=True)
class DropFeature(Step):
    """A feature leaves the protocol; Delta rewrites the files that need it first."""

    kind = "drop feature"
    name: str

    def action(self) -> str:  # noqa: D102
        return f"DROP FEATURE {sql.identifier(self.name)}"

    def __str__(self) -> str:
        return f"feature {self.name}: dropped from the protocol"


@dataclass(frozen=True, kw_only=True)
class AddColumn(Step):
    """A column or nested field comes, NULL in every row that is there; `after` None puts it first."""

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
    """A type becomes a wider one; files stay as they are."""

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
    """A column may hold NULL from now on; `check` is the constraint that held it, None where the column did itself."""

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
    """A column may not hold NULL any more; held by a check, since Delta can't tighten a column."""

    kind = "set not null"
    path: Path

    @property
    def check(self) -> str:
        """The name of the check that holds it."""
        return not_null_check(self.path)

    @property
    def condition(self) -> str:
        """SQL that holds for a row that keeps it."""
        return f"{sql.names_path(self.path)} IS NOT NULL"

    def action(self) -> str:  # noqa: D102
        return f"ADD CONSTRAINT {sql.identifier(self.check)} CHECK ({self.condition})"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: NULL allowed -> NOT NULL, by the check {self.check}"


def not_null_check(path: Path) -> str:
    """The name of the check that holds NOT NULL of a column."""
    return NOT_NULL_PREFIX + "_".join(path)


@dataclass(frozen=True, kw_only=True)
class RenameColumn(Step):
    """A column or nested field gets another name and keeps its values."""

    kind = "rename column"
    path: Path
    to: str

    def action(self) -> str:  # noqa: D102
        return f"RENAME COLUMN {sql.names_path(self.path)} TO {sql.identifier(self.to)}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: renamed to {self.to}, values kept"


@dataclass(frozen=True, kw_only=True)
class DropColumn(Step):
    """A column or nested field goes, and its values with it: a later one of that name has none of them."""

    kind = "drop column"
    path: Path

    def action(self) -> str:  # noqa: D102
        return f"DROP COLUMNS ({sql.names_path(self.path)})"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: dropped with its values"


@dataclass(frozen=True, kw_only=True)
class MoveColumn(Step):
    """A column or nested field gets another place; `after` None puts it first."""

    kind = "move column"
    path: Path
    after: str | None

    def action(self) -> str:  # noqa: D102
        place = "FIRST" if self.after is None else f"AFTER {sql.identifier(self.after)}"
        return f"ALTER COLUMN {sql.names_path(self.path)} {place}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: moved {'first' if self.after is None else f'behind {self.after}'}"


@dataclass(frozen=True, kw_only=True)
class AddCheck(Step):
    """A check constraint comes; refused where rows that are there break it."""

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
    """A check constraint goes that is not declared, or is declared otherwise."""

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
    """The columns that OPTIMIZE arranges by; none where empty."""

    kind = "set clustering"
    columns: tuple[str, ...]
    before: tuple[str, ...]

    def action(self) -> str:  # noqa: D102
        return f"CLUSTER BY ({sql.names(self.columns)})" if self.columns else "CLUSTER BY NONE"

    def __str__(self) -> str:
        return f"clustering: {', '.join(self.before) or 'none'} -> {', '.join(self.columns) or 'none'}"


@dataclass(frozen=True, kw_only=True)
class SetDefault(Step):
    """What a column holds that a write leaves out; None takes the default away. Rows that are there stay."""

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
    """A column's description; a table that has another one takes writes all the same."""

    kind = "set comment"
    needed = False
    path: Path
    comment: str
    before: str | None

    def action(self) -> str:  # noqa: D102
        return f"ALTER COLUMN {sql.names_path(self.path)} COMMENT {sql.string(self.comment)}"

    def __str__(self) -> str:
        return f"column {shown_path(self.path)}: comment {self.before!r} -> {self.comment!r}"
