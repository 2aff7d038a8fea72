"""Records: one JSON file for each commit, next to the tables.

Here belong `DatasetRecord`, its file, and the comparison and verification of records. `manifest` finds the records of a
run. The caller of a write decides when its record is written.

The records of a run are one folder, its manifest: nothing is merged at the run's end, and a killed run leaves the
records of its commits. A file is `_records/<run>/<dataset>@<version>-<token>.json`. The version is in the name because
a run may commit to one dataset more than once (another slice, another attempt). The beginning of the mark's token is
there too: a write with nothing to commit reports the version of the previous commit, and a table that is created again
in one run begins at version 0. The same write has the same name, so that writing its record twice leaves one.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.log.checkpoints import first_line
from pipeline.delta.log.commits import Commit, commit_note, read_commit
from pipeline.delta.log.mark import Mark, runtime_profile
from pipeline.delta.log.snapshot import TableFacts, table_facts
from pipeline.delta.read.version import ReadFacts
from pipeline.delta.spark.doors import door
from pipeline.delta.storage.access import StoreError
from pipeline.delta.storage.text_files import write_text
from pipeline.delta.table.open_table import require_table
from pipeline.delta.table.storage_facts import HIDDEN, storage_facts_in
from pipeline.delta.write.result import WriteResult
from pipeline.errors import DamagedTableError, RecordError
from pipeline.errors.argument_types import type_problems

FORMAT = 1
FOLDER = "_records"
_TOKEN_DIGITS = 8
# Names of options whose values are no secrets: sizes, counts, switches, classes and addresses.
_HARMLESS = re.compile(
    r"spark\.(app\.name|master|submit\.deployMode|driver\.(memory|cores|host|bindAddress|maxResultSize)"
    r"|executor\.(memory|cores|instances)|default\.parallelism|ui\.(enabled|retained\w+|showConsoleProgress)"
    r"|sql\.(extensions|catalog\.spark_catalog|catalogImplementation|session\.timeZone|caseSensitive|timestampType"
    r"|storeAssignmentPolicy|ansi\.\w+|adaptive\.[\w.]+|files\.\w+|parquet\.\w+|parser\.\w+|shuffle\.partitions"
    r"|sources\.partitionOverwriteMode|sources\.parallelPartitionDiscovery\.parallelism|variable\.substitute)"
    r"|databricks\.delta\.[\w.]+)"
    r"|(spark\.hadoop\.)?fs\.s3a\.(endpoint(\.region)?|path\.style\.access|connection\.\w+(\.\w+)?)"
)
# The values must have such a form too: a word, a number, a class or an address without a user.
_PLAIN = re.compile(r"(https?://)?[\w.,:/+*\[\]-]*")


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """The record of one commit to one dataset.

    `version` is that of the commit. If `committed` is false, it is the current one. `commit` is the log's entry of that
    version. `rows_by_partition` has one entry per partition. If Delta has no statistics, it is None. `sources` are the
    versions read, by dataset name, `reads` are the reads, and `changes` are a consumer's reads of changes with their
    reasons, by dataset name. `violations` are the constraints checked before the write, with the rows left out. Secrets
    among the storage options are replaced. `storage` are the `StorageFacts` of the table; empty in older records.
    `code_version` is that of the asset, as the commit has it.
    """

    record: int = FORMAT
    name: str
    kind: str = "table"
    path: str
    format: str = "delta"
    run_id: str
    recorded_at: str
    version: int
    committed: bool
    table_id: str
    features: tuple[str, ...]
    protocol: Mapping[str, int]
    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    fingerprint: str
    write_policy: Mapping[str, Any]
    storage_options: Mapping[str, str]
    commit: Mapping[str, Any]
    rows_written: int
    rows_by_partition: tuple[Mapping[str, Any], ...] | None
    sources: Mapping[str, int]
    partitions: str | None
    mark: Mapping[str, Any]
    runtime: Mapping[str, str]
    reads: tuple[Mapping[str, Any], ...] = ()
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    violations: tuple[Mapping[str, Any], ...] = ()
    storage: Mapping[str, Any] = field(default_factory=dict)
    code_version: str | None = None

    def to_json(self) -> str:
        """The text of the record's file."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> DatasetRecord:
        """The record in a file's text.

        Raises:
            RecordError: the text is damaged, or has a newer format than this version of the package.
        """
        try:
            document = json.loads(text)
            if document["record"] > FORMAT:
                raise RecordError(path=path, reason=f"it has format {document['record']}, expected {FORMAT}")
            parts = document["rows_by_partition"]
            document["rows_by_partition"] = None if parts is None else tuple(parts)
            document["features"] = tuple(document["features"])
            document["reads"] = tuple(document.get("reads", ()))
            document["violations"] = tuple(document.get("violations", ()))
            record = cls(**document)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordError(path=path, reason=f"it is damaged ({error})") from error
        problem = next(_type_problems(record), None)
        if problem is not None:
            raise RecordError(path=path, reason=f"it is damaged ({problem})")
        return record


