"""What a declaration accepts, what it refuses, and what is derived from it."""

import dataclasses
from datetime import timedelta

import pytest
from dagster._utils.schedules import is_valid_cron_schedule
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from pipeline.dataset import Append, Check, Dataset, FreshByCron, FreshWithin, Ignore, Replace, RowCount, SchemaCheck
from pipeline.dataset.schema import REFUSED_CHARACTERS, RESERVED_COLUMNS, case_duplicates, is_string, walk
from pipeline.errors import DeclarationError

SCHEMA = StructType(
    [
        StructField("day", DateType(), False),
        StructField("id", LongType(), False),
        StructField("text", StringType()),
    ]
)


def problems_of(**declaration: object) -> tuple[str, ...]:
    """The problems of the one DeclarationError that this declaration raises."""
    with pytest.raises(DeclarationError) as caught:
        Dataset(**({"name": "a/b", "schema": SCHEMA} | declaration))
    assert caught.value.dataset == declaration.get("name", "a/b")
    return caught.value.problems


def one_problem(**declaration: object) -> str:
    """The only problem of this declaration."""
    problems = problems_of(**declaration)
    assert len(problems) == 1, problems
    return problems[0]


def with_column(data_type: DataType, name: str = "c", nullable: bool = True) -> StructType:
    """The good schema with one more column."""
    return StructType([*SCHEMA.fields, StructField(name, data_type, nullable)])


def test_the_least_declaration_replaces_is_unpartitioned_and_has_the_change_feed() -> None:
    dataset = Dataset(name="a", schema=SCHEMA)
    assert dataset.write == Replace()
    assert dataset.partition_by == dataset.keys == dataset.reads == dataset.checks == dataset.properties == ()
    assert dataset.change_feed is True


def test_a_full_declaration_is_accepted_as_given() -> None:
    dataset = Dataset(
        name="aviation/sightings.v2",
        schema=SCHEMA,
        partition_by=("day",),
        write=Append(),
        keys=("day", "id"),
        reads=("aviation/landing",),
        checks=(Check("id_positive", "id > 0"), Check("text_short", "length(text) < 9")),
        properties=(("delta.appendOnly", "true"),),
        change_feed=False,
    )
    assert dataset.write == Append()
    assert dataset.partition_by == ("day",)
    assert [check.name for check in dataset.checks] == ["id_positive", "text_short"]


def test_the_least_declaration_starts_by_hand_is_never_too_old_and_reports_a_changed_schema_as_an_error() -> None:
    dataset = Dataset(name="a", schema=SCHEMA)
    assert (dataset.starts_on_change, dataset.freshness, dataset.code_version) == (False, None, None)
    assert dataset.schema_check == SchemaCheck(severity="error", blocking=False)
    assert dataset.row_count is None


@pytest.mark.parametrize(
    ("declaration", "told"),
    [
        ({"code_version": " "}, "code_version is empty"),
        ({"starts_on_change": True}, "reads names none"),
        ({"reads": ("b",), "reads_changes_of": ("c",)}, "reads_changes_of names 'c'"),
        ({"reads": ("b",), "reads_changes_of": ("b",), "write": Ignore()}, "appended to, replaced or merged"),
        ({"full_without_feed": True}, "reads_changes_of names none"),
        ({"row_count": RowCount()}, "any number of rows"),
        ({"row_count": RowCount(minimum=-1)}, "minimum is negative"),
        ({"row_count": RowCount(minimum=3, maximum=2)}, "maximum is less than minimum"),
        ({"row_count": RowCount(minimum=1, severity="warn", blocking=True)}, "row_count: a warning blocks nothing"),
        ({"schema_check": SchemaCheck(severity="warn", blocking=True)}, "schema_check: a warning blocks nothing"),
        ({"schema_check": SchemaCheck(severity="fatal")}, "'fatal' is neither warn nor error"),  # type: ignore[arg-type]
        ({"freshness": FreshWithin(fail_after=timedelta(seconds=59))}, "shorter than a minute"),
        ({"freshness": FreshWithin(fail_after=timedelta(hours=1), warn_after=timedelta(0))}, "shorter than a minute"),
        ({"freshness": FreshWithin(fail_after=timedelta(hours=1), warn_after=timedelta(hours=1))}, "not before"),
        ({"freshness": FreshByCron(cron="@daily", window=timedelta(hours=1))}, "'@daily' is no cron expression"),
        (
            {"freshness": FreshByCron(cron="99 4 * * *", window=timedelta(hours=1))},
            "'99 4 * * *' is no cron expression",
        ),
        ({"freshness": FreshByCron(cron="0 4 * * sunday", window=timedelta(hours=1))}, "is no cron expression"),
        ({"freshness": FreshByCron(cron="*/0 * * * *", window=timedelta(hours=1))}, "is no cron expression"),
        (
            {"freshness": FreshByCron(cron="0 4 * * *", window=timedelta(hours=1), timezone="Mars")},
            "'Mars' is not the name",
        ),
        ({"freshness": FreshByCron(cron="0 4 * * *", window=timedelta(hours=1), timezone="/etc")}, "'/etc' is not"),
        ({"freshness": FreshByCron(cron="0 4 * * *", window=timedelta(0))}, "window is shorter than a minute"),
    ],
)
def test_what_an_asset_can_not_be_told_is_refused_where_it_is_declared(declaration: dict, told: str) -> None:
    assert told in one_problem(**declaration)


