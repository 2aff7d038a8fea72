"""The report of a migration, as a JSON document and as Markdown.

Here belong the forms of a plan and of a verified commit. The commit's record is the subject of `taken`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.delta import sql
from pipeline.delta.migrate.compare import Comparison
from pipeline.delta.migrate.folders import FolderColumn
from pipeline.delta.migrate.plan import MigrationPlan
from pipeline.delta.migrate.taken import Record
from pipeline.errors.listing import bounded


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """A verified commit of a migration. `seconds` is the time of the write and of its verification."""

    record: Record
    table_id: str
    version: int
    comparison: Comparison
    seconds: float

    def document(self) -> dict[str, Any]:
        """The commit as JSON types."""
        return {
            "token": self.record.token,
            "number": self.record.number,
            "table_id": self.table_id,
            "version": self.version,
            "files": len(self.record.files),
            "bytes": sum(file.size for file in self.record.files),
            "rows": self.comparison.source_rows,
            "partitions": self.comparison.partitions,
            "columns_compared": self.comparison.columns,
            "replaced": self.record.replaced,
            "seconds": round(self.seconds, 1),
        }


def plan_document(plan: MigrationPlan) -> dict[str, Any]:
    """The plan as JSON types."""
    dataset = plan.table.dataset
    return {
        "source": plan.source,
        "dataset": plan.dataset,
        "location": plan.location,
        "mode": plan.mode,
        "format": plan.format,
        "version": plan.version,
        "files": len(plan.files),
        "rows": plan.rows,
        "bytes": plan.bytes,
        "taken_before": plan.unchanged,
        "to_verify": None if plan.unverified is None else plan.taken.unverified,
        "schema": dataset.schema.jsonValue()["fields"],
        "fingerprint": dataset.fingerprint,
        "partition_by": list(dataset.partition_by),
        "folders": [_folder(column) for column in plan.folders],
        "schemas": [
            {
                "columns": {column.name: sql.type_name(column.data_type) for column in group.columns},
                "files": list(group.paths),
            }
            for group in plan.groups
        ],
        "differences": list(plan.differences),
        "passed_over": list(plan.passed_over),
        "changed": list(plan.changed),
        "vanished": list(plan.vanished),
        "replaces": None if not plan.replaces else replaced_text(plan),
        "problems": list(plan.problems),
    }


def _folder(column: FolderColumn) -> dict[str, Any]:
    return {
        "name": column.name, "type": sql.type_name(column.data_type), "declared": column.declared,
        "stored": column.stored, "guess": column.guess or None,
    }  # fmt: skip


def replaced_text(plan: MigrationPlan) -> str:
    """The partitions that a plan replaces, as text."""
    return "the whole table" if plan.within is None else str(plan.within)


def document(plan: MigrationPlan, done: Sequence[Migrated]) -> dict[str, Any]:
    """The plan and its verified commits as JSON types; a report is written only if no row differs."""
    return {"plan": plan_document(plan), "commits": [each.document() for each in done], "differences": []}


def to_json(plan: MigrationPlan, done: Migrated) -> str:
    """The report of one commit as JSON; `version` is at the top."""
    return json.dumps({"version": done.version} | document(plan, [done]), indent=2, ensure_ascii=False)


def to_markdown(plan: MigrationPlan, done: Migrated) -> str:
    """The report of one commit as Markdown."""
    facts = done.document()
    names = ("version", "table_id", "files", "bytes", "rows", "partitions", "columns_compared", "replaced", "seconds")
    lines = [
        f"# Migration of {plan.source}",
        "",
        f"Every value in version {done.version} of `{plan.location}` was compared with the files; nothing differs.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {facts[name]} |" for name in names if facts[name] is not None),
        f"| fingerprint | `{plan.table.dataset.fingerprint}` |",
        "",
        "## Columns",
        "",
        "| column | type | from |",
        "|---|---|---|",
        *_columns(plan),
    ]
    for title, texts in (("Differences between the files", plan.differences), ("Passed over", plan.passed_over)):
        if texts:
            lines += ["", f"## {title}", "", *(f"- {text}" for text in bounded(texts))]
    return "\n".join(lines) + "\n"


def _columns(plan: MigrationPlan) -> list[str]:
    folders = {column.name.lower() for column in plan.folders}
    return [
        f"| `{field.name}` | {sql.type_name(field.dataType)} | "
        f"{'folders' if field.name.lower() in folders else 'files'} |"
        for field in plan.table.dataset.schema.fields
    ]
