"""The doctor: every damage is named with its file and what helps, and nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, Merge
from pipeline.delta.inspect.doctor import Diagnosis, examine
from pipeline.delta.maintain.maintain import checkpoint
from pipeline.errors import StorageError, TableNotFoundError, UnknownSchemeError
from pipeline_tests.delta.sample import APPENDED, DAYS, day, files_of, put
from pipeline_tests.object_stores import unreachable_bucket
from pipeline_tests.tiers import first_is_quick

case = pytest.mark.case
VERSIONS = 11


@pytest.fixture(scope="module")
def eleven(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of ten appends with a checkpoint at version 10, to be copied."""
    root = str(tmp_path_factory.mktemp("eleven"))
    for number in range(1, VERSIONS):
        put(classic, APPENDED, root, [(day(number), number, "x")])
    checkpoint(classic, APPENDED.at(root))
    return Path(root)


@pytest.fixture
def table(eleven: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(eleven, tmp_path / "tables")
    return tmp_path / "tables" / APPENDED.name


def look(table: Path) -> Diagnosis:
    return examine(APPENDED.name, str(table))


def kinds(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What was found, and in which file."""
    return [(finding.kind, Path(finding.path).name) for finding in diagnosis.findings]


def log(table: Path, name: str) -> Path:
    return table / "_delta_log" / name


def test_a_sound_table_has_no_findings(table: Path) -> None:
    found = look(table)
    assert (found.version, found.files, found.findings, found.healthy) == (10, 10, (), True)
    assert found.bytes == sum(path.stat().st_size for path in table.glob("day=*/*.parquet"))


def test_files_that_no_commit_knows_are_listed_and_are_no_damage(table: Path) -> None:
    (table / "day=2026-01-01" / "part-orphan.parquet").write_bytes(b"x")
    (table / "_date=1").mkdir()
    (table / "_date=1" / "part-orphan.parquet").write_bytes(b"x")
    for hidden in ("_backup/keep.txt", ".hidden/keep.txt"):
        (table / hidden).parent.mkdir()
        (table / hidden).write_bytes(b"x")
    found = look(table)
    assert [(f.kind, f.path) for f in found.findings] == [
        ("orphan", "_date=1/part-orphan.parquet"), ("orphan", "day=2026-01-01/part-orphan.parquet"),
    ]  # fmt: skip
    assert found.healthy


def test_a_file_of_the_newest_version_that_is_gone_is_damage(table: Path) -> None:
    lost = next(table.glob("day=2026-01-05/*.parquet"))
    lost.unlink()
    found = look(table)
    assert kinds(found) == [("missing file", lost.name)]
    assert not found.healthy


@case("X-CKPT-CORRUPT")
@pytest.mark.parametrize("content", [b"0123456789", b""], ids=["garbage", "empty"])
def test_a_damaged_checkpoint_is_named_with_its_repair_and_the_files_are_judged_by_the_commits(
    table: Path, content: bytes
) -> None:
    (damaged,) = table.glob("_delta_log/*.checkpoint*.parquet")
    damaged.write_bytes(content)
    found = look(table)
    assert kinds(found) == [("damaged checkpoint", damaged.name)]
    assert (found.files, found.healthy) == (10, False)
    assert f"pipeline doctor {APPENDED.name} --repair --apply" in found.findings[0].remedy


@case("X-LAST-CKPT")
@pytest.mark.parametrize(
    "content", first_is_quick(['{"version":', '{"version":999,"size":1}', "", None, '{"version":0,"size":1}'])
)
def test_the_pointer_to_the_checkpoint_is_not_relied_on(
    classic: SparkSession, table: Path, content: str | None
) -> None:
    pointer = log(table, "_last_checkpoint")
    pointer.unlink() if content is None else pointer.write_text(content)
    assert look(table).findings == ()
    assert classic.read.format("delta").load(str(table)).count() == 10


@case("X-ZERO-COMMIT")
@pytest.mark.parametrize("cut", [0, 50], ids=["empty", "cut off"])
def test_a_commit_that_is_empty_or_cut_off_is_named_with_its_version(table: Path, cut: int) -> None:
    for path in table.glob("_delta_log/*checkpoint*"):
        path.unlink()
    commit = log(table, f"{3:020d}.json")
    commit.write_bytes(commit.read_bytes()[:cut])
    found = look(table)
    assert kinds(found) == [("damaged commit", commit.name)]
    assert "commit 3" in found.findings[0].remedy
    assert not found.healthy


def test_a_gap_in_the_log_is_named_and_no_file_is_called_an_orphan_for_it(table: Path) -> None:
    for path in table.glob("_delta_log/*checkpoint*"):
        path.unlink()
    log(table, f"{4:020d}.json").unlink()
    assert kinds(look(table)) == [("log gap", f"{4:020d}.json")]


def test_commits_before_a_checkpoint_may_be_cleaned_away(table: Path) -> None:
    for number in range(9):
        log(table, f"{number:020d}.json").unlink()
    assert look(table).findings == ()


@pytest.mark.exhaustive
def test_files_of_the_change_feed_and_of_older_versions_are_known(classic: SparkSession, root: str) -> None:
    dataset = Dataset(name="fed", schema=DAYS, partition_by=("day",), keys=("id",), write=Merge())
    put(classic, dataset, root, [(day(1), 1, "a"), (day(1), 2, "b")])
    put(classic, dataset, root, [(day(1), 1, "A")])
    location = Path(dataset.location(root))
    assert list(location.glob("_change_data/**/*.parquet"))
    assert examine(dataset.name, str(location)).findings == ()
    (location / "_change_data" / "orphan.parquet").write_bytes(b"x")
    assert [f.path for f in examine(dataset.name, str(location)).findings] == ["_change_data/orphan.parquet"]
    assert files_of(dataset, root)


def test_values_with_any_characters_are_found_on_disk_under_their_encoded_folders(
    classic: SparkSession, root: str
) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    schema = StructType([StructField("p", StringType()), StructField("n", LongType())])
    dataset = Dataset(name="odd", schema=schema, partition_by=("p",))
    put(classic, dataset, root, [(value, 1) for value in ("a/b", "a b", "a%2Fb", "a:c", "é", None)])
    found = examine(dataset.name, dataset.location(root))
    assert (found.files, found.findings) == (6, ())


def test_a_table_that_was_never_written_and_a_storage_that_can_t_be_read_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        examine(APPENDED.name, str(tmp_path / "nothing"))
    with pytest.raises(UnknownSchemeError):
        examine(APPENDED.name, "nosuchscheme://bucket/table")
    with pytest.raises(StorageError):
        examine(APPENDED.name, f"{unreachable_bucket()}/table")


def test_an_action_of_a_later_protocol_does_no_harm(table: Path) -> None:
    with log(table, f"{10:020d}.json").open("a", encoding="utf-8") as commit:
        commit.write(json.dumps({"domainMetadata": {"domain": "x", "configuration": "", "removed": False}}) + "\n")
    assert look(table).findings == ()
