"""What a refusal means: the rules that refused rows violate, and a commit that was made although its statement raised.

Here belong the errors with counts and examples, which a second pass over the frame finds, their order, and the search
for the expression that fails for a row. The conditions are those of `constraints`. When a frame is read again is the
subject of `write`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame

from pipeline.dataset import Dataset, Merge, TableRef
from pipeline.dataset.expectations import null_label
from pipeline.delta import sql
from pipeline.delta.log.commits import Commit
from pipeline.delta.log.mark import Mark, marked_commit
from pipeline.delta.spark.failures import (
    CAUSE_UNKNOWN,
    CHECK_BROKEN,
    LOST_OR_REFUSED,
    NOT_NULL_BROKEN,
    RAISED_BY_US,
    SLICE_BROKEN,
    SPARK_ERRORS,
    failure_of,
    has_ended,
)
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.storage.file_system import local_folder
from pipeline.delta.table.open_table import TableState
from pipeline.delta.write import merge
from pipeline.errors import (
    CheckViolationError,
    CommitConflictError,
    DuplicateKeysError,
    ExpressionFailedError,
    NullViolationError,
    PartitionNameError,
    PartitionValueError,
    PipelineError,
    StrayRowsError,
)


@contextmanager
def failing_expressions_named(frame: DataFrame, dataset: Dataset) -> Iterator[None]:
    """The block of a write of a conformed frame: what fails for a value of a row is told by the part that fails.

    Raises:
        ExpressionFailedError: a check, a generated column, a default or a condition of the write mode.
        FrameFailedError: the frame itself.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        failure = failure_of(error)
        if not failure.is_of_rows and not failure.has_only(CAUSE_UNKNOWN):
            raise
        _refuse_failing(frame, dataset)
        raise


@contextmanager
def refusals_named(frame: DataFrame, dataset: Dataset, within: Slice | None) -> Iterator[None]:
    """The block of a query over the rows of a write. Rows that it refuses are told by the rule that they violate.

    Raises:
        ViolationError: rows were refused.
    """
    try:
        yield
    except LOST_OR_REFUSED as error:
        violation = violations_in(frame, dataset, within) if failure_of(error).has(RAISED_BY_US) else None
        if violation is None:
            raise
        raise violation from error


def _refuse_failing(frame: DataFrame, dataset: Dataset) -> None:
    """Evaluate the frame and then each declared expression, one Spark job each, until one fails."""
    computed = dict((*dataset.features.generated, *dataset.features.defaults))
    given = [name for name in dataset.schema.names if name not in computed]
    columns = ", ".join(map(sql.identifier, (*given, *dataset.frame_columns)))
    parts = {"": f"length(to_json(struct({columns})))"}
    parts |= {f"column {name!r}": f"length(to_json(struct({sql.identifier(name)})))" for name in computed}
    parts |= {f"check {check.name!r}": f"({check.condition})" for check in dataset.checks}
    mode = dataset.write
    if isinstance(mode, Merge) and mode.delete_when is not None:
        parts["delete_when"] = f"({mode.delete_when})"
    said = {f"column {name!r}": text for name, text in computed.items()}
    for part, expression in parts.items():
        try:
            frame.selectExpr(f"max({expression}) AS evaluated").collect()
        except SPARK_ERRORS as error:
            failure = failure_of(error)
            if not part or not failure.is_of_rows:
                raise
            raise ExpressionFailedError(
                dataset=dataset.name, part=part, expression=said.get(part, expression.removeprefix("(")[:-1]),
                condition=failure.condition, reason=failure.summary,
            ) from error  # fmt: skip


