"""Asset checks of constraints and expectations: the counts of the write, and the violations in its version.

Here belong the specs and results. The check of a constraint reads the counts that the run has recorded for its commit.
The check of an expectation reads the table at that commit's version. What is counted, and how, belongs to
`pipeline.delta`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, AssetKey, MetadataValue

from pipeline.dataset import Check, Constraint, Dataset, Expectation, References, Severity, Spans, Unique
from pipeline.dataset.expectations import constraint_name, expectation_name
from pipeline.delta.inspect.check import violations_at
from pipeline.delta.sql.constraints import BrokenRows
from pipeline.delta.table.open_table import table_state
from pipeline.errors import TableNotFoundError
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata import of_commit
from pipeline.orchestration.metadata_keys import HELD_TO_VERSION, SOURCES, VERSION, VIOLATIONS

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_CONSEQUENCES = {
    "fail": "other rows make the write fail",
    "drop": "other rows are dropped",
    "quarantine": "other rows go to the quarantine table",
}
Written = Mapping[str | None, Mapping[str, Any]]


def quality_checks(dataset: Dataset) -> dict[str, Constraint | Expectation]:
    """The declared constraints and expectations of a dataset, by the names of their asset checks."""
    named: dict[str, Constraint | Expectation] = {
        _name(f"{'check' if isinstance(constraint, Check) else 'not_null'}_{_subject(constraint)}"): constraint
        for constraint in dataset.constraints
    }
    return named | {_name(expectation_name(expectation)): expectation for expectation in dataset.expectations}


def _subject(constraint: Constraint) -> str:
    return constraint.name if isinstance(constraint, Check) else constraint.column


def _name(text: str) -> str:
    """A name that Dagster accepts. If the text had to be changed, a digest keeps the name unique."""
    if _PLAIN.fullmatch(text):
        return text
    return f"{re.sub('[^A-Za-z0-9_]', '_', text)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


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
    if isinstance(declared, Unique):
        return f"No two rows of the table are equal in ({', '.join(declared.columns)})."
    return f"Rows without NULL in {declared.column}; {_CONSEQUENCES[declared.on_violation]}."


def severity(declared: Severity) -> AssetCheckSeverity:
    """The declared severity in Dagster's form."""
    return AssetCheckSeverity.WARN if declared == "warn" else AssetCheckSeverity.ERROR


def result(
    key: AssetKey, name: str, *, dataset: Dataset, written: Written, manager: DeltaIOManager
) -> AssetCheckResult:
    """The result of one check, from the metadata that was recorded for the last write."""
    declared = quality_checks(dataset)[name]
    try:
        if isinstance(declared, Expectation):
            broken, facts = _checked(declared, dataset, written, manager)
        else:
            broken, facts = _recorded(declared, written)
    except TableNotFoundError as error:
        return AssetCheckResult(
            asset_key=key, check_name=name, passed=False, severity=severity(declared.severity),
            description=error.message(),
        )  # fmt: skip
    rows = "1 row breaks it" if broken.rows == 1 else f"{broken.rows} rows break it"
    return AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=not broken.rows,
        severity=severity(declared.severity),
        description=f"{rows}." if broken.rows else "No row breaks it.",
        metadata={**facts, "rows": broken.rows, "examples": MetadataValue.json(list(broken.examples))},
    )


def _recorded(declared: Constraint, written: Written) -> tuple[BrokenRows, dict[str, Any]]:
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
    return BrokenRows(sum(one["rows"] for one in counted), examples), facts


def _checked(
    declared: Expectation, dataset: Dataset, written: Written, manager: DeltaIOManager
) -> tuple[BrokenRows, dict[str, Any]]:
    """The violations in the version of the last write. If none was recorded, in the newest version."""
    session, table = manager.spark.spark_session, dataset.at(manager.root)
    versions = [metadata[VERSION] for metadata in written.values() if VERSION in metadata]
    sources: Mapping[str, int] = next((metadata.get(SOURCES, {}) for metadata in written.values()), {})
    if not versions:
        state = table_state(session, table)
        if state is None:
            raise table.error(TableNotFoundError)
        versions = [state.version]
    other = sources.get(declared.dataset) if isinstance(declared, References) else None
    broken, compared = violations_at(session, table, max(versions), declared, root=manager.root, other_version=other)
    facts: dict[str, Any] = {VERSION: MetadataValue.int(max(versions))}
    return broken, facts | ({} if compared is None else {HELD_TO_VERSION: MetadataValue.int(compared)})
