"""What refused rows break, found by a second look at the frame: typed errors with counts and examples.

Here belong the order in which faults are told and their errors. The conditions are `constraints`'s; when a frame is
looked at is `write`'s.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame

from pipeline.dataset import Dataset
from pipeline.dataset.expectations import null_label
from pipeline.delta.sql import constraints
from pipeline.delta.sql.slices import Slice
from pipeline.delta.write import merge
from pipeline.errors import (
    CheckViolationError,
    DuplicateKeysError,
    NullViolationError,
    PartitionValueError,
    PipelineError,
    StrayRowsError,
)


def violations_in(frame: DataFrame, dataset: Dataset, within: Slice | None) -> PipelineError | None:
    """What the frame's rows break, counted; None where they break nothing that is declared."""
    stored, kept = merge.stored_rows(frame, dataset)
    if within is not None:
        named, total = constraints.stray_values(stored, dataset, within)
        if total:
            return StrayRowsError(dataset=dataset.name, counts=named, slice=str(within), total_rows=total)
    repeated, keys = merge.repeated_keys(frame, dataset)
    if keys:
        return DuplicateKeysError(dataset=dataset.name, counts=repeated, total_keys=keys)
    return _broken(stored, dataset, kept)


def _broken(stored: DataFrame, dataset: Dataset, kept: Collection[str]) -> PipelineError | None:
    """What rows that are to be stored break one by one, all of it in one pass."""
    empty = constraints.empty_partition_conditions(dataset)
    nulls = constraints.null_conditions(dataset.schema, kept)
    checks = constraints.check_conditions(dataset)
    conditions = {f"{column} = ''": sql for column, sql in empty.items()}
    conditions |= {null_label(path): sql for path, sql in nulls.items()} | checks
    found = constraints.count_broken(stored, dataset, conditions)
    examples = tuple(f"{name}: {row}" for name, broken in found.items() for row in broken.examples)

    def counts(names: dict[str, str]) -> dict[str, int]:
        return {name: found[told].rows for name, told in names.items() if told in found}

    if empties := counts({column: f"{column} = ''" for column in empty}):
        return PartitionValueError(dataset=dataset.name, counts=empties, examples=examples)
    broken_checks = counts({name: name for name in checks})
    if broken_nulls := counts({path: null_label(path) for path in nulls}):
        return NullViolationError(dataset=dataset.name, counts=broken_nulls, checks=broken_checks, examples=examples)
    if broken_checks:
        return CheckViolationError(dataset=dataset.name, counts=broken_checks, examples=examples)
    return None