def _type_problems(record: DatasetRecord) -> Iterator[str]:
    yield from (f"{problem.path} is not {problem.expected}" for problem in type_problems(record))
    needed = {
        "mark.token": (record.mark, "token", str),
        "write_policy.partition_by": (record.write_policy, "partition_by", list),
    }
    if record.committed:
        needed["commit.operation"] = (record.commit, "operation", str)
    for name, (part, field_name, of) in needed.items():
        if isinstance(part, dict) and not isinstance(part.get(field_name), of):
            yield f"{name} is not {of.__name__}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A dataset after a run: the newest version, and the number of rows of all the run's commits."""

    version: int
    table_id: str
    fingerprint: str
    rows_written: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One dataset in two runs. A run without a record of it has None. Without differences, `changes` is empty."""

    dataset: str
    before: Outcome | None
    after: Outcome | None
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the log still agrees with a record. If it does, `problem` is None."""

    record: DatasetRecord
    problem: str | None


def hide_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """The options by name. Every value that may be a secret is replaced by `HIDDEN`."""
    return {
        name: value if _HARMLESS.fullmatch(name) and _PLAIN.fullmatch(value) else HIDDEN
        for name, value in sorted(options.items())
    }


@door
def write_record(
    session: SparkSession, dataset: Dataset, result: WriteResult, *, root: str, run_id: str,
    sources: Mapping[str, int], reads: Iterable[ReadFacts] = (),
    changes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    partitions: str | None = None, options: Mapping[str, str],
) -> str:  # fmt: skip
    """Write the record of a commit that was just made, and return the path of its file.

    On this machine's storage no Spark job runs. A failure does not undo the commit.

    Args:
        partitions: the addressed slice, as text.
        options: the Spark options of the storage, including secrets.

    Raises:
        FileAccessError: the record could not be written.
        StorageError: the log could not be read.
    """
    facts, commit = _observed(session, dataset, result)
    note = (commit_note(commit.user_metadata) or {}) if result.committed else {}
    record = DatasetRecord(
        name=dataset.name,
        path=result.location,
        run_id=run_id,
        recorded_at=dt.datetime.now(dt.timezone.utc).isoformat(),
        version=result.version,
        committed=result.committed,
        table_id=facts.table_id,
        features=result.features,
        protocol={"reader": facts.reader_version, "writer": facts.writer_version},
        properties=facts.properties,
        schema=facts.schema,
        fingerprint=result.schema_fingerprint,
        write_policy=_policy(dataset),
        storage_options=hide_secrets(options),
        commit=_entry(commit),
        rows_written=result.rows_written,
        rows_by_partition=_rows(dataset, result),
        sources=dict(sources),
        reads=tuple(asdict(read) for read in reads),
        changes=dict(changes),
        partitions=partitions,
        mark=asdict(result.mark),
        violations=tuple(asdict(violation) for violation in result.violations),
        storage=asdict(storage_facts_in(session, result.location)),
        runtime=note.get("runtime") or runtime_profile(session),
        code_version=note.get("code_version"),
    )
    path = f"{root.rstrip('/')}/{FOLDER}/{folder_name(run_id)}/{_file_name(record, result.mark)}"
    write_text(path, record.to_json())
    return path


