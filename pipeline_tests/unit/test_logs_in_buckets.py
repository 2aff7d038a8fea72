"""Logs in a bucket: where their listings begin, what is read once, which damage is refused, and the requests of it."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.cli import main
from pipeline.dataset import Dataset, TableRef
from pipeline.delta.inspect.history import history_in_log
from pipeline.delta.log import checkpoints
from pipeline.delta.log.checkpoints import all_files, checksum_name, commit_name, newest_version
from pipeline.delta.log.commits import commit_identity, commit_versions, newest_infos
from pipeline.delta.log.counts import table_rows
from pipeline.delta.log.entry import Action, actions_of
from pipeline.delta.log.integrity import require_sound
from pipeline.delta.log.mark import Cursor
from pipeline.delta.log.snapshot import facts_in_checksum, table_facts
from pipeline.delta.maintain.clean_log import clean_log, plan_clean_log
from pipeline.delta.read.verdict import Reason, Verdict, VerdictKind, verdict_on
from pipeline.delta.storage.file_system import file_system, missing_files, write_file
from pipeline.delta.storage.object_stores import in_parallel
from pipeline.delta.storage.options import use_confs
from pipeline.delta.table.open_table import state_from_log
from pipeline.errors import DamagedTableError, StorageAccessError
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket

SCHEMA = StructType([StructField("n", LongType())])
NEWEST, CHECKPOINT = 54, 50


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with its change feed: a row each version from 0 on, a checkpoint, and checksums as Spark writes them."""
    table = tmp_path_factory.mktemp("written") / "rows"
    files, size, described = 0, 0, dict[str, Any]()
    for number in range(NEWEST + 1):
        deltalake.write_deltalake(
            table, pa.table({"n": pa.array([number], pa.int64())}), mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
            post_commithook_properties=deltalake.PostCommitHookProperties(create_checkpoint=False),
        )  # fmt: skip
        if number == CHECKPOINT:
            deltalake.DeltaTable(table).create_checkpoint()
        actions = with_commit_id(table, number)
        described |= {kind: action[kind] for action in actions for kind in ("metaData", "protocol") if kind in action}
        added = [action["add"]["size"] for action in actions if "add" in action]
        files, size = files + len(added), size + sum(added)
        checksum = {"txnId": f"id {number}", "numFiles": files, "tableSizeBytes": size}
        checksum |= {"metadata": described["metaData"], "protocol": described["protocol"]}
        (table / "_delta_log" / checksum_name(number)).write_text(json.dumps(checksum))
    return table


def with_commit_id(table: Path, number: int) -> list[Action]:
    """The actions of an entry, which gets the id of its commit."""
    entry = table / "_delta_log" / commit_name(number)
    actions = actions_of(str(entry), entry.read_bytes())
    for action in actions:
        action.get("commitInfo", {}).update(txnId=f"id {number}", engineInfo="Apache-Spark/4 Delta-Lake/4")
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return actions


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(written, tmp_path / "rows"))


def starts(bucket: Bucket) -> list[str]:
    """The names after which the listings since the last call began."""
    found = [each.rpartition("start-after=")[2].split()[0] for each in bucket.requests if "list-type" in each]
    bucket.requests.clear()
    return [name.rpartition("%2F")[2].lstrip("0") for name in found]


# --- listings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log counts as long."""
    monkeypatch.setattr(checkpoints, "_FIRST_PAGE", 9)


@pytest.mark.usefixtures("short_page")
def test_a_long_log_is_listed_from_its_last_checkpoint_on_and_then_from_the_newest_known_one(
    bucket: Bucket, written: Path
) -> None:
    uri = bucket.upload(written, "long/rows")
    assert newest_version(uri) == NEWEST
    assert starts(bucket) == ["_delta_log", str(CHECKPOINT)]
    state = state_from_log(uri)
    assert state is not None
    assert (state.version, state.schema) == (NEWEST, SCHEMA)
    assert [number for number, _ in newest_infos(uri, 2)] == [NEWEST, NEWEST - 1]
    assert starts(bucket) == [str(CHECKPOINT)] * 2
    assert commit_versions(uri, NEWEST - 2) == [NEWEST - 1, NEWEST]
    assert starts(bucket) == [str(NEWEST - 1)]
    history = history_in_log("rows", uri, 2)
    assert history is not None
    assert [entry.version for entry in history] == [NEWEST, NEWEST - 1]
    assert starts(bucket) == [str(CHECKPOINT)]