def violations_in(
    frame: DataFrame, dataset: Dataset, within: Slice | None, *, names_folders: bool = False
) -> PipelineError | None:
    """What the frame's rows break, counted; None where they break nothing that is declared.

    Args:
        names_folders: whether a value of a partition column names a folder, as on any storage but an object store.
    """
    stored, kept = merge.stored_rows(frame, dataset)
    if within is not None:
        named, total = constraints.stray_values(stored, dataset, within)
        if total:
            return StrayRowsError(dataset=dataset.name, counts=named, slice=str(within), total_rows=total)
    repeated, keys = merge.repeated_keys(frame, dataset)
    if keys:
        return DuplicateKeysError(dataset=dataset.name, counts=repeated, total_keys=keys)
    return _broken(stored, dataset, kept, names_folders=names_folders)


def _broken(stored: DataFrame, dataset: Dataset, kept: Collection[str], *, names_folders: bool) -> PipelineError | None:
    """What rows that are to be stored break one by one, all of it in one pass."""
    empty = constraints.lost_partition_conditions(dataset)
    long = constraints.long_partition_conditions(dataset) if names_folders else {}
    nulls = constraints.null_conditions(dataset.schema, kept)
    checks = constraints.check_conditions(dataset)
    checks |= {f"generated column {c}": said for c, said in constraints.generated_conditions(dataset).items()}
    conditions = {f"{column} = ''": said for column, said in empty.items()}
    conditions |= {f"{column} is long": said for column, said in long.items()}
    conditions |= {null_label(path): said for path, said in nulls.items()} | checks
    broken_by_name = constraints.count_broken(stored, dataset, conditions)
    examples = tuple(f"{name}: {row}" for name, broken in broken_by_name.items() for row in broken.examples)

    def counts(names: dict[str, str]) -> dict[str, int]:
        return {name: broken_by_name[label].rows for name, label in names.items() if label in broken_by_name}

    if empties := counts({column: f"{column} = ''" for column in empty}):
        return PartitionValueError(dataset=dataset.name, counts=empties, examples=examples)
    if long_names := counts({column: f"{column} is long" for column in long}):
        return PartitionNameError(
            dataset=dataset.name, counts=long_names, examples=examples, limit=constraints.FOLDER_NAME_BYTES
        )
    broken_checks = counts({name: name for name in checks})
    if broken_nulls := counts({path: null_label(path) for path in nulls}):
        return NullViolationError(dataset=dataset.name, counts=broken_nulls, checks=broken_checks, examples=examples)
    if broken_checks:
        return CheckViolationError(dataset=dataset.name, counts=broken_checks, examples=examples)
    return None


# --- a statement that raised ------------------------------------------------------------------------------------------


def commit_despite(
    error: Exception, frame: DataFrame, table: TableRef, state: TableState, *, within: Slice | None, mark: Mark
) -> Commit:
    """The commit of a write that raised, if it was made nevertheless. Otherwise raise the error to report.

    A reply can get lost, and Delta's work after a commit can fail. So the log is searched for our mark before a failure
    is reported.

    Raises:
        ViolationError: rows were refused.
        CommitConflictError: another commit came first, and the log has none of ours.
        CommitUnknownError: the log can't be read, or the statement may still run.
    """
    failure = failure_of(error)
    refused = CHECK_BROKEN | NOT_NULL_BROKEN | RAISED_BY_US | SLICE_BROKEN
    violation = None
    names_too_long = failure.is_storage and bool(table.dataset.partition_by)
    if failure.has(refused) or failure.has_only(CAUSE_UNKNOWN) or names_too_long:
        with suppress(*SPARK_ERRORS):  # the frame fails by itself; then its own error is the one to tell
            violation = violations_in(
                frame, table.dataset, within, names_folders=local_folder(table.location) is not None
            )
    if violation is not None:
        raise violation from error
    commit = marked_commit(
        frame.sparkSession, table.name, table.location, mark, state.log_partition_by, reason=failure.summary,
        ended=has_ended(error),
    )  # fmt: skip
    if commit is not None:
        return commit
    if failure.is_conflict:
        raise table.error(CommitConflictError, condition=failure.condition) from error
    raise error
