"""The declaration of a dataset, the one home of its facts. It does no input or output and needs no JVM.

This package exports every name that a project needs for its declarations.
"""

from pipeline.dataset.audit import Audit
from pipeline.dataset.declaration import Dataset, TableRef, require_dataset, table_location
from pipeline.dataset.expectations import (
    Check,
    Constraint,
    Expect,
    Expectation,
    FreshByCron,
    Freshness,
    FreshWithin,
    NotNull,
    OnViolation,
    Over,
    References,
    RowCount,
    SchemaCheck,
    Severity,
    Spans,
    Unique,
)
from pipeline.dataset.exports import Export
from pipeline.dataset.features import ColumnMapping, Features
from pipeline.dataset.policy import MaintenancePolicy, SchemaPolicy, StoragePolicy
from pipeline.dataset.registry import Registry, load_datasets
from pipeline.dataset.write_mode import (
    Append,
    Changelog,
    ErrorIfExists,
    History,
    Ignore,
    InsertNew,
    Merge,
    Replace,
    Tombstones,
    WriteMode,
)

__all__ = [
    "Append",
    "Audit",
    "Changelog",
    "Check",
    "ColumnMapping",
    "Constraint",
    "Dataset",
    "ErrorIfExists",
    "Expect",
    "Expectation",
    "Export",
    "Features",
    "FreshByCron",
    "FreshWithin",
    "Freshness",
    "History",
    "Ignore",
    "InsertNew",
    "MaintenancePolicy",
    "Merge",
    "NotNull",
    "OnViolation",
    "Over",
    "References",
    "Registry",
    "Replace",
    "RowCount",
    "SchemaCheck",
    "SchemaPolicy",
    "Severity",
    "Spans",
    "StoragePolicy",
    "TableRef",
    "Tombstones",
    "Unique",
    "WriteMode",
    "load_datasets",
    "require_dataset",
    "table_location",
]