@pytest.mark.usefixtures("short_page")
def test_versions_before_the_place_where_a_listing_begins_are_still_there(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "before/rows")
    assert newest_version(uri) == NEWEST
    assert len(commit_versions(uri)) == NEWEST + 1
    assert [number for number, _ in newest_infos(uri, 8)] == list(range(NEWEST, NEWEST - 8, -1))
    require_sound(uri, 5)
    rows = table_rows(uri, 5)
    assert rows is not None
    assert rows.total == 6
    bucket.delete(f"{uri}/_delta_log/{commit_name(4)}")
    with pytest.raises(DamagedTableError, match="it is missing"):
        require_sound(uri, 5)


@pytest.mark.usefixtures("short_page")
def test_a_last_checkpoint_that_is_wrong_costs_requests_and_nothing_else(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "wrong/rows")
    client, _ = file_system(uri)
    for hint in ('{"version": 7}', '{"version": "x"}', '{"version": -1}', "[]", "{", '{"version": 99999}'):
        client.handler.checkpoints.clear()  # as in a process that has not seen the log
        write_file(f"{uri}/_delta_log/_last_checkpoint", hint.encode())
        assert newest_version(uri) == NEWEST


@pytest.mark.exhaustive
def test_a_log_of_more_than_a_page_is_not_listed_completely(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "pages/rows")
    in_parallel(lambda number: write_file(f"{uri}/_delta_log/{number:020d}.old", b""), range(1000))
    bucket.requests.clear()
    assert newest_version(uri) == NEWEST
    assert bucket.kinds() == {"LIST": 2, "GET": 1}
    bucket.requests.clear()
    assert commit_versions(uri, NEWEST - 1) == [NEWEST]
    assert bucket.kinds() == {"LIST": 1}


def test_a_table_that_was_deleted_and_made_again_is_seen_though_its_log_is_shorter(
    bucket: Bucket, written: Path
) -> None:
    uri = bucket.upload(written, "again/rows")
    assert newest_version(uri) == NEWEST
    system, path = file_system(uri)
    system.delete_dir(path)
    assert newest_version(uri) is None
    assert state_from_log(uri) is None
    options = dict(bucket.delta_rs)
    deltalake.write_deltalake(uri.replace("s3a:", "s3:"), pa.table({"m": ["a"]}), storage_options=options)
    state = state_from_log(uri)
    assert state is not None
    assert (state.version, state.schema.names) == (0, ["m"])


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_state_costs_a_request_for_each_new_file_of_the_log(bucket: Bucket, copy: Path) -> None:
    later = copy / "_delta_log" / commit_name(NEWEST)
    content = later.read_bytes()
    later.unlink()
    checksum = copy / "_delta_log" / checksum_name(NEWEST)
    checksum_content = checksum.read_bytes()
    checksum.unlink()
    uri = bucket.upload(copy, "state/rows")
    assert state_from_log(uri) is not None
    # The checkpoint, the entries after it, and the checksums of the checkpoint and of the newest entry.
    assert bucket.kinds() == {"LIST": 1, "GET": 1 + (NEWEST - 1 - CHECKPOINT) + 2}
    bucket.requests.clear()
    assert state_from_log(uri) is not None
    assert bucket.kinds() == {"LIST": 1}
    write_file(f"{uri}/_delta_log/{commit_name(NEWEST)}", content)
    write_file(f"{uri}/_delta_log/{checksum_name(NEWEST)}", checksum_content)
    bucket.requests.clear()
    state = state_from_log(uri)
    assert state is not None
    assert state.version == NEWEST
    assert bucket.kinds() == {"LIST": 1, "GET": 2}


