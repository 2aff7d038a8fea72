"""Asset checks of constraints and expectations: the counts of the write, and the violations in its version.

Here belong the specs and results. The check of a constraint reads the counts that the run has recorded for its commit.
The check of an expectation reads the table at that commit's version, unless the audit of the write has judged it. What
is counted, and how, belongs to `pipeline.delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSpec,
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    MetadataValue,
)

from pipeline.dataset import Check, Constraint, Dataset, Expect, Expectation, References, Spans, Unique
from pipeline.dataset.expectations import constraint_name, expectation_name
from pipeline.delta.inspect.check import finding_at
from pipeline.delta.sql.constraints import BrokenRows
from pipeline.delta.sql.expectations import Finding, of_rows
from pipeline.delta.table.open_table import table_state
from pipeline.errors import TableNotFoundError
from pipeline.orchestration.check_results import described, finding_metadata, quality_checks, severity
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata import of_commit, plain_value
from pipeline.orchestration.metadata_keys import AUDIT, CACHED, HELD_TO_VERSION, SOURCES, VERSION, VIOLATIONS

_CONSEQUENCES = {
    "fail": "other rows make the write fail",
    "drop": "other rows are dropped",
    "quarantine": "other rows go to the quarantine table",
}
# How many runs of a check are searched for a result of the same rows.
_RUNS = 10
Written = Mapping[str | None, Mapping[str, Any]]


def specs(dataset: Dataset) -> Iterator[AssetCheckSpec]:
    """The specs of the checks of a dataset's constraints and expectations."""
    for name, declared in quality_checks(dataset).items():
        yield AssetCheckSpec(
            name, asset=AssetKey(dataset.asset_key), description=_described(declared), blocking=declared.blocking
        )


def _described(declared: Constraint | Expectation) -> str:
    if isinstance(declared, Check):
        return f"Rows for which {declared.condition}; {_CONSEQUENCES[declared.on_violation]}."
    if isinstance(declared, References):
        return f"({', '.join(declared.columns)}) is in ({', '.join(declared.target)}) of {declared.dataset}."
    if isinstance(declared, Spans):
        return "The spans of each key are in order and don't overlap, and at most one is open."
    if isinstance(declared, Expect):
        return f"{declared.sql}, over the rows of {'the write' if declared.over == 'write' else 'the table'}."
    if isinstance(declared, Unique):
        return f"No two rows of the table are equal in ({', '.join(declared.columns)})."
    return f"Rows without NULL in {declared.column}; {_CONSEQUENCES[declared.on_violation]}."


def result(
    key: AssetKey, name: str, *, dataset: Dataset, written: Written, manager: DeltaIOManager
) -> AssetCheckResult:
    """The result of one check, from the metadata that was recorded for the last write."""
    declared = quality_checks(dataset)[name]
    try:
        found, facts = found_by(declared, dataset, written, manager)
    except TableNotFoundError as error:
        found, facts = Finding(False, error.message()), {}
    return AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=found.passed,
        severity=severity(declared.severity),
        description=described(found),
        metadata={**facts, **finding_metadata(found)},
    )


def evaluated_before(
    instance: DagsterInstance, key: AssetCheckKey, declared: Constraint | Expectation, written: Written
) -> AssetCheckResult | None:
    """The result of a check in one of its last runs, if it was of the rows that a cached outcome names. Otherwise None.

    A comparison with another dataset is found again, since that may have changed.
    """
    versions = {metadata.get(VERSION) for metadata in written.values() if metadata.get(CACHED)}
    if isinstance(declared, References) or len(versions) != 1:
        return None
    # Dagster's own way to the evaluations of a check; not public.
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=_RUNS):
        event = None if record.event is None else record.event.dagster_event
        if event is None or event.event_type is not DagsterEventType.ASSET_CHECK_EVALUATION:
            continue  # it is planned, or was never evaluated
        found = event.asset_check_evaluation_data
        if plain_value(found.metadata.get(VERSION)) in versions:
            return AssetCheckResult(
                asset_key=key.asset_key, check_name=key.name, passed=found.passed, severity=found.severity,
                description=found.description, metadata=found.metadata,
            )  # fmt: skip
    return None


def found_by(
    declared: Constraint | Expectation, dataset: Dataset, written: Written, manager: DeltaIOManager
) -> tuple[Finding, dict[str, Any]]:
    """The finding of a check, and facts about it: recorded by the write, or else found in its version.

    Raises:
        TableNotFoundError: a table was never written.
    """
    if not isinstance(declared, Expectation):
        return _recorded(declared, written)
    return recorded_by_audit(expectation_name(declared), written) or _checked(declared, dataset, written, manager)


def recorded_by_audit(name: str, written: Written) -> tuple[Finding, dict[str, Any]] | None:
    """The finding of the audit of the last write, and its version. If the write was not audited, None."""
    for metadata in written.values():
        judged = metadata.get(AUDIT, {}).get(name)
        if judged is not None:
            found = Finding(judged["passed"], judged["value"], judged["rows"], tuple(judged["examples"]))
            return found, {VERSION: MetadataValue.int(metadata[VERSION]), "judged": "before the commit"}
    return None


def _recorded(declared: Constraint, written: Written) -> tuple[Finding, dict[str, Any]]:
    """The counts of the writes. A write without counts has no violations: Delta would have refused the row."""
    facts: dict[str, Any] = {"on_violation": declared.on_violation}
    commits = {metadata.get(VERSION): metadata for metadata in written.values()}
    counts = [metadata.get(VIOLATIONS) or metadata.get(of_commit(VIOLATIONS)) or {} for metadata in commits.values()]
    of_constraint = [violations.get(constraint_name(declared)) for violations in counts]
    counted = [one for one in of_constraint if one is not None]
    versions = [version for version in commits if version is not None]
    if versions:
        facts[VERSION] = MetadataValue.int(max(versions))
    examples = tuple(text for one in counted for text in one["examples"])
    return of_rows(BrokenRows(sum(one["rows"] for one in counted), examples)), facts


def _checked(
    declared: Expectation, dataset: Dataset, written: Written, manager: DeltaIOManager
) -> tuple[Finding, dict[str, Any]]:
    """What is found in the version of the last write. If none was recorded, in the newest version."""
    session, table = manager.spark.spark_session, dataset.at(manager.root)
    versions = [metadata[VERSION] for metadata in written.values() if VERSION in metadata]
    sources: Mapping[str, int] = next((metadata.get(SOURCES, {}) for metadata in written.values()), {})
    if not versions:
        state = table_state(session, table)
        if state is None:
            raise table.error(TableNotFoundError)
        versions = [state.version]
    other = sources.get(declared.dataset) if isinstance(declared, References) else None
    found, compared = finding_at(session, table, max(versions), declared, other_version=other)
    facts: dict[str, Any] = {VERSION: MetadataValue.int(max(versions))}
    return found, facts | ({} if compared is None else {HELD_TO_VERSION: MetadataValue.int(compared)})
