"""What a declaration is given, against what its annotations allow: every argument, with what was probably meant."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import (
    Append,
    Changelog,
    Check,
    Dataset,
    ErrorIfExists,
    Features,
    FreshByCron,
    FreshWithin,
    Ignore,
    InsertNew,
    Merge,
    NotNull,
    References,
    Registry,
    Replace,
    RowCount,
    SchemaCheck,
    SchemaPolicy,
    StoragePolicy,
    Unique,
)
from pipeline.delta.sink.sink import DeltaSink, SinkSettings
from pipeline.errors import DeclarationError, PipelineError, RegistryError, SettingsError
from pipeline.errors.argument_types import type_problems
from pipeline.orchestration import dataset_asset, dataset_metadata, dataset_out
from pipeline_tests.unit.sink_sample import settings_in

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
GOOD = Dataset(
    name="good",
    schema=SCHEMA,
    keys=("id",),
    write=Merge(order_by="text"),
    checks=(Check("positive", "id > 0"),),
    properties=(("owner.team", "us"),),
    storage=StoragePolicy(log_retention_hours=48, statistics_columns=("id",)),
    schema_policy=SchemaPolicy(mode="evolve"),
    features=Features(type_widening=True),
    freshness=FreshWithin(fail_after=timedelta(hours=1)),
    row_count=RowCount(minimum=1),
    expectations=(Unique(("id",)), References(("text",), "others")),
)


def problems_of(**arguments: Any) -> tuple[str, ...]:
    with pytest.raises(DeclarationError) as caught:
        Dataset(**{"name": "tried", "schema": SCHEMA, "keys": ("id",)} | arguments)
    return caught.value.problems


@pytest.mark.parametrize("mode", [Append, Replace, Merge, InsertNew, ErrorIfExists, Ignore], ids=lambda m: m.__name__)
def test_a_write_mode_is_an_instance_and_neither_its_class_nor_its_name(mode: type) -> None:
    for given in (mode, mode.__name__, mode.__name__.lower()):
        (problem,) = problems_of(write=given)
        assert problem.startswith("write: expected Append or Replace or Merge")
        assert problem.endswith(f"; did you mean {mode.__name__}()?")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"partition_by": "id"}, "('id',)"),
        ({"keys": ["id"]}, "('id',)"),
        ({"keys": {"id"}}, "('id',)"),
        ({"reads": "x"}, "('x',)"),
        ({"reads_changes_of": ["x"]}, "('x',)"),
        ({"owners": "team:us"}, "('team:us',)"),
        ({"tags": {"a": "b"}}, "(('a', 'b'),)"),
        ({"properties": {"a": "b"}}, "(('a', 'b'),)"),
        ({"freshness": timedelta(hours=2)}, "FreshWithin(fail_after=datetime.timedelta(seconds=7200))"),
        ({"row_count": 5}, "RowCount(minimum=5)"),
        ({"schema_check": SchemaCheck}, "SchemaCheck()"),
        ({"storage": StoragePolicy}, "StoragePolicy()"),
        ({"expectations": (Unique("id"),)}, "('id',)"),
        ({"features": Features(cluster_by="id")}, "('id',)"),
        ({"storage": StoragePolicy(statistics_columns=["id"])}, "('id',)"),
        ({"write": Merge(keep_columns="text")}, "('text',)"),
    ],
)
def test_what_was_probably_meant_is_said(arguments: dict[str, Any], meant: str) -> None:
    (problem,) = problems_of(**arguments)
    assert problem.endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"name": 5}, "name"), ({"name": None}, "name"), ({"schema": []}, "schema"), ({"schema": StructType}, "schema"),
        ({"schema": SCHEMA.fields}, "schema"), ({"keys": (5,)}, "keys[0]"), ({"keys": None}, "keys"),
        ({"change_feed": 1}, "change_feed"), ({"change_feed": "yes"}, "change_feed"), ({"write": None}, "write"),
        ({"checks": ("id > 0",)}, "checks[0]"), ({"checks": (Check("a", 5),)}, "checks[0].condition"),
        ({"checks": (Check("a", "id > 0", blocking="no"),)}, "checks[0].blocking"),
        ({"not_null": (NotNull(3),)}, "not_null[0].column"), ({"not_null": "id"}, "not_null"),
        ({"properties": (("a", 1),)}, "properties[0][1]"), ({"properties": (("a",),)}, "properties[0]"),
        ({"properties": ("ab",)}, "properties[0]"), ({"description": None}, "description"), ({"group": 1}, "group"),
        ({"code_version": 7}, "code_version"), ({"row_count": RowCount(minimum=True)}, "row_count.minimum"),
        ({"row_count": RowCount(minimum=1.0)}, "row_count.minimum"),
        ({"storage": StoragePolicy(log_retention_hours=math.nan)}, "storage.log_retention_hours"),
        ({"storage": StoragePolicy(codec=3)}, "storage.codec"),
        ({"storage": StoragePolicy(auto_compact="true")}, "storage.auto_compact"),
        ({"schema_policy": "evolve"}, "schema_policy"),
        ({"schema_policy": SchemaPolicy(mode=None)}, "schema_policy.mode"),
        ({"schema_policy": SchemaPolicy(renames=(("a", 1),))}, "schema_policy.renames[0][1]"),
        ({"features": Features(row_tracking=1)}, "features.row_tracking"), ({"features": "row_tracking"}, "features"),
        ({"freshness": FreshWithin(fail_after=3)}, "freshness.fail_after"),
        ({"freshness": FreshByCron(cron=5, window=timedelta(hours=1))}, "freshness.cron"),
        ({"write": Merge(order_by=5)}, "write.order_by"),
        ({"write": Merge(delete_missing="all")}, "write.delete_missing"),
        ({"write": Merge(changelog="op")}, "write.changelog"),
        ({"write": Merge(changelog=Changelog(operation="op", sequence=1))}, "write.changelog.sequence"),
        ({"expectations": (References(("id",), 5),)}, "expectations[0].dataset"),
        ({"expectations": Unique(("id",))}, "expectations"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_an_argument_of_another_type_is_refused_by_its_place(arguments: dict[str, Any], path: str) -> None:
    (problem,) = problems_of(**arguments)
    assert problem.startswith(f"{path}: expected ")


def test_every_argument_of_every_part_is_asked() -> None:
    """A value that no annotation allows is put into each field in turn, at every depth."""
    nothing = object()

    def places(part: Any, path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(part):
            found[f"{path}{field.name}"] = dataclasses.replace
            inner = getattr(part, field.name)
            if dataclasses.is_dataclass(inner):
                found |= places(inner, f"{path}{field.name}.")
        return found

    def with_nothing(part: Any, path: str) -> Any:
        name, _, rest = path.partition(".")
        changed = object.__new__(type(part))
        for field in dataclasses.fields(part):
            object.__setattr__(changed, field.name, getattr(part, field.name))
        object.__setattr__(changed, name, with_nothing(getattr(part, name), rest) if rest else nothing)
        return changed

    assert list(type_problems(GOOD)) == []
    asked = places(GOOD)
    assert {"write.order_by", "storage.codec", "freshness.fail_after", "row_count.maximum"} <= asked.keys()
    unasked = [path for path in asked if [p.path for p in type_problems(with_nothing(GOOD, path))] != [path]]
    assert unasked == []


def test_all_wrong_arguments_are_named_at_once() -> None:
    assert [problem.partition(":")[0] for problem in problems_of(keys="id", reads=5, change_feed=None)] == [
        "keys", "reads", "change_feed",
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["good", None, Dataset, 5])
def test_what_takes_a_dataset_takes_nothing_else(given: Any, tmp_path: Any) -> None:
    for take in (dataset_asset, dataset_out, dataset_metadata, lambda d: DeltaSink(d, "w", settings_in(tmp_path))):
        with pytest.raises(DeclarationError) as caught:
            take(given)
        assert "takes a Dataset, got" in caught.value.problems[0]
    with pytest.raises(RegistryError):
        Registry([given])


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"flush_seconds": "3"}, "flush_seconds"), ({"flush_seconds": math.nan}, "flush_seconds"),
        ({"flush_rows": 1.5}, "flush_rows"), ({"flush_rows": True}, "flush_rows"), ({"when_full": 1}, "when_full"),
        ({"journal": "folder"}, "journal"), ({"retry_seconds": -1}, "retry_seconds"),
        ({"compact_after": -1}, "compact_after"),
    ],
)  # fmt: skip
def test_settings_of_a_sink_are_of_their_types(options: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SinkSettings(**options)
    assert caught.value.setting == f"SinkSettings.{setting}"


def test_a_writer_id_is_a_text(tmp_path: Any) -> None:
    with pytest.raises(PipelineError):
        DeltaSink(dataclasses.replace(GOOD, write=Append()), 5, settings_in(tmp_path))  # type: ignore[arg-type]
