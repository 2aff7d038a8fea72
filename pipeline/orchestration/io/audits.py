"""The audit of a write in Dagster: what it has found is an evaluation of the asset's checks in the run that it stops.

Here belong the evaluations of a refused write, and the slices in which an audit counts rows. After a commit, the checks
read what the audit has recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dagster import AssetCheckEvaluation, OutputContext, StepExecutionContext

# The event by which Dagster's own steps report an evaluation; not public.
from dagster._core.events import DagsterEvent

from pipeline.dataset import Dataset, RowCount
from pipeline.dataset.expectations import ROW_COUNT, expectation_name
from pipeline.delta.sql.expectations import Finding
from pipeline.delta.sql.slices import Slice
from pipeline.errors import AuditError
from pipeline.orchestration.check_results import check_name, described, finding_metadata, severity
from pipeline.orchestration.io.contexts import partition_expr
from pipeline.orchestration.partitions import slice_of


def counted_parts(context: OutputContext, dataset: Dataset, keys: list[str] | None) -> Mapping[str, Slice]:
    """The slice of each partition key of the run, if the audit counts rows by key; otherwise empty."""
    if dataset.audit != "before" or dataset.row_count is None or keys is None:
        return {}
    expr = partition_expr(context)
    return {key: slice_of(dataset, context.asset_partitions_def, [key], expr) for key in keys}


@contextmanager
def refusals_evaluated(
    context: OutputContext, step: StepExecutionContext | None, dataset: Dataset
) -> Iterator[None]:  # fmt: skip
    """The block of a write. If its audit refuses it, each expectation that failed is a failed check of this run."""
    try:
        yield
    except AuditError as error:
        if step is not None:
            for evaluation in _evaluations(context, dataset, error):
                DagsterEvent.asset_check_evaluation(step, evaluation)
        raise


def _evaluations(context: OutputContext, dataset: Dataset, error: AuditError) -> Iterator[AssetCheckEvaluation]:
    declared = {expectation_name(one): (check_name(expectation_name(one)), one) for one in dataset.expectations}
    for name, value in error.failed.items():
        if name == ROW_COUNT and isinstance(dataset.row_count, RowCount):
            check, one = ROW_COUNT, dataset.row_count
        else:
            check, one = declared[name]  # type: ignore[assignment]
        found = Finding(False, value)
        yield AssetCheckEvaluation(
            asset_key=context.asset_key, check_name=check, passed=False, severity=severity(one.severity),
            description=described(found), blocking=one.blocking,
            metadata={
                **finding_metadata(found), "judged": "before the commit", "rejected": error.rejected,
                "run_id": error.run_id, "rows_of_write": error.rows,
            },
        )  # fmt: skip
