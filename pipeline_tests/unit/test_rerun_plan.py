"""The plan of `pipeline rerun`: what is pinned, and every reason against it, from logs, records and definitions alone.

The tables here are written by delta-rs, so that no JVM is needed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from pipeline.delta.inspect.manifest import full_manifest
from pipeline.delta.inspect.record import FOLDER, DatasetRecord
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.log.snapshot import table_facts
from pipeline.delta.read.pinned import Observed, problem_of_version
from pipeline.delta.storage.text_files import write_text
from pipeline.errors import RunNotFoundError
from pipeline.orchestration.commands.rerun import Request, rerun_in
from pipeline.orchestration.commands.rerun_plan import RerunPlan, plan_rerun
from pipeline.settings import Settings
from pipeline_tests.projects import repeated

RUN = "5d0e2f8a-0000-4000-8000-000000000001"
LATER = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)  # fmt: skip


def put(location: str, *ids: int, mode: Any = "overwrite", note: dict[str, Any] | None = None) -> None:
    table = pa.table({"id": list(ids), "part": ["a"] * len(ids), "n": list(ids)}, SCHEMA)
    text = {} if note is None else {"userMetadata": json.dumps({"pipeline": 1} | note)}
    properties = deltalake.CommitProperties(custom_metadata=text)
    deltalake.write_deltalake(location, table, mode=mode, commit_properties=properties)


def vacuum(location: str) -> None:
    """Remove the files of all versions but the newest."""
    deltalake.DeltaTable(location).vacuum(0, dry_run=False, enforce_retention_duration=False)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def at(root: str, tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, root=root, landing=str(tmp_path / "landing"))


@pytest.fixture
def written(root: str, instance: DagsterInstance) -> str:
    """The run `RUN`, which has appended to `added` what `delivered` had at version 1; later runs follow."""
    delivered, added = f"{root}/delivered", f"{root}/added"
    for ids in ((1,), (1, 2), (3,)):
        put(delivered, *ids)
    mark = Mark(writer="added/w", epoch=0)
    note = CommitNote(mark=mark, run_id=RUN, asset="added", sources={"delivered": 1}).document()
    put(added, 7)
    put(added, 1, 2, mode="append", note=note)
    put(added, 9, mode="append")
    keep(root, record(root, mark, note))
    instance.add_run(DagsterRun("__ASSET_JOB", run_id=RUN, status=DagsterRunStatus.SUCCESS))
    return root


def record(root: str, mark: Mark, note: dict[str, Any], name: str = "added", **further: Any) -> DatasetRecord:
    facts = table_facts(f"{root}/{name}", 0)
    assert facts is not None
    values: dict[str, Any] = {
        "name": name, "path": f"{root}/{name}", "run_id": RUN, "recorded_at": LATER.isoformat(), "version": 1,
        "committed": True, "table_id": facts.table_id, "features": (), "protocol": {"reader": 1, "writer": 2},
        "properties": {}, "schema": facts.schema, "fingerprint": repeated.ADDED.fingerprint,
        "write_policy": {"mode": "append", "partition_by": [], "keys": []}, "storage_options": {},
        "commit": {"operation": "WRITE", "user_metadata": json.dumps({"pipeline": 1} | note)}, "rows_written": 2,
        "rows_by_partition": None, "sources": {"delivered": 1}, "partitions": None, "mark": vars(mark),
        "runtime": {"spark": "3.5.0", "python": "3.8.1", "mode": "local[*]"},
    }  # fmt: skip
    return DatasetRecord(**(values | further))


def keep(root: str, one: DatasetRecord) -> None:
    write_text(f"{root}/{FOLDER}/{RUN}/{one.name.replace('/', '.')}@{one.version}.json", one.to_json())


def planned(at: Settings, instance: DagsterInstance) -> RerunPlan:
    repository = repeated.project(at).get_repository_def()
    return plan_rerun(full_manifest(at.root, RUN), at, repository, instance)[0]


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_plan_has_the_versions_that_were_read_and_found_and_what_differs_now(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    plan = planned(at, instance)
    assert plan.all_problems == ()
    (table,) = plan.tables
    assert (table.dataset, table.operation, table.version, table.before) == ("added", "WRITE", 1, 0)
    assert [(one.dataset, one.version, one.newest) for one in table.sources] == [("delivered", 1, 2)]
    assert plan.environment["spark"][0] == "3.5.0"
    assert plan.environment["python"][0] == "3.8.1"
    assert "mode" not in plan.environment, "where Spark will run is not known yet"
    pins = plan.pins("/scratch")
    assert (pins.root, pins.versions) == ("/scratch", {"added": {"delivered": 1}})


def test_without_apply_the_plan_is_all_and_nothing_is_written(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    before = sorted(map(str, Path(written).rglob("*")))
    told: list[dict[str, Any]] = []
    assert rerun_in(repeated.project(at).get_repository_def, at, instance, Request(RUN[:8]), told.append)
    assert [line["event"] for line in told] == ["plan"]
    json.dumps(told)
    assert sorted(map(str, Path(written).rglob("*"))) == before
    assert len(instance.get_runs()) == 1


def test_an_input_of_which_no_version_is_known_is_named(written: str, at: Settings, instance: DagsterInstance) -> None:
    put(f"{written}/delivered", 5)
    note = CommitNote(mark=Mark(writer="delivered/w", epoch=0), asset="delivered", code_version="0").document()
    policy = {"mode": "replace", "partition_by": [], "keys": []}
    keep(
        written,
        record(
            written, Mark(writer="delivered/w", epoch=0), note, "delivered", sources={}, write_policy=policy,
            code_version="0",
        ),
    )  # fmt: skip
    table = next(one for one in planned(at, instance).tables if one.dataset == "delivered")
    assert table.unpinned == ("resource deliveries",)
    assert table.differences == ("code version: 0 then, 1 now",)
    assert table.before is None, "a replace of the whole table begins without rows"


# --- what is gone -----------------------------------------------------------------------------------------------------


def test_a_version_whose_files_were_vacuumed_is_named_with_the_table_that_needs_it(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    vacuum(f"{written}/delivered")
    problem = "added: its source delivered: 1 of 1 files of version 1 were vacuumed"
    assert planned(at, instance).all_problems == (problem,)


def test_with_a_problem_nothing_is_started_even_with_apply(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    vacuum(f"{written}/delivered")
    told: list[dict[str, Any]] = []
    definitions = repeated.project(at).get_repository_def
    assert rerun_in(definitions, at, instance, Request(RUN, apply=True), told.append)
    assert [line["event"] for line in told] == ["plan"]
    assert not Path(written, "_reruns").exists()


def test_a_table_that_was_made_again_is_another_one(written: str, at: Settings, instance: DagsterInstance) -> None:
    for name in ("delivered", "added"):
        Path(f"{written}/{name}").rename(f"{written}/{name}_before")
        for number in range(3):
            put(f"{written}/{name}", number)
    keep(written, replace(full_manifest(written, RUN).commits[0], recorded_at="2020-01-01T00:00:00+00:00"))
    problems = planned(at, instance).all_problems
    assert len(problems) == 3, problems
    assert all("is that of another table: the table was made again since" in problem for problem in problems)


def test_a_version_that_lost_no_file_can_be_read_although_an_older_one_can_not(root: str) -> None:
    location = f"{root}/grown"
    put(location, 1)
    put(location, 2)
    put(location, 3, mode="append")
    put(location, 4, mode="append")
    vacuum(location)
    observed = [Observed(version=version, at=LATER) for version in range(4)]
    problems = [problem_of_version("grown", location, one) for one in observed]
    assert problems == ["1 of 1 files of version 0 were vacuumed", None, None, None]


def test_versions_that_do_not_exist_are_told_apart(root: str) -> None:
    location = f"{root}/short"
    assert problem_of_version("short", location, Observed(version=0, at=LATER)) == "there is no table any more"
    put(location, 1)
    problem = problem_of_version("short", location, Observed(version=4, at=LATER))
    assert problem == "version 4 does not exist: the newest version is 0, so the table was made again"
    for number in (2, 3):
        put(location, number, mode="append")
    deltalake.DeltaTable(location).create_checkpoint()
    Path(location, "_delta_log", f"{0:020}.json").unlink()
    problem = problem_of_version("short", location, Observed(version=1, at=LATER))
    assert problem == "version 1 was cleaned from the log, which has the state of the versions from 2 on"


# --- what can't be repeated -------------------------------------------------------------------------------------------


def test_a_run_that_the_instance_does_not_have_needs_that_instance(written: str, at: Settings) -> None:
    with DagsterInstance.ephemeral() as other:
        (problem,) = planned(at, other).all_problems
    assert "the Dagster instance has no run" in problem
    assert "Set DAGSTER_HOME to the folder of the instance that ran it" in problem


def test_an_unknown_run_is_named(written: str, at: Settings, instance: DagsterInstance) -> None:
    with pytest.raises(RunNotFoundError):
        rerun_in(repeated.project(at).get_repository_def, at, instance, Request("nonsense"), lambda _: None)


@pytest.mark.parametrize(
    ("further", "problem"),
    [
        ({"name": "gone"}, "gone: no asset of the definitions writes it any more"),
        ({"partitions": "part = 'a'"}, "added: its asset was partitioned then, and is not now"),
        ({"sources": {}}, "added: it reads delivered now, and the run has not read it"),
    ],
)
def test_what_the_definitions_can_not_repeat_is_named(
    written: str, at: Settings, instance: DagsterInstance, further: dict[str, Any], problem: str
) -> None:
    name = further.get("name", "added")
    for file in Path(written, FOLDER, RUN).iterdir():
        old = DatasetRecord.from_json(file.read_text(encoding="utf-8"), str(file))
        file.unlink()
    put(f"{written}/gone", 1)
    keep(written, replace(old, **{"path": f"{written}/{name}", "table_id": _id(written, name)} | further))
    problems = [one for one in planned(at, instance).all_problems if "does not exist" not in one]
    assert [one.startswith(problem) for one in problems] == [True], problems


def _id(root: str, name: str) -> str:
    facts = table_facts(f"{root}/{name}", 0)
    assert facts is not None
    return facts.table_id


def test_the_batches_of_a_stream_are_not_repeated(written: str, at: Settings, instance: DagsterInstance) -> None:
    (old,) = full_manifest(written, RUN).commits
    note = json.loads(old.commit["user_metadata"]) | {"stream": {"checkpoint": "c", "content": None}}
    keep(written, replace(old, commit=dict(old.commit) | {"user_metadata": json.dumps(note)}))
    assert planned(at, instance).all_problems == (
        "added: a stream has written it, and what its source had is not pinned",
    )


def test_a_skipped_attempt_counts_as_the_commit_that_its_first_attempt_made(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    """Its rows are in the version that it names: a copy of that version would hold them twice."""
    (old,) = full_manifest(written, RUN).commits
    keep(written, replace(old, committed=False, mark=dict(old.mark) | {"token": "other", "attempt": 2}))
    (table,) = planned(at, instance).tables
    assert (table.version, table.before) == (1, 0)


def test_a_write_that_had_nothing_to_commit_begins_with_the_version_that_it_found(
    written: str, at: Settings, instance: DagsterInstance
) -> None:
    (old,) = full_manifest(written, RUN).commits
    keep(written, replace(old, committed=False, mark=dict(old.mark) | {"writer": "added/later"}))
    (table,) = planned(at, instance).tables
    assert (table.operation, table.version, table.before) == ("no commit", 1, 1)
