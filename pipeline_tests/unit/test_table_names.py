"""The names of tables in a catalog: their form, those that a setting gives, and what shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dagster import AssetKey, asset
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.cli.registry import declaration
from pipeline.dataset import Check, Dataset, Registry
from pipeline.delta.table.catalog import _Entry, _normalized
from pipeline.errors import CatalogError, DeclarationError, RegistryError, SettingsError, TableNameTakenError
from pipeline.orchestration import build_definitions, dataset_asset, dataset_metadata
from pipeline.orchestration.metadata import table_name
from pipeline.orchestration.metadata_keys import TABLE_NAME
from pipeline.settings import Settings

ONE = StructType([StructField("n", LongType())])


def named(name: str | None, dataset: str = "deep/merged") -> Dataset:
    return Dataset(name=dataset, schema=ONE, table_name=name)


# --- the form ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("t", ("t",)),
        ("s.t", ("s", "t")),
        ("Lake.silver.2024_orders", ("Lake", "silver", "2024_orders")),
        ("`t`", ("t",)),
        ("`my-lake`.silver.`it's`", ("my-lake", "silver", "it's")),
        ("lake.`a``b`.`c d`", ("lake", "a`b", "c d")),
        ("lake.`zürich`.t", ("lake", "zürich", "t")),
    ],
)
def test_a_name_has_one_to_three_parts_and_any_text_between_backquotes(name: str, parts: tuple[str, ...]) -> None:
    assert named(name).table_name_parts == parts


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "a.", ".a", "a..b", "a b", "a-b.c", "zürich", "a.`b", "a`b`", "``", "a;b", "'a'", "a.b -- c", "a\n"],
)
def test_a_text_that_is_no_name_is_refused_where_it_is_declared(name: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        named(name)
    (problem,) = caught.value.problems
    assert problem.startswith(f"table_name {name!r}: expected words")


@pytest.mark.parametrize("part", ["a/b", "a.b", "a\nb", "a\x00", " a", "a ", "\u200b"])
def test_a_part_that_would_be_a_path_or_is_not_visible_is_refused(part: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        named(f"lake.`{part}`")
    (problem,) = caught.value.problems
    assert f"part {part!r} has a dot" in problem


def test_a_name_of_four_parts_is_refused() -> None:
    with pytest.raises(DeclarationError, match="it has 4 parts, and at most 3"):
        named("a.b.c.d")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(DeclarationError, match="table_name: expected"):
        Dataset(name="a", schema=ONE, table_name=("a", "b"))  # type: ignore[arg-type]


def test_the_quarantine_is_named_after_its_dataset() -> None:
    check = Check("positive", "n > 0", on_violation="quarantine")
    dataset = replace(named("lake.silver.`my-table`"), checks=(check,))
    assert dataset.quarantine is not None
    assert dataset.quarantine.table_name == "lake.silver.`my-table__quarantine`"
    unnamed = replace(dataset, table_name=None)
    assert unnamed.quarantine is not None
    assert unnamed.quarantine.table_name is None
    by_setting = Registry([unnamed], catalog="lake")
    assert {d.name: d.table_name for d in by_setting} == {
        "deep/merged": "lake.deep.merged", "deep/merged__quarantine": "lake.deep.merged__quarantine",
    }  # fmt: skip


# --- the setting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catalog", "dataset", "name"),
    [
        ("lake", "readings", "lake.default.readings"),
        ("lake", "deep/merged", "lake.deep.merged"),
        ("lake", "shop/eu/orders", "lake.shop.eu_orders"),
        ("lake", "shop.eu/or-ders", "lake.shop_eu.or_ders"),
        ("lake.silver", "readings", "lake.silver.readings"),
        ("lake.silver", "deep/merged", "lake.silver.deep_merged"),
        ("`my-lake`.silver", "a/b", "`my-lake`.silver.a_b"),
    ],
)
def test_the_setting_names_a_dataset_below_a_catalog_or_a_schema(catalog: str, dataset: str, name: str) -> None:
    assert named(None, dataset).named(catalog).table_name == name


def test_a_dataset_with_a_name_keeps_it_and_without_the_setting_none_gets_one() -> None:
    assert named("a.b").named("lake").table_name == "a.b"
    unnamed = named(None)
    assert unnamed.named(None) is unnamed
    assert [d.table_name for d in Registry([unnamed])] == [None]
    assert unnamed.table_name_parts == ()


@pytest.mark.parametrize("catalog", ["", "a-b", "a.b.c", "a.", "`a/b`"])
def test_a_setting_that_is_no_catalog_or_schema_is_refused(catalog: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Registry([named(None)], catalog=catalog)
    assert (caught.value.setting, repr(catalog) in caught.value.problem) == ("catalog", True)


# --- names that two tables would share --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [("lake.s.t", "lake.s.t"), ("lake.s.t", "Lake.S.T"), ("s.`t`", "s.t"), ("`Ä`", "`ä`")],
)
def test_two_datasets_of_one_table_name_are_refused_in_any_case_and_quoting(first: str, second: str) -> None:
    with pytest.raises(RegistryError) as caught:
        Registry([named(first, "a"), named(second, "b"), named("other", "c")])
    (problem,) = caught.value.problems
    assert problem.startswith("a and b would share the table name ")


def test_a_name_that_the_setting_gives_is_compared_with_every_other_name() -> None:
    datasets = [named(None, "shop/eu_orders"), named(None, "shop/eu/orders"), named("lake.shop.EU_orders", "third")]
    assert len(Registry(datasets)) == 3
    with pytest.raises(RegistryError) as caught:
        Registry(datasets, catalog="lake")
    (problem,) = caught.value.problems
    assert "shop/eu_orders and shop/eu/orders and third would share the table name lake.shop.eu_orders" in problem


# --- what Dagster and the command line show ---------------------------------------------------------------------------


def test_the_metadata_have_the_name_without_backquotes_and_otherwise_the_asset_key() -> None:
    assert table_name(named("lake.`my-schema`.t")) == "lake.my-schema.t"
    assert table_name(named(None)) == "deep.merged"
    assert dataset_metadata(named("lake.s.t"))[TABLE_NAME] == "lake.s.t"
    assert TABLE_NAME not in dataset_metadata(named(None))


@pytest.mark.parametrize(
    ("catalog", "names"),
    [(None, {"a/b": None, "c": "own.c", "d/e": None, "plain": None}),
     ("lake", {"a/b": "lake.a.b", "c": "own.c", "d/e": "lake.d.e", "plain": None})],
)  # fmt: skip
def test_the_definitions_have_the_names_that_the_setting_gives(
    tmp_path: Path, catalog: str | None, names: dict[str, str | None]
) -> None:
    written, own, elsewhere = named(None, "a/b"), named("own.c", "c"), named(None, "d/e")

    @asset
    def plain() -> None: ...

    assets = [dataset_asset(one)(lambda: None) for one in (written, own)]
    settings = Settings(project=tmp_path, root=str(tmp_path), landing=str(tmp_path), catalog=catalog)
    definitions = build_definitions(settings, datasets=[written, own, elsewhere], assets=[*assets, plain])
    graph = definitions.resolve_asset_graph()
    found = {name: graph.get(AssetKey(name.split("/"))).metadata.get(TABLE_NAME) for name in names}
    assert found == names
    assert definitions.resources["delta_io_manager"].catalog == catalog


def test_the_document_of_a_declaration_has_its_table_name() -> None:
    assert declaration(named("lake.s.t"), "/r")["table_name"] == "lake.s.t"


# --- the entries of a catalog -----------------------------------------------------------------------------------------

TEXT = """Catalog: spark_catalog
Database: default
Table: t
Type: EXTERNAL
Provider: DELTA
Comment: first
Type: VIEW
Provider: parquet
Location: file:/elsewhere
Table Properties: [a=b]
Location: file:/tables/a b%20c
Schema: root
 |-- Location: string (nullable = true)