def test_a_row_count_may_be_bounded_on_either_side_and_may_forbid_rows() -> None:
    for rows in (RowCount(minimum=1), RowCount(maximum=0), RowCount(minimum=5, maximum=5, blocking=True)):
        assert Dataset(name="a", schema=SCHEMA, row_count=rows).row_count == rows


def test_a_declaration_can_not_be_changed_afterwards() -> None:
    dataset = Dataset(name="a", schema=SCHEMA)
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "b"  # type: ignore[misc]


def test_the_asset_key_is_the_parts_of_the_name() -> None:
    assert Dataset(name="a", schema=SCHEMA).asset_key == ("a",)
    assert Dataset(name="a/b.c/d-e_f", schema=SCHEMA).asset_key == ("a", "b.c", "d-e_f")


@pytest.mark.parametrize(
    ("root", "location"),
    [
        ("data/tables", "data/tables/a/b"),
        ("data/tables/", "data/tables/a/b"),
        ("s3a://bucket/lake", "s3a://bucket/lake/a/b"),
        ("s3a://bucket//", "s3a://bucket/a/b"),
        ("file:///lake", "file:///lake/a/b"),
    ],
)
def test_the_location_is_the_root_and_the_name_with_one_slash_between(root: str, location: str) -> None:
    assert Dataset(name="a/b", schema=SCHEMA).location(root) == location


def test_a_declared_field_is_found_by_its_column() -> None:
    assert Dataset(name="a", schema=SCHEMA).field("id") == StructField("id", LongType(), False)


@pytest.mark.parametrize(
    "part", ["", ".", "..", "_records", "-a", ".a", "a b", "a\\b", "a:b", "a\n", "é", "a%2F", "a*"]
)
def test_a_name_part_that_is_no_plain_folder_name_is_refused(part: str) -> None:
    assert repr(part) in one_problem(name=f"good/{part}")


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b"])
def test_a_name_with_an_empty_part_is_refused(name: str) -> None:
    assert all("''" in problem for problem in problems_of(name=name))


def test_every_bad_part_of_a_name_is_told() -> None:
    problems = problems_of(name="../a/_b")
    assert [("'..'" in problem, "'_b'" in problem) for problem in problems] == [(True, False), (False, True)]


def test_a_schema_without_columns_is_refused() -> None:
    assert "no columns" in one_problem(schema=StructType([]))


def test_columns_that_differ_by_case_only_are_refused_together() -> None:
    schema = StructType([*SCHEMA.fields, StructField("ID", LongType()), StructField("Id", LongType())])
    assert "id, ID, Id" in one_problem(schema=schema)


def test_two_columns_of_the_same_name_are_refused() -> None:
    assert "text, text" in one_problem(schema=with_column(StringType(), "text"))


@pytest.mark.parametrize(
    ("outer", "path"),
    [
        (lambda struct: struct, "c"),
        (ArrayType, "c.element"),
        (lambda struct: MapType(StringType(), struct), "c.value"),
        (lambda struct: StructType([StructField("deep", struct)]), "c.deep"),
    ],
)
def test_nested_columns_that_differ_by_case_only_are_refused_with_their_path(outer: object, path: str) -> None:
    struct = StructType([StructField("x", LongType()), StructField("X", LongType())])
    problem = one_problem(schema=with_column(outer(struct)))  # type: ignore[operator]
    assert repr(path) in problem
    assert "x, X" in problem


@pytest.mark.parametrize("name", [*sorted(RESERVED_COLUMNS), "_CHANGE_TYPE"])
def test_a_column_that_the_change_feed_adds_is_refused_in_any_case(name: str) -> None:
    problem = one_problem(schema=with_column(StringType(), name))
    assert repr(name) in problem
    assert "change feed" in problem


@pytest.mark.case("S-BAD-CHARS")
@pytest.mark.parametrize("character", sorted(REFUSED_CHARACTERS))
def test_a_character_that_parquet_refuses_is_refused_in_a_column_name(character: str) -> None:
    name = f"x{character}y"
    problem = one_problem(schema=with_column(StringType(), name))
    assert repr(name) in problem
    assert "Parquet" in problem


