"""Declared exports: what contradicts them, and the assets that they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DailyPartitionsDefinition, Definitions
from pyspark.sql import DataFrame
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset, Export, Registry
from pipeline.delta.export.refresh import FullReason, Refreshed
from pipeline.errors import DeclarationError, RegistryError
from pipeline.orchestration import build_definitions, dataset_asset
from pipeline.orchestration.exports import export_line, export_metadata
from pipeline.orchestration.metadata_keys import EXPORT_DROPPED, EXPORT_REASON, EXPORT_WRITTEN, URI
from pipeline.settings import Settings, load_settings

SCHEMA = StructType([StructField("day", DateType()), StructField("n", LongType()), StructField("text", StringType())])


def days(*exports: Any, **declared: Any) -> Dataset:
    return Dataset(name="shop/days", schema=SCHEMA, partition_by=("day",), exports=exports, **declared)


@pytest.mark.parametrize(
    ("exports", "problem"),
    [
        ((Export("s3a://b/x", format="delta"),), "format 'delta' is none of parquet, csv, ndjson"),  # type: ignore[arg-type]
        ((Export(" "),), "uri is empty"),
        ((Export("/x", columns=("m",)),), "column 'm' is not in the schema"),
        ((Export("/x", columns=("n", "n", "day")),), "column 'n' is named 2 times"),
        ((Export("/x", format="csv", columns=("day", "n")),), "column 'n' is alone in a line"),
        ((Export("/x", where=" "),), "where is empty; leave it out"),
        ((Export("/x", name="a/b"),), "export 'a/b': a name has letters"),
        ((Export("/x", name="quarantine"),), "is not that of the quarantine"),
        ((Export("/x"), Export("/y")), "two exports have the name 'export'"),
        ((Export("/x/"), Export("/x", name="other")), "two exports have the uri '/x'"),
        (("/x",), "exports[0]: expected Export"),
        ((Export(5),), "exports[0].uri: expected str"),  # type: ignore[arg-type]
    ],
)
def test_an_export_that_contradicts_itself_is_refused(exports: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        days(*exports)
    assert [problem in one for one in caught.value.problems] == [True]


def test_exports_of_two_datasets_share_no_folder_and_no_name() -> None:
    other = replace(days(Export("s3a://b/x/")), name="other")
    with pytest.raises(RegistryError) as caught:
        Registry([days(Export("s3a://b/x")), other])
    assert caught.value.problems == (
        "the export other__export would have the name or the folder of the export shop/days__export",
    )
    with pytest.raises(RegistryError) as caught:
        Registry([days(Export("/x")), replace(days(), name="shop/Days__export")])
    assert caught.value.problems == (
        "the export shop/days__export would have the name or the folder of the dataset shop/Days__export",
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "pyproject.toml").write_text("[tool.pipeline]\n", encoding="utf-8")
    return load_settings(start=tmp_path)


def assets_of(settings: Settings, dataset: Dataset, **options: Any) -> Definitions:
    @dataset_asset(dataset, **options)
    def frame() -> DataFrame: ...

    return build_definitions(settings, datasets=[dataset], assets=[frame])


def test_an_export_is_an_asset_downstream_that_is_partitioned_alike(settings: Settings) -> None:
    daily = DailyPartitionsDefinition("2026-01-01")
    dataset = days(Export("out/days"), Export("s3a://b/x", format="csv", name="csv"), group="shop", owners=("team:us",))
    definitions = assets_of(settings, dataset, partitions_def=daily)
    source = AssetKey(["shop", "days"])
    for name, uri, kind in (("export", str(settings.project / "out/days"), "parquet"), ("csv", "s3a://b/x", "csv")):
        spec = definitions.resolve_assets_def(AssetKey(["shop", f"days__{name}"])).specs_by_key[
            AssetKey(["shop", f"days__{name}"])
        ]
        assert [dep.asset_key for dep in spec.deps] == [source]
        assert (spec.partitions_def, spec.group_name, list(spec.owners)) == (daily, "shop", ["team:us"])
        assert (spec.metadata[URI], kind in spec.kinds) == (uri, True)
        assert spec.automation_condition is not None
    assert "changed_sources" in [sensor.name for sensor in definitions.sensors or ()]
    Definitions.validate_loadable(definitions)


def test_without_exports_nothing_is_added(settings: Settings) -> None:
    definitions = assets_of(settings, days())
    assert {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()} == {"shop/days"}


def test_the_folders_and_the_reason_are_reported() -> None:
    refreshed = Refreshed(
        dataset="days", target="/x", version=4, previous=3, reason=None, written=("day=1",), dropped=("day=2",),
        rows=9, rows_written=2,
    )  # fmt: skip
    assert export_line(refreshed) == "/x: version 4, 2 rows written, 1 folders written, 1 dropped"
    assert EXPORT_REASON not in export_metadata(refreshed)
    full = replace(refreshed, reason=FullReason.RESTORED)
    assert export_line(full).endswith("dropped, everything: the table was restored")
    values = export_metadata(full)
    assert values[EXPORT_REASON] == "the table was restored"
    assert [values[name].value for name in (EXPORT_WRITTEN, EXPORT_DROPPED)] == [["day=1"], ["day=2"]]
    nothing = replace(refreshed, written=(), dropped=(), rows_written=0)
    assert export_line(nothing) == "/x: nothing changed, version 4"
