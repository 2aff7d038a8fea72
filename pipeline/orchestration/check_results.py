"""The names of the checks of constraints and expectations, and a finding as the result of a check.

Here belongs what a check after a write and the audit before it have in common.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from dagster import AssetCheckSeverity, MetadataValue

from pipeline.dataset import Check, Constraint, Dataset, Expectation, Severity
from pipeline.dataset.expectations import expectation_name
from pipeline.delta.sql.expectations import Finding

_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def quality_checks(dataset: Dataset) -> dict[str, Constraint | Expectation]:
    """The declared constraints and expectations of a dataset, by the names of their asset checks."""
    named: dict[str, Constraint | Expectation] = {
        check_name(f"{'check' if isinstance(constraint, Check) else 'not_null'}_{_subject(constraint)}"): constraint
        for constraint in dataset.constraints
    }
    return named | {check_name(expectation_name(expectation)): expectation for expectation in dataset.expectations}


def _subject(constraint: Constraint) -> str:
    return constraint.name if isinstance(constraint, Check) else constraint.column


def check_name(text: str) -> str:
    """A name that Dagster accepts. If the text had to be changed, a digest keeps the name unique."""
    if _PLAIN.fullmatch(text):
        return text
    return f"{re.sub('[^A-Za-z0-9_]', '_', text)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def severity(declared: Severity) -> AssetCheckSeverity:
    """The declared severity in Dagster's form."""
    return AssetCheckSeverity.WARN if declared == "warn" else AssetCheckSeverity.ERROR


def described(found: Finding) -> str:
    """A finding as the description of a check's result."""
    if found.rows is None:
        return found.value
    return (
        f"{'1 row breaks' if found.rows == 1 else f'{found.rows} rows break'} it."
        if found.rows
        else "No row breaks it."
    )


def finding_metadata(found: Finding) -> dict[str, Any]:
    """A finding as the metadata of a check's result."""
    if found.rows is None:
        return {"found": found.value}
    return {"rows": found.rows, "examples": MetadataValue.json(list(found.examples))}