@pytest.mark.case("S-BAD-CHARS")
def test_a_character_that_parquet_refuses_is_refused_in_a_nested_name() -> None:
    assert "'c.x y'" in one_problem(schema=with_column(StructType([StructField("x y", LongType())])))


def test_a_column_without_a_name_is_refused() -> None:
    assert "''" in one_problem(schema=with_column(StringType(), ""))


def test_names_that_parquet_allows_are_accepted() -> None:
    schema = StructType([StructField(name, LongType()) for name in ("a.b", "Größe", "x-y", "1", "a'b", "a`b", "_x")])
    assert Dataset(name="a", schema=schema).schema == schema


@pytest.mark.case("S-ALL-NULL")
@pytest.mark.parametrize(
    ("data_type", "path"),
    [
        (NullType(), "c"),
        (ArrayType(NullType()), "c.element"),
        (MapType(StringType(), NullType()), "c.value"),
        (StructType([StructField("x", NullType())]), "c.x"),
    ],
)
def test_a_void_column_is_refused_at_any_depth(data_type: DataType, path: str) -> None:
    problem = one_problem(schema=with_column(data_type))
    assert repr(path) in problem
    assert "void" in problem


@pytest.mark.parametrize(("data_type", "path"), [(StructType([]), "c"), (ArrayType(StructType([])), "c.element")])
def test_a_struct_without_fields_is_refused_at_any_depth(data_type: DataType, path: str) -> None:
    problem = one_problem(schema=with_column(data_type))
    assert repr(path) in problem
    assert "without fields" in problem


NOT_NULL_STRUCT = StructType([StructField("x", LongType(), False)])
STRUCT_WITH_NOT_NULL_DEEP = StructType([StructField("s", NOT_NULL_STRUCT)])


@pytest.mark.parametrize(
    "data_type",
    [
        ArrayType(LongType(), False),
        ArrayType(NOT_NULL_STRUCT),
        ArrayType(STRUCT_WITH_NOT_NULL_DEEP),
    ],
    ids=lambda data_type: data_type.simpleString(),
)
def test_not_null_inside_an_array_is_refused_at_any_depth(data_type: DataType) -> None:
    """Delta refuses to create such a table (DELTA_NESTED_NOT_NULL_CONSTRAINT), so the declaration has to."""
    problem = one_problem(schema=with_column(data_type))
    assert "'c" in problem
    assert "NOT NULL inside an array" in problem


@pytest.mark.parametrize(
    "data_type",
    [
        MapType(StringType(), LongType(), False),
        MapType(StringType(), NOT_NULL_STRUCT),
        MapType(StringType(), STRUCT_WITH_NOT_NULL_DEEP),
        MapType(NOT_NULL_STRUCT, StringType()),
    ],
    ids=lambda data_type: data_type.simpleString(),
)
def test_not_null_inside_a_map_is_refused_at_any_depth(data_type: DataType) -> None:
    """Delta refuses to create such a table (DELTA_NESTED_NOT_NULL_CONSTRAINT), for keys as for values."""
    problem = one_problem(schema=with_column(data_type))
    assert "'c" in problem
    assert "NOT NULL inside a map" in problem


def test_not_null_inside_a_struct_is_accepted() -> None:
    schema = with_column(NOT_NULL_STRUCT, nullable=False)
    assert Dataset(name="a", schema=schema).field("c").dataType == NOT_NULL_STRUCT


def test_an_array_or_map_that_is_itself_not_null_is_accepted() -> None:
    array, mapping = ArrayType(LongType()), MapType(StringType(), LongType())
    schema = StructType([StructField("a", array, False), StructField("m", mapping, False)])
    assert Dataset(name="a", schema=schema).schema == schema


@pytest.mark.parametrize("column", ["missing", "DAY", ""])
def test_a_partition_column_that_is_not_in_the_schema_is_refused(column: str) -> None:
    problem = one_problem(partition_by=(column,))
    assert repr(column) in problem
    assert "partition column" in problem


@pytest.mark.parametrize("data_type", [StructType([StructField("x", LongType())]), ArrayType(LongType())])
def test_a_partition_column_of_a_nested_type_is_refused_with_its_type(data_type: DataType) -> None:
    problem = one_problem(schema=with_column(data_type), partition_by=("c",))
    assert "'c'" in problem
    assert data_type.simpleString() in problem


def test_a_partition_column_that_is_a_map_is_refused() -> None:
    assert "map<string,bigint>" in one_problem(
        schema=with_column(MapType(StringType(), LongType())), partition_by=("c",)
    )


def test_a_partition_column_that_is_named_twice_is_refused() -> None:
    assert "twice" in one_problem(partition_by=("day", "day"))


