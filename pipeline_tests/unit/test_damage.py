"""Damage of a table's files, one case each: what the doctor finds, and whether the table is still opened.

The table is written by delta-rs once and copied. A read, a write and a consumer open a table by `state_from_log`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.cli import main
from pipeline.dataset import Dataset, Replace, TableRef
from pipeline.delta.inspect.doctor import Diagnosis, examine
from pipeline.delta.log import integrity
from pipeline.delta.log.entry import actions_of
from pipeline.delta.log.integrity import require_sound
from pipeline.delta.log.mark import Cursor, Cursors
from pipeline.delta.log.snapshot import checkpoints, transaction_version
from pipeline.delta.read.cursors import effective_cursors
from pipeline.delta.storage.options import use_confs
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import DamagedTableError
from pipeline_tests.object_stores import Bucket, served_bucket

ROWS = StructType([StructField("id", LongType()), StructField("text", StringType())])
SOURCE = Dataset(name="source", schema=ROWS)
CONSUMER = Dataset(name="consumer", schema=ROWS, reads=("source",), reads_changes_of=("source",), write=Replace())
CHECKPOINT, NEWEST = 3, 7


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 0 to 6 add a file each, version 7 replaces them all; with a checkpoint of version 3."""
    table = tmp_path_factory.mktemp("sound") / "source"
    for number in range(NEWEST + 1):
        rows = pa.table({"id": [number, number + 100], "text": [f"text {number}"] * 2})
        deltalake.write_deltalake(table, rows, mode="append" if number < NEWEST else "overwrite")
        if number == CHECKPOINT:
            deltalake.DeltaTable(table).create_checkpoint()
    return table


@pytest.fixture
def table(sound: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "source"))


def entry(table: Path, number: int) -> Path:
    return table / "_delta_log" / f"{number:020d}.json"


def checkpoint_file(table: Path) -> Path:
    (path,) = table.glob("_delta_log/*.checkpoint.parquet")
    return path


def data_file(table: Path) -> Path:
    """The file that the newest version is made of."""
    return table / json.loads(entry(table, NEWEST).read_text().splitlines()[-1])["add"]["path"]


def lines(table: Path, number: int, keep: Callable[[str], bool]) -> None:
    """Keep some lines of an entry, each whole and with its end."""
    kept = [line for line in entry(table, number).read_text().splitlines() if keep(line)]
    entry(table, number).write_text("".join(f"{line}\n" for line in kept))


def change(path: Path, at: int, by: int = 1) -> None:
    """Change one byte; `at` counts from the end where it is negative."""
    content = bytearray(path.read_bytes())
    content[at] = (content[at] + by) % 256
    path.write_bytes(bytes(content))


def drop_entries(table: Path, numbers: range) -> None:
    for number in numbers:
        entry(table, number).unlink()


def look(table: Path, *, deep: bool = False) -> Diagnosis:
    return examine(SOURCE.name, str(table), deep=deep)


@dataclass(frozen=True)
class Case:
    """A damage; `file` and `kind` are what the doctor names, `opens` whether reads and writes go on, and rightly."""

    name: str
    kind: str
    file: Callable[[Path], Path]
    damage: Callable[[Path], object]
    opens: bool = False
    serious: bool = True
    deep: bool = False


def at(number: int) -> Callable[[Path], Path]:
    return lambda table: entry(table, number)


def empty_checkpoint_alone(table: Path) -> None:
    checkpoint_file(table).write_bytes(b"")
    drop_entries(table, range(CHECKPOINT + 1))


def without_action(kind: str, table: Path) -> None:
    """No checkpoint, and no action of a kind that every table has."""
    checkpoint_file(table).unlink()
    lines(table, 0, lambda line: f'{{"{kind}"' not in line)


