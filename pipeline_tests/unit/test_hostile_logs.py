"""Logs in which anybody may have written anything: they are read, or refused by name, and nothing else is raised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.inspect.doctor import examine
from pipeline.delta.inspect.history import history_in_log
from pipeline.delta.log.commits import commit_identity, commit_note, commit_versions, read_commit
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.epochs import epochs, last_epoch
from pipeline.delta.log.replay import replay
from pipeline.delta.log.snapshot import transaction_version
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.read.restores import restored_version
from pipeline.delta.table.open_table import plan_in_log, state_from_log
from pipeline.errors import DamagedTableError, PipelineError

ROWS = StructType([StructField("part", StringType()), StructField("id", LongType())])
DATASET = Dataset(name="rows", schema=ROWS, partition_by=("part",))
MARK = {"writer": "w", "epoch": 3, "attempt": 1, "token": "0" * 32}
NOTE = {
    "pipeline": 1,
    "mark": MARK,
    "run_id": "r",
    "asset": "rows",
    "partitions": None,
    "sources": {"other": 4},
    "cursors": {"number": 1, "read_at": -1, "sources": {"other": {"table_id": "t", "version": 4, "entry": None}}},
    "stream": {"checkpoint": "c", "content": None},
    "schema_fingerprint": "f",
    "runtime": {"spark": "4"},
}
LONGEST = 3_000
STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["²", "1e9", "-1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of delta-rs, the second with a note of ours, a transaction, a domain and a removed file."""
    table = tmp_path_factory.mktemp("written") / "rows"
    rows = pa.table({"part": ["a", "b"], "id": [1, 2]})
    deltalake.write_deltalake(table, rows, partition_by=["part"], mode="overwrite")
    deltalake.write_deltalake(table, rows, partition_by=["part"], mode="overwrite")
    entry = entry_of(table, 1)
    actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    info |= {"userMetadata": json.dumps(NOTE), "inCommitTimestamp": 1_750_000_000_000, "readVersion": 0}
    actions.append({"txn": {"appId": "pipeline/0/w", "version": 3, "lastUpdated": 0}})
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns": [["id"]]}', "removed": False}
    actions.append({"domainMetadata": domain})
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
    return table


def entry_of(table: Path, number: int) -> Path:
    return table / "_delta_log" / f"{number:020d}.json"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a document."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(document))
    part = copy
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return copy


def readers(table: Path) -> dict[str, Callable[[], object]]:
    """What reads a log without Spark."""
    location = str(table)

    def cursors() -> object:
        state = state_from_log(location)
        return state and effective_cursors(None, state)

    return {
        "state": lambda: state_from_log(location),
        "commit": lambda: read_commit(location, 1, ("part",)),
        "identity": lambda: commit_identity(location, 1),
        "history": lambda: [entry.document() for entry in history_in_log(DATASET, location, None) or ()],
        "plan": lambda: plan_in_log(TableRef(DATASET, location)),
        "rows": lambda: table_rows(location, 1),
        "replay": lambda: replay(location),
        "epochs": lambda: (epochs(location), last_epoch(location, "w")),
        "transaction": lambda: transaction_version(location, 1, "pipeline/0/w"),
        "cursors": cursors,
        "restore": lambda: restored_version(None, location, 1, {"version": "²"}),
        "doctor": lambda: examine("rows", location),
    }


def raised(table: Path) -> dict[str, str]:
    """By reader the exception that is no error of ours, or the error of ours that has no end."""
    strange = {}
    for name, read in readers(table).items():
        try:
            read()
        except PipelineError as error:
            if len(str(error)) > LONGEST:
                strange[name] = str(error)[:LONGEST]
        except Exception as error:  # noqa: BLE001  that is what is looked for
            strange[name] = repr(error)
    return strange


def test_the_log_that_is_changed_below_is_read_by_every_reader(written: Path) -> None:
    assert {name: read() is None for name, read in readers(written).items()} == {
        name: name in ("restore",) for name in readers(written)
    }


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_value_of_an_action_may_be_anything(written: Path, tmp_path: Path, data: st.DataObject) -> None:
    table = tmp_path / "rows"
    shutil.rmtree(table, ignore_errors=True)
    shutil.copytree(written, table)
    lines = entry_of(table, 1).read_text(encoding="utf-8").splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    action = json.loads(lines[number])
    path = data.draw(st.sampled_from(list(places(action))))
    lines[number] = json.dumps(changed(action, path, data.draw(STRANGE)))
    entry_of(table, 1).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert raised(table) == {}


@pytest.mark.parametrize("path", list(places(NOTE)), ids=lambda path: ".".join(map(str, path)))
def test_a_note_with_a_value_of_another_type_is_somebody_else_s(path: tuple[Any, ...]) -> None:
    assert commit_note(json.dumps(NOTE)) == NOTE
    for value in (["strange"], 1.5, *([{"strange": [1]}] if path != ("mark",) else [])):
        assert commit_note(json.dumps(changed(NOTE, path, value))) is None


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"add": ' * 50_000, b"\xff\xfe", b"", b"{}", b"7", b"null", b'"text"'],
    ids=["arrays", "objects", "no text", "empty", "no action", "number", "null", "text"],
)  # fmt: skip
def test_an_entry_of_no_actions_is_refused_by_name(written: Path, tmp_path: Path, content: bytes) -> None:
    table = Path(shutil.copytree(written, tmp_path / "rows"))
    entry_of(table, 1).write_bytes(content)
    assert raised(table) == {}
    with pytest.raises(DamagedTableError) as caught:
        state_from_log(str(table))
    assert caught.value.file == str(entry_of(table, 1))
    assert commit_versions(str(table)) == [0, 1]