def _observed(session: SparkSession, dataset: Dataset, result: WriteResult) -> tuple[TableFacts, Commit]:
    """The table and the commit at the version of the result. If the log's form is not one that we read, by Spark."""
    commit = read_commit(result.location, result.version, dataset.partition_by)
    facts = table_facts(result.location, result.version)
    if facts is not None:
        return facts, commit
    state = require_table(session, TableRef(dataset, result.location))
    facts = TableFacts(
        table_id=state.table_id,
        reader_version=state.reader_version,
        writer_version=state.writer_version,
        properties=state.properties,
        schema=state.schema.jsonValue(),
        partition_by=state.partition_by,
    )
    return facts, commit


def _policy(dataset: Dataset) -> dict[str, Any]:
    mode = {"mode": type(dataset.write).__name__.lower()} | asdict(dataset.write)
    policies = {"storage": asdict(dataset.storage), "schema": asdict(dataset.schema_policy)}
    return mode | {"partition_by": list(dataset.partition_by), "keys": list(dataset.keys)} | policies


def _entry(commit: Commit) -> dict[str, Any]:
    return {
        "operation": commit.operation,
        "timestamp": commit.timestamp.isoformat(),
        "metrics": dict(commit.metrics),
        "user_metadata": commit.user_metadata,
    }


def _rows(dataset: Dataset, result: WriteResult) -> tuple[dict[str, Any], ...] | None:
    if result.rows_by_partition is None:
        return None
    return tuple(
        {"partition": dict(zip(dataset.partition_by, values, strict=True)), "rows": rows}
        for values, rows in result.rows_by_partition.items()
    )


def folder_name(run_id: str) -> str:
    """The run's id as a name of one folder that no file system hides."""
    quoted = quote(run_id, safe="")
    return quoted if quoted[:1].isalnum() else f"%{ord(run_id[0]):02X}{quote(run_id[1:], safe='')}"


def _file_name(record: DatasetRecord, mark: Mark) -> str:
    return f"{record.name}@{record.version}-{mark.token[:_TOKEN_DIGITS]}.json"


def diff(before: Iterable[DatasetRecord], after: Iterable[DatasetRecord]) -> list[Difference]:
    """The differences of two manifests by dataset: another table, version, schema or number of rows."""
    left, right = _outcomes(before), _outcomes(after)
    return [
        Difference(dataset=name, before=(a := left.get(name)), after=(b := right.get(name)), changes=_changes(a, b))
        for name in sorted(left | right)
    ]


def _outcomes(records: Iterable[DatasetRecord]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for record in sorted(records, key=lambda record: record.recorded_at):
        earlier = outcomes.get(record.name)
        outcomes[record.name] = Outcome(
            version=record.version,
            table_id=record.table_id,
            fingerprint=record.fingerprint,
            rows_written=record.rows_written + (earlier.rows_written if earlier is not None else 0),
        )
    return outcomes


def _changes(before: Outcome | None, after: Outcome | None) -> tuple[str, ...]:
    if before is None or after is None:
        return ("only in the second",) if before is None else ("only in the first",)
    compared = {
        "table": before.table_id != after.table_id,
        "version": before.version != after.version,
        "schema": before.fingerprint != after.fingerprint,
        "rows": before.rows_written != after.rows_written,
    }
    return tuple(name for name, differs in compared.items() if differs)


def verify(records: Iterable[DatasetRecord]) -> list[Verdict]:
    """Whether the log still has each record's mark at its version. No Spark.

    A record without a commit is always right.
    """
    return [Verdict(record=record, problem=_problem(record)) for record in records]


def _problem(record: DatasetRecord) -> str | None:
    if not record.committed:
        return None
    partition_by = tuple(record.write_policy["partition_by"])
    try:
        commit = read_commit(record.path, record.version, partition_by)
    except DamagedTableError as error:
        return f"version {record.version} is damaged ({error.reason})"
    except StoreError as error:
        return f"version {record.version} can't be read now ({_first_line(error)})"
    except (OSError, ValueError) as error:
        return f"version {record.version} is not in the log ({_first_line(error)})"
    return None if commit.token == record.mark["token"] else f"version {record.version} has another mark"


def _first_line(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)