"""


def test_an_entry_is_read_from_its_description_whatever_its_comment_says() -> None:
    entry = _Entry.parsed(TEXT)
    assert (entry.type, entry.provider, entry.location) == ("EXTERNAL", "delta", "file:/tables/a b%20c")
    assert entry.is_at("/tables/a b%20c")
    assert not entry.is_at("/tables/a b c")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Type: VIEW\nView Text: select 1\n", "view"),
        ("Type: EXTERNAL\nProvider: parquet\nLocation: file:/t\n", "table in the format parquet"),
        ("Type: MANAGED\nProvider: delta\nLocation: file:/t\n", "Delta table"),
        ("Type: MANAGED\nLocation: file:/t\n", "table in the format unknown"),
    ],
)
def test_the_kind_of_an_entry_is_told_in_words(text: str, kind: str) -> None:
    entry = _Entry.parsed(text)
    assert (entry.kind, entry.is_at("/t")) == (kind, kind == "Delta table")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("/a/b", "file:/a/b", True),
        ("/a/b", "file:///a//b/", True),
        ("/a/b", "/a/c", False),
        ("s3://bucket/t", "s3a://bucket/t/", True),
        ("s3a://bucket/t", "s3a://other/t", False),
        ("s3a://bucket/t", "gs://bucket/t", False),
        ("abfss://c@account/t", "abfss://c@account//t", True),
    ],
)
def test_two_spellings_of_one_location_are_equal(one: str, other: str, equal: bool) -> None:
    assert (_normalized(one) == _normalized(other)) is equal


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert _normalized(f"file:{tmp_path}/link/t") == _normalized(f"{tmp_path}/folder/t")


def test_the_errors_say_what_is_registered_and_what_was_written() -> None:
    taken = TableNameTakenError(
        dataset="d", location="/new/d", table_name="s.t", found="Delta table", registered_location="file:/old/d",
        is_delta=True,
    )  # fmt: skip
    assert "s.t, which is the name of a Delta table at file:/old/d; nothing was written" in taken.message()
    assert "ALTER TABLE s.t SET LOCATION '/new/d'" in taken.remedy()
    view = TableNameTakenError(dataset="d", location="/new/d", table_name="s.t", found="view")
    assert "the name of a view; nothing was written" in view.message()
    assert "ALTER" not in view.remedy()
    before = CatalogError(dataset="d", location="/d", table_name="s.t", reason="it is down")
    assert "s.t; nothing was written: it is down" in before.message()
    after = replace(before, version=3)
    assert "the table exists at version 3, no row was written: it is down" in after.message()