def test_ten_tables_are_shown_by_twelve_requests_each_at_most(
    bucket: Bucket, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent = tmp_path / "recent"
    recent.mkdir()
    for path in (written / "_delta_log").glob("0*"):
        if path.name >= f"{CHECKPOINT:020d}":
            shutil.copy(path, recent)
    names = [f"rows_{number}" for number in range(10)]
    for name in names:
        bucket.upload(recent, f"shown/{name}/_delta_log")
    declaration = (
        "from pipeline.dataset import Dataset\nfrom pyspark.sql.types import LongType, StructField, StructType\n"
        "SCHEMA = StructType([StructField('n', LongType())])\n"
        f"datasets = tuple(Dataset(name=name, schema=SCHEMA) for name in {names})\n"
    )
    (tmp_path / "ten_tables.py").write_text(declaration)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {
        "PIPELINE_ROOT": f"{bucket.uri}/shown", "PIPELINE_DATASETS": "ten_tables:datasets", "JAVA_HOME": "/nowhere",
        "SPARK_REMOTE": "sc://127.0.0.1:1",
    }  # fmt: skip
    bucket.requests.clear()
    result = CliRunner().invoke(main, ["show"], env=environment, catch_exceptions=False)
    shown = [line.split() for line in result.stdout.splitlines()[2:]]
    assert [(line[0], line[2]) for line in shown] == [(name, str(NEWEST + 1)) for name in names], result.output
    assert len(bucket.requests) <= 120


def test_doctor_reads_each_file_of_a_bucket_once_also_that_of_a_consumer(
    bucket: Bucket, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("source", "consumer"):
        bucket.upload(written, f"examined/{name}")
    declaration = (
        "from pipeline.dataset import Append, Dataset\n"
        "from pyspark.sql.types import LongType, StructField, StructType\n"
        "SCHEMA = StructType([StructField('n', LongType())])\n"
        "source = Dataset(name='source', schema=SCHEMA, change_feed=True)\n"
        "consumer = Dataset(name='consumer', schema=SCHEMA, write=Append(), reads=('source',),\n"
        "                   reads_changes_of=('source',))\n"
        "datasets = (source, consumer)\n"
    )
    (tmp_path / "examined_tables.py").write_text(declaration)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {"PIPELINE_ROOT": f"{bucket.uri}/examined", "PIPELINE_DATASETS": "examined_tables:datasets"}
    bucket.requests.clear()
    result = CliRunner().invoke(main, ["doctor", "--json"], env=environment, catch_exceptions=False)
    diagnoses = json.loads(result.stdout)
    assert [(one["dataset"], one["version"], [each["kind"] for each in one["findings"]]) for one in diagnoses] == [
        ("source", NEWEST, ["small files"]), ("consumer", NEWEST, ["small files"]),
    ]  # fmt: skip
    read = Counter(each.split()[1] for each in bucket.requests if "list-type" not in each)
    twice = {path: count for path, count in read.items() if count > 1}
    assert twice == {}
    # Of each log the entries, checksums, checkpoint and pointer, and of each table the data files of its version.
    assert len(read) == 2 * (2 * (NEWEST + 1) + 2 + NEWEST + 1)
    kinds = bucket.kinds()
    assert kinds == {"GET": len(read), "LIST": kinds["LIST"]}
    assert kinds["LIST"] <= 2 * 13 + 2  # of each table, and of the project: its streams and staged frames


def verdict(uri: str, cursor: Cursor) -> Verdict:
    no_session: Any = None
    table = Dataset(name="rows", schema=SCHEMA).at(uri.removesuffix("/rows"))
    return verdict_on(no_session, table, cursor)


def cursor_at(uri: str, number: int) -> Cursor:
    state = state_from_log(uri)
    assert state is not None
    return Cursor(table_id=state.table_id, version=number, entry=commit_identity(uri, number))


def test_a_verdict_costs_a_request_for_each_new_commit_and_few_more(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "verdict/rows")
    cursor = cursor_at(uri, NEWEST - 50)
    bucket.requests.clear()
    found = verdict(uri, cursor)
    assert (found.kind, found.window, found.files) == (VerdictKind.CHANGES, (NEWEST - 49, NEWEST), 50)
    assert len(bucket.requests) <= 60
    bucket.requests.clear()
    assert verdict(uri, cursor_at(uri, NEWEST)).kind is VerdictKind.NOTHING_NEW
    assert len(bucket.requests) <= 4


def test_change_files_that_are_gone_are_found_by_one_listing(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "gone/rows")
    cursor = cursor_at(uri, NEWEST - 20)
    names = sorted(path.name for path in written.glob("*.parquet"))
    bucket.requests.clear()
    assert missing_files(uri, [*names, "other.parquet"]) == ("other.parquet",)
    assert bucket.kinds() == {"LIST": 1}
    (action,) = (a["add"] for a in actions_of("", entry_of(written, NEWEST - 7)) if "add" in a)
    bucket.delete(f"{uri}/{action['path']}")
    found = verdict(uri, cursor)
    assert (found.kind, found.reason, found.at_fault) == (VerdictKind.FULL, Reason.CHANGE_FILES_GONE, (NEWEST - 7,))


def entry_of(table: Path, number: int) -> bytes:
    return (table / "_delta_log" / commit_name(number)).read_bytes()


# --- damage that only checksums show ----------------------------------------------------------------------------------


def refused_in(bucket: Bucket, table: Path, name: str, number: int) -> str:
    uri = bucket.upload(table, f"{name}/rows")
    with pytest.raises(DamagedTableError) as caught:
        state_from_log(uri)
    assert caught.value.file == f"{uri}/_delta_log/{commit_name(number)}"
    return caught.value.reason


def test_an_entry_that_its_checksum_contradicts_is_named(bucket: Bucket, copy: Path) -> None:
    entry = copy / "_delta_log" / commit_name(NEWEST - 2)
    entry.write_text(entry.read_text().replace('"size": ', '"size": 1'))
    assert "its commit changed the table by 1 files" in refused_in(bucket, copy, "contradicted", NEWEST - 2)


def test_the_newest_entry_must_be_of_the_commit_that_its_checksum_names(bucket: Bucket, copy: Path) -> None:
    entry = copy / "_delta_log" / commit_name(NEWEST)
    entry.write_text(entry.read_text().replace(f"id {NEWEST}", "id 99"))
    assert "another commit" in refused_in(bucket, copy, "exchanged", NEWEST)


def test_a_newest_entry_that_is_gone_is_known_by_its_checksum(bucket: Bucket, copy: Path) -> None:
    (copy / "_delta_log" / commit_name(NEWEST)).unlink()
    assert "its checksum file exists" in refused_in(bucket, copy, "lost", NEWEST)


def test_a_checksum_that_changes_the_facts_of_a_version_is_contradicted_by_the_next_entry(
    bucket: Bucket, copy: Path
) -> None:
    first = NEWEST - 20
    checksum = copy / "_delta_log" / checksum_name(first)
    lie = json.loads(checksum.read_text())
    lie["metadata"] |= {"configuration": {}}
    checksum.write_text(json.dumps(lie))
    uri = bucket.upload(copy, "lie/rows")
    with pytest.raises(DamagedTableError, match="changed the table's metadata, according to its checksum") as caught:
        verdict(uri, cursor_at(uri, first))
    assert caught.value.file.endswith(commit_name(first + 1))


def test_facts_come_from_a_checksum_only_if_it_is_that_of_the_entry(bucket: Bucket, copy: Path) -> None:
    uri = bucket.upload(copy, "facts/rows")
    files = {file.name: file for file in all_files(uri)}
    assert facts_in_checksum(uri, NEWEST, files) == table_facts(uri, NEWEST)
    names = {commit_name(NEWEST): files[commit_name(NEWEST)], checksum_name(NEWEST): files[checksum_name(NEWEST - 1)]}
    assert facts_in_checksum(uri, NEWEST, names) is None
    assert facts_in_checksum(str(copy), NEWEST, {file.name: file for file in all_files(str(copy))}) is None


# --- the clean-up -----------------------------------------------------------------------------------------------------


def test_a_log_in_a_bucket_is_cleaned_as_one_on_this_machine(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "cleaned/rows")
    table = TableRef(Dataset(name="rows", schema=SCHEMA), uri)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=40)
    plan = plan_clean_log(table, now=later)
    expected = [name(number) for number in range(CHECKPOINT) for name in (commit_name, checksum_name)]
    assert (plan.kept_from, plan.readable_from, plan.checkpoint, list(plan.files)) == (50, 50, None, expected)
    clean_log(plan, lambda version: pytest.fail(f"a checkpoint of version {version} was written"))
    assert commit_versions(uri) == [50, 51, 52, 53, 54]
    assert {file.name for file in all_files(uri)} == {path.name for path in (written / "_delta_log").iterdir()} - {
        *expected
    }
    totals = [None if rows is None else rows.total for rows in (table_rows(uri, number) for number in (50, 52, NEWEST))]
    assert totals == [51, 53, 55]
    assert plan_clean_log(table, now=later).files == ()


def test_a_clean_up_that_the_store_refuses_is_made_by_the_next(bucket: Bucket, written: Path) -> None:
    uri = bucket.upload(written, "refused/rows")
    table = TableRef(Dataset(name="rows", schema=SCHEMA), uri)
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=40)

    def clean() -> None:
        clean_log(plan_clean_log(table, now=later), lambda version: pytest.fail(f"a checkpoint of {version}"))

    bucket.faults[:] = [Fault(FaultKind.REFUSE, "POST", "delete", times=None, status=403, code="AccessDenied")]
    try:
        with pytest.raises(StorageAccessError):
            clean()
    finally:
        bucket.faults.clear()
    assert commit_versions(uri) == [*range(NEWEST + 1)]
    clean()
    assert commit_versions(uri) == [50, 51, 52, 53, 54]
