"""Near misses are found in one place, and two names that look alike can be told apart wherever they are shown."""

from __future__ import annotations

import ast
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from dagster import StaticPartitionsDefinition
from pyspark.sql.types import LongType, StructField, StructType, TimestampNTZType, TimestampType

import pipeline
from pipeline.cli import main
from pipeline.dataset import Check, Dataset
from pipeline.dataset.registry import Registry
from pipeline.delta.frames.arrow import fitting
from pipeline.delta.frames.convert import arrow_reader
from pipeline.delta.frames.fit import select_list
from pipeline.errors import DeclarationError, FrameMismatchError, RegistryError, UnknownDatasetError
from pipeline.errors.spelling import did_you_mean, distinguishable, escaped, near
from pipeline.orchestration import dataset_asset

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
CYRILLIC, NO_BREAK = "pric\u0435", "price\u00a0"


def dataset(name: str = "d", column: str = "n", **declared: object) -> Dataset:
    return Dataset(name=name, schema=StructType([StructField(column, LongType())]), **declared)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        ("prise", ["price", "volume"], ("price",)),
        ("PRICE", ["price", "volume"], ("price",)),
        (CYRILLIC, ["price", "volume"], ("price",)),
        (NO_BREAK, ["price"], ("price",)),
        (COMPOSED, [DECOMPOSED, "coffee"], (DECOMPOSED,)),
        ("nothing", ["price", "volume"], ()),
        ("", ["price"], ()),
    ],
)
def test_what_was_meant_is_found_by_its_spelling_or_its_look(
    asked: str, known: list[str], found: tuple[str, ...]
) -> None:
    assert near(asked, known)[:1] == found


@pytest.mark.parametrize(
    ("one", "other"), [(COMPOSED, DECOMPOSED), (CYRILLIC, "price"), (NO_BREAK, "price"), ("pri\u200bce", "price")]
)
def test_names_that_look_alike_are_shown_by_their_code_points_and_others_as_they_are(one: str, other: str) -> None:
    shown = distinguishable((one, other, "volume", "größe"))
    assert shown(one) != shown(other)
    assert (shown(one).isascii(), shown(other).isascii()) == (True, True)
    assert (shown("volume"), shown("größe")) == ("volume", "größe")
    assert distinguishable((one,))(one) == one


def test_a_question_names_the_near_misses_and_is_empty_without_any() -> None:
    assert did_you_mean("prise", ["price"]) == "Did you mean price?"
    assert did_you_mean("nothing", ["price"]) == ""
    assert escaped(CYRILLIC) == "pric\\u0435"


def test_no_other_module_looks_for_near_misses() -> None:
    package = Path(pipeline.__file__).parent
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(alias.name == "difflib" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "difflib")
    }
    assert users == {"errors/spelling.py"}


# --- where they are told ----------------------------------------------------------------------------------------------


def test_a_source_that_nobody_declared_is_told_with_the_near_one() -> None:
    with pytest.raises(RegistryError) as caught:
        Registry([dataset("orders"), dataset("totals", reads=("oders",))])
    assert caught.value.problems == ("totals reads oders, which nobody declared; did you mean orders?",)


def test_a_dataset_that_looks_like_the_one_asked_for_is_told_by_its_code_points() -> None:
    with pytest.raises(UnknownDatasetError) as caught:
        Registry([dataset("price")]).get(CYRILLIC)
    assert str(caught.value) == ("No dataset is declared under the name 'pric\\u0435'.\n  -> Did you mean 'price'?")


def test_a_verb_that_is_none_is_told_with_the_near_one() -> None:
    for arguments, meant in ((["shwo"], "show"), (["histroy", "d"], "history")):
        shown = CliRunner().invoke(main, arguments)
        assert (shown.exit_code, f"Did you mean {meant}" in shown.stderr) == (2, True)
    assert "Did you mean" not in CliRunner().invoke(main, ["zzz"]).stderr


@pytest.mark.parametrize(("given", "declared"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED), (CYRILLIC, "price")])
def test_columns_that_look_alike_are_told_apart_in_a_frame_of_either_kind(given: str, declared: str) -> None:
    to = dataset(column=declared)
    schema = StructType([StructField(given, LongType())])
    reader = arrow_reader(pd.DataFrame({given: [1]}), "d", to.schema)
    for refuse in (lambda: select_list(to, schema), lambda: fitting(to, reader.schema)):
        with pytest.raises(FrameMismatchError) as caught:
            refuse()
        missing, extra = caught.value.differences
        assert missing.startswith(f"column {escaped(declared)}: missing")
        assert extra.startswith(f"column {escaped(given)}: not declared")


def test_a_time_without_a_zone_is_refused_with_a_word_of_the_zone() -> None:
    instants = Dataset(name="d", schema=StructType([StructField("at", TimestampType())]))
    naive = StructType([StructField("at", TimestampNTZType())])
    reader = arrow_reader(pd.DataFrame({"at": pd.to_datetime(["2026-01-31 12:00"])}), "d", instants.schema)
    for refuse in (lambda: select_list(instants, naive), lambda: fitting(instants, reader.schema)):
        with pytest.raises(FrameMismatchError, match="it has no zone, so its instant is unknown"):
            refuse()


def test_keys_that_name_no_column_say_so_and_how_one_is_named() -> None:
    schema = StructType([StructField(name, LongType()) for name in ("a", "b", "n")])
    keys = StaticPartitionsDefinition(["1", "2"])
    two = Dataset(name="d", schema=schema, partition_by=("a", "b"))
    with pytest.raises(DeclarationError) as caught:
        dataset_asset(two, partitions_def=keys)
    assert "its keys name no column, its table is partitioned by (a, b); name the column with partition_expr" in str(
        caught.value
    )
    with pytest.raises(DeclarationError, match="declare partition_by"):
        dataset_asset(Dataset(name="d", schema=schema), partitions_def=keys)


@pytest.mark.parametrize(
    "declared",
    [
        {"description": "a\ud800"}, {"checks": (Check("c", "n <> '\ud800'"),)}, {"properties": (("my.x", "\ud800"),)},
        {"schema": StructType([StructField("n\ud800", LongType())])},
        {"schema": StructType([StructField("n", LongType(), True, {"comment": "\ud800"})])},
    ],
    ids=["description", "check", "property", "column", "comment"],
)  # fmt: skip
def test_half_of_a_surrogate_pair_is_refused_where_it_is_declared(declared: dict[str, object]) -> None:
    plain: dict[str, object] = {"name": "d", "schema": StructType([StructField("n", LongType())])}
    with pytest.raises(DeclarationError, match="half of a surrogate pair") as caught:
        Dataset(**(plain | declared))  # type: ignore[arg-type]
    str(caught.value).encode()