def rewritten(file: Callable[[Path], Path], by: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda table: file(table).write_bytes(by(file(table).read_bytes()))


def emptied(file: Callable[[Path], Path]) -> Callable[[Path], object]:
    return rewritten(file, lambda _: b"")


ENTRY, CHECKPOINT_FAULT, FILE = "damaged commit", "damaged checkpoint", "damaged file"
CASES = (
    Case("an entry of no bytes", ENTRY, at(5), emptied(at(5))),
    Case("the newest entry has no bytes", ENTRY, at(NEWEST), emptied(at(NEWEST))),
    Case("an entry of one line end", ENTRY, at(5), rewritten(at(5), lambda _: b"\n")),
    Case("an entry of NUL bytes", ENTRY, at(5), rewritten(at(5), lambda whole: bytes(len(whole)))),
    Case("cut inside a line", ENTRY, at(5), rewritten(at(5), lambda whole: whole[:-9])),
    Case("cut after its first line", ENTRY, at(5), lambda t: lines(t, 5, lambda line: "commitInfo" in line)),
    Case("cut after its removes", ENTRY, at(NEWEST), lambda t: lines(t, NEWEST, lambda line: '{"add"' not in line)),
    Case("its removes gone", ENTRY, at(NEWEST), lambda t: lines(t, NEWEST, lambda line: '{"remove"' not in line)),
    Case("a bracket changed", ENTRY, at(5), lambda t: change(entry(t, 5), 0)),
    Case("no UTF-8", ENTRY, at(5), rewritten(at(5), lambda whole: b"\xff\xfe" + whole)),
    Case("no action", ENTRY, at(5), rewritten(at(5), lambda _: b"{}\n")),
    Case("an add without a path", ENTRY, at(5), rewritten(at(5), lambda _: b'{"add":{"size":1}}\n')),
    Case("a schema cut off", ENTRY, at(5), rewritten(at(5), lambda _: b'{"metaData":{"id":"a","schemaString":"{"}}\n')),
    Case("a copy of the entry before", ENTRY, at(5), lambda t: shutil.copy(entry(t, 4), entry(t, 5))),
    Case("a copy from below", ENTRY, at(5), lambda t: shutil.copy(entry(t, 1), entry(t, 5))),
    Case("written twice", ENTRY, at(5), rewritten(at(5), lambda whole: whole + b"\n" + whole)),
    Case("no protocol", ENTRY, at(0), partial(without_action, "protocol")),
    Case("no metadata", ENTRY, at(0), partial(without_action, "metaData")),
    Case("no protocol, below", ENTRY, at(0), lambda t: lines(t, 0, lambda line: '{"protocol"' not in line), opens=True),
    Case("an entry gone", "log gap", at(5), lambda t: entry(t, 5).unlink()),
    Case("no commitInfo", ENTRY, at(5), lambda t: lines(t, 5, lambda line: "commitInfo" not in line), opens=True),
    Case("no bytes, below", ENTRY, at(2), emptied(at(2)), opens=True),
    Case("cut after a line, below", ENTRY, at(2), lambda t: lines(t, 2, lambda line: "Info" in line), opens=True),
    Case("gone, below", "log gap", at(2), lambda t: entry(t, 2).unlink(), opens=True, serious=False),
    Case("a checkpoint of no bytes", CHECKPOINT_FAULT, checkpoint_file, emptied(checkpoint_file), opens=True),
    Case("a checkpoint cut off", CHECKPOINT_FAULT, checkpoint_file,
         rewritten(checkpoint_file, lambda whole: whole[:99])),
    Case("that and no entries", CHECKPOINT_FAULT, checkpoint_file, empty_checkpoint_alone),
    Case("a file cut off", FILE, data_file, rewritten(data_file, lambda whole: whole[:-5]), opens=True),
    Case("a file of no bytes", FILE, data_file, emptied(data_file), opens=True),
    Case("a file that grew", FILE, data_file, rewritten(data_file, lambda whole: whole + b"x"), opens=True),
    Case("a file's last byte changed", FILE, data_file, lambda t: change(data_file(t), -1), opens=True),
    Case("a file's footer changed", FILE, data_file, lambda t: change(data_file(t), -8, 77), opens=True),
    Case("a file's page changed", FILE, data_file, lambda t: change(data_file(t), 40, 3), opens=True, deep=True),
    Case("a file gone", "missing file", data_file, lambda t: data_file(t).unlink(), opens=True),
)  # fmt: skip


def test_a_sound_table_opens_and_has_nothing_for_the_doctor_to_find(table: Path) -> None:
    found = look(table, deep=True)
    strays = [finding for finding in found.findings if finding.kind != "orphan"]
    state = state_from_log(str(table))
    assert (found.version, found.files, strays) == (NEWEST, 1, [])
    assert state is not None
    assert state.version == NEWEST


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_damage_is_named_by_the_doctor_and_never_read_past(case: Case, table: Path) -> None:
    file = case.file(table)
    case.damage(table)
    found = look(table, deep=case.deep)
    first = found.findings[0]
    assert (first.kind, Path(first.path).name, first.serious) == (case.kind, file.name, case.serious)
    assert found.healthy is not case.serious
    if case.opens:
        state = state_from_log(str(table))
        assert state is not None
        assert (state.version, state.schema.names) == (NEWEST, ["id", "text"])
        return
    with pytest.raises(DamagedTableError) as caught:
        state_from_log(str(table))
    error = caught.value
    assert (error.dataset, Path(error.file).name, error.retryable) == ("source", file.name, False)
    assert error.remedy().startswith("pipeline doctor source")
    assert "PIPELINE_ROOT" not in str(error)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


@pytest.mark.parametrize("case", [case for case in CASES if not case.deep], ids=lambda case: case.name)
def test_damage_in_a_bucket_is_named_as_on_a_disk(case: Case, table: Path, bucket: Bucket) -> None:
    file = case.file(table)
    case.damage(table)
    uri = bucket.upload(table, f"{CASES.index(case)}/source")
    if case.opens:
        state = state_from_log(uri)
        assert state is not None
        assert (state.version, state.schema.names) == (NEWEST, ["id", "text"])
        return
    with pytest.raises(DamagedTableError) as caught:
        state_from_log(uri)
    assert caught.value.file == f"{uri}/{file.relative_to(table)}"
    with pytest.raises(DamagedTableError) as on_disk:
        state_from_log(str(table))
    assert (caught.value.dataset, caught.value.reason) == ("source", on_disk.value.reason)


def test_damage_above_a_version_does_not_keep_that_version_from_being_read(table: Path) -> None:
    entry(table, 6).write_bytes(b"")
    require_sound(str(table), 5)
    with pytest.raises(DamagedTableError):
        require_sound(str(table), 6)


def test_a_version_that_was_cleaned_away_is_no_damage(table: Path) -> None:
    drop_entries(table, range(2))
    require_sound(str(table), 2)
    assert state_from_log(str(table)) is not None
    assert [finding.kind for finding in look(table).findings if finding.kind != "orphan"] == []


def test_an_entry_is_looked_at_again_once_its_file_has_changed(table: Path) -> None:
    assert state_from_log(str(table)) is not None
    whole = entry(table, 5).read_bytes()
    entry(table, 5).write_bytes(b"")
    with pytest.raises(DamagedTableError):
        state_from_log(str(table))
    entry(table, 5).write_bytes(whole)
    assert state_from_log(str(table)) is not None


def test_other_files_of_a_log_are_not_taken_for_entries(table: Path) -> None:
    for name in (f".{8:020d}.json.tmp", f"{8:020d}.json.tmp", f"{4:020d}.{6:020d}.compacted.json", "8.json", "x.crc"):
        (table / "_delta_log" / name).write_bytes(b"")
    for folder in ("_sidecars", "_staged_commits"):
        (table / "_delta_log" / folder).mkdir(exist_ok=True)
        (table / "_delta_log" / folder / f"{8:020d}.json").write_bytes(b"")
    (table / "_delta_log" / f"{6:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(b"PAR1")
    state = state_from_log(str(table))
    assert state is not None
    assert state.version == NEWEST
    assert list(checkpoints(str(table))) == [CHECKPOINT]
    assert look(table).healthy


def test_an_identifier_is_found_though_the_checkpoint_above_it_has_lost_a_part(table: Path) -> None:
    whole = f"{entry(table, 5).read_text()}\n" + json.dumps({"txn": {"appId": "writer", "version": 9}}) + "\n"
    entry(table, 5).write_text(whole)
    (table / "_delta_log" / f"{6:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(b"PAR1")
    assert transaction_version(str(table), NEWEST, "writer") == 9


def test_the_last_line_needs_an_end_where_the_engine_writes_one() -> None:
    info = json.dumps({"commitInfo": {"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "operation": "SET"}})
    assert len(actions_of("t/_delta_log/0.json", f"{info}\n".encode())) == 1
    with pytest.raises(DamagedTableError, match="does not end with a newline"):
        actions_of("t/_delta_log/0.json", info.encode())
    assert len(actions_of("t/_delta_log/0.json", info.replace("Apache-Spark", "other").encode())) == 1


def test_files_that_turned_out_empty_are_not_missed_and_rows_are() -> None:
    def written(files: int, rows: int, *added: int) -> bytes:
        metrics = {"numFiles": str(files), "numOutputRows": str(rows)}
        info = {"commitInfo": {"engineInfo": "Apache-Spark/4", "operation": "WRITE", "operationMetrics": metrics}}
        adds = [{"add": {"path": f"{n}", "size": 1, "stats": json.dumps({"numRecords": n})}} for n in added]
        return "".join(f"{json.dumps(action)}\n" for action in [info, *adds]).encode()

    assert len(actions_of("t/_delta_log/0.json", written(1, 0))) == 1
    assert len(actions_of("t/_delta_log/0.json", written(2, 5, 2, 3))) == 3
    with pytest.raises(DamagedTableError, match="numOutputRows"):
        actions_of("t/_delta_log/0.json", written(2, 5, 2))


@pytest.mark.parametrize(("read_to", "serious"), [(0, True), (1, True), (2, False), (6, False)])
def test_a_gap_below_the_checkpoint_is_serious_while_a_consumer_has_still_to_read_it(
    table: Path, tmp_path: Path, read_to: int, serious: bool
) -> None:
    consumer = consumed(tmp_path / "consumer", table, read_to)
    entry(table, 2).unlink()
    found = examine(SOURCE.name, str(table), consumers=[consumer])
    (gap,) = (finding for finding in found.findings if finding.kind == "log gap")
    assert (gap.serious, found.healthy) == (serious, not serious)
    assert ("not yet read by consumer" in gap.detail) is serious


def test_changes_that_were_cleaned_away_before_a_consumer_has_read_them_are_told(table: Path, tmp_path: Path) -> None:
    consumer = consumed(tmp_path / "consumer", table, 0)
    drop_entries(table, range(3))
    told = [f for f in examine(SOURCE.name, str(table), consumers=[consumer]).findings if f.kind != "orphan"]
    assert [(f.kind, f.serious) for f in told] == [("unread changes", False)]
    assert "consumer has read to version 0" in told[0].detail


def consumed(folder: Path, source: Path, version: int) -> TableRef:
    """A table of a consumer that has read its source up to a version."""
    cursor = Cursor(table_id=str(deltalake.DeltaTable(source).metadata().id), version=version)
    cursors = Cursors(number=1, read_at=-1, sources={"source": cursor})
    note = {"pipeline": 1, "cursors": {"number": 1, "read_at": -1, "sources": {"source": vars(cursor)}}}
    deltalake.write_deltalake(
        folder, pa.table({"id": [1], "text": ["a"]}),
        commit_properties=deltalake.CommitProperties(custom_metadata={"userMetadata": json.dumps(note)}),
    )  # fmt: skip
    assert effective_cursors(None, state_from_log(str(folder))).sources == cursors.sources
    return TableRef(CONSUMER, str(folder))


def test_an_empty_entry_of_a_consumer_is_not_taken_for_one_without_cursors(table: Path, tmp_path: Path) -> None:
    """Read past, it would bring an older cursor into force, and rows would be doubled."""
    consumer = Path(consumed(tmp_path / "consumer", table, 4).location)
    deltalake.write_deltalake(consumer, pa.table({"id": [2], "text": ["b"]}), mode="append")
    state = state_from_log(str(consumer))
    entry(consumer, 1).write_bytes(b"")
    with pytest.raises(DamagedTableError) as caught:
        effective_cursors(None, state)
    assert Path(caught.value.file) == entry(consumer, 1)


def test_page_checksums_are_compared_when_every_page_is_read(table: Path) -> None:
    """The changed value lies between the least and the greatest, so that nothing but the checksum tells."""
    path, entry_path = data_file(table), entry(table, NEWEST)
    size = path.stat().st_size
    rows = pa.table({"id": list(range(100)), "text": ["t"] * 100})
    pq.write_table(rows, path, compression="none", use_dictionary=False, write_page_checksum=True)
    text = entry_path.read_text().replace(f'"size":{size}', f'"size":{path.stat().st_size}')
    stats = json.dumps({"numRecords": 100})
    actions = [json.loads(line) for line in text.splitlines()]
    actions[-1]["add"]["stats"] = stats
    entry_path.write_text("\n".join(map(json.dumps, actions)))
    assert look(table, deep=True).healthy
    content = path.read_bytes()
    change(path, content.index((50).to_bytes(8, "little")))
    assert look(table).healthy
    (finding,) = (f for f in look(table, deep=True).findings if f.serious)
    assert (finding.kind, finding.path) == ("damaged file", path.name)
    assert "CRC" in finding.detail


def test_the_command_reads_every_page_where_asked_and_ends_with_one_for_damage(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = (
        "from pyspark.sql.types import LongType, StructField, StructType\n"
        "from pipeline.dataset import Dataset\n"
        "datasets = (Dataset(name='source', schema=StructType([StructField('id', LongType())])),)\n"
    )
    (tmp_path / "damage_declarations.py").write_text(declaration)
    (tmp_path / "pyproject.toml").write_text('[tool.pipeline]\ndatasets = "damage_declarations:datasets"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PIPELINE_ROOT", str(tmp_path))
    change(data_file(table), 40, 3)
    assert CliRunner().invoke(main, ["doctor", "source"]).exit_code == 0
    deep = CliRunner().invoke(main, ["doctor", "source", "--deep", "--json"])
    assert deep.exit_code == 1
    assert [f["kind"] for f in json.loads(deep.stdout)[0]["findings"] if f["serious"]] == ["damaged file"]


@pytest.mark.parametrize("has_feed", [True, False], ids=["feed", "no feed"])
def test_no_commit_of_delta_rs_is_taken_for_damaged(tmp_path: Path, has_feed: bool) -> None:
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "text": ["a b", None] * 4})
    configuration: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"} if has_feed else {}
    table = tmp_path / "source"
    deltalake.write_deltalake(table, rows, partition_by=["text"], configuration=configuration)

    def opened() -> deltalake.DeltaTable:
        return deltalake.DeltaTable(table)

    def merge(*, deletes: bool) -> None:
        source = rows.slice(0, 3).append_column("new", pa.array(["m"] * 3))
        merger = opened().merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        matched = merger.when_matched_delete() if deletes else merger.when_matched_update({"text": "s.new"})
        matched.when_not_matched_insert({"id": "s.id", "text": "s.text"}).execute()

    def compact() -> None:
        opened().optimize.compact()

    commits: list[Callable[[], object]] = [
        lambda: opened().delete("id % 3 = 0"),  # some rows of each file
        lambda: opened().delete("text = 'a b'"),  # all rows of files
        lambda: opened().delete("id = 99"),
        lambda: opened().update(updates={"text": "'u'"}, predicate="id % 2 = 1"),
        lambda: deltalake.write_deltalake(table, rows, mode="append"),
        lambda: merge(deletes=False),
        lambda: merge(deletes=True),
        lambda: deltalake.write_deltalake(table, rows.slice(0, 1), mode="overwrite", predicate="text = 'a b'"),
        compact,
        lambda: opened().restore(1),
        lambda: deltalake.write_deltalake(table, rows.slice(0, 0), mode="append"),
        lambda: deltalake.write_deltalake(table, rows, mode="overwrite"),
        lambda: opened().delete("TRUE"),
    ]
    for commit in commits:
        commit()
        version = opened().version()
        require_sound(str(table), version)
        actions_of(str(entry(table, version)), entry(table, version).read_bytes())
        state = state_from_log(str(table))
        assert state is not None
        assert state.version == version


def test_a_log_with_thousands_of_equally_long_entries_is_opened_by_few_reads(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a near entry is still found when the table is opened, and a copy of any entry by doctor."""
    lines = entry(table, 6).read_text(encoding="utf-8").splitlines()
    (added,) = [json.loads(line)["add"] for line in lines if '"add"' in line]
    others = [line for line in lines if '"add"' not in line]
    newest = 3_000
    for number in range(NEWEST + 1, newest + 1):
        action = json.dumps({"add": added | {"path": f"part-{number:06d}.parquet"}})
        entry(table, number).write_text("\n".join([*others, action, ""]), encoding="utf-8")
        if number == newest - 5:
            deltalake.DeltaTable(table).create_checkpoint()
    reads: list[str] = []
    real = integrity.read_listed
    monkeypatch.setattr(integrity, "read_listed", lambda folder, file: (reads.append(file.name), real(folder, file))[1])
    require_sound(str(table), newest)
    assert 5 <= len(reads) < 200
    entry(table, newest - 1).write_bytes(entry(table, newest - 40).read_bytes())
    with pytest.raises(DamagedTableError, match="it is the same as"):
        require_sound(str(table), newest)
    entry(table, newest - 1).write_bytes(entry(table, 20).read_bytes())
    assert [each.kind for each in examine("source", str(table)).findings if "same as" in each.detail] == [
        "damaged commit"
    ]