def test_a_table_of_partition_columns_only_is_refused() -> None:
    assert "every column" in one_problem(partition_by=("text", "day", "id"))


def test_a_key_column_that_is_not_in_the_schema_is_refused() -> None:
    problem = one_problem(keys=("id", "missing"))
    assert "'missing'" in problem
    assert "key column" in problem


@pytest.mark.parametrize("second", ["positive", "POSITIVE"])
def test_two_checks_of_one_name_are_refused_in_any_case(second: str) -> None:
    assert "checks" in one_problem(checks=(Check("positive", "id > 0"), Check(second, "id > 1")))


@pytest.mark.parametrize("name", ["delta.enableChangeDataFeed", "DELTA.enablechangedatafeed"])
def test_the_change_feed_property_is_refused_since_change_feed_says_it(name: str) -> None:
    assert "change_feed" in one_problem(properties=((name, "true"),))


@pytest.mark.parametrize("name", ["delta.constraints.positive", "Delta.Constraints.positive"])
def test_a_constraint_property_is_refused_since_checks_says_it(name: str) -> None:
    assert "checks" in one_problem(properties=((name, "id > 0"),))


def test_all_problems_are_told_at_once_in_one_error() -> None:
    schema = StructType(
        [
            StructField("a", LongType()),
            StructField("A", NullType()),
            StructField("x y", ArrayType(LongType(), False)),
            StructField("_commit_version", StructType([])),
        ]
    )
    problems = problems_of(
        name="_a",
        schema=schema,
        partition_by=("nope", "nope"),
        keys=("gone", "lost"),
        checks=(Check("c", "a > 0"), Check("C", "a > 1")),
        properties=(("delta.enableChangeDataFeed", "true"), ("delta.constraints.x", "a > 0")),
    )
    subjects = [
        "'_a'",
        "a, A",
        "'A'",
        "'x y'",
        "'x y'",
        "'_commit_version'",
        "'_commit_version'",
        "'nope'",
        "'nope'",
        "twice",
        "'gone'",
        "'lost'",
        "two checks",
        "delta.enableChangeDataFeed",
        "delta.constraints",
    ]
    assert [subject in problem for subject, problem in zip(subjects, problems, strict=True)] == [True] * len(subjects)


def test_walk_gives_every_path_parents_first_in_the_order_of_the_schema() -> None:
    schema = StructType(
        [
            StructField("a", LongType(), False),
            StructField("s", StructType([StructField("x", StringType(), False), StructField("y", DateType())])),
            StructField("l", ArrayType(ArrayType(IntegerType(), False))),
            StructField("m", MapType(StringType(), StructType([StructField("z", LongType())]), False)),
        ]
    )
    assert [(path, field.name, field.dataType.typeName(), field.nullable) for path, field in walk(schema)] == [
        ("a", "a", "long", False),
        ("s", "s", "struct", True),
        ("s.x", "x", "string", False),
        ("s.y", "y", "date", True),
        ("l", "l", "array", True),
        ("l.element", "element", "array", True),
        ("l.element.element", "element", "integer", False),
        ("m", "m", "map", True),
        ("m.key", "key", "string", False),
        ("m.value", "value", "struct", False),
        ("m.value.z", "z", "long", True),
    ]


def test_walk_of_an_empty_schema_gives_nothing() -> None:
    assert list(walk(StructType([]))) == []


def test_case_duplicates_are_grouped_in_the_order_of_the_schema() -> None:
    names = ["b", "a", "B", "c", "A", "a"]
    schema = StructType([StructField(name, LongType()) for name in names])
    assert case_duplicates(schema) == [("b", "B"), ("a", "A", "a")]


def test_case_duplicates_look_at_the_top_level_only() -> None:
    nested = StructType([StructField("A", LongType()), StructField("a", LongType())])
    assert case_duplicates(StructType([StructField("a", nested), StructField("b", LongType())])) == []


def test_string_char_and_varchar_are_strings_and_nothing_else_is() -> None:
    assert [is_string(t) for t in (StringType(), CharType(2), VarcharType(2))] == [True, True, True]
    assert [is_string(t) for t in (LongType(), ArrayType(StringType()), NullType())] == [False, False, False]


@pytest.mark.parametrize(
    "cron", ["0 4 * * *", "*/5 0-6/2 1,15 JAN-mar mon", "59 23 31 12 7", "0 0 L * *", "0 0 * * 5#3", "0 0 * * 0"]
)
def test_a_cron_expression_may_have_every_form_that_dagster_takes(cron: str) -> None:
    assert is_valid_cron_schedule(cron)
    freshness = FreshByCron(cron=cron, window=timedelta(hours=1), timezone="Europe/Amsterdam")
    assert Dataset(name="a", schema=SCHEMA, freshness=freshness).freshness == freshness
