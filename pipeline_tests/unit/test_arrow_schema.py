"""Arrow's types as Spark's, where no declaration says which."""

import pyarrow as pa
import pytest

from pipeline.delta.frames.arrow_types import spark_schema
from pipeline.errors import FrameMismatchError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.int8(), "tinyint"),
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ns", "Europe/Vilnius"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.large_list(pa.struct([("a", pa.uint8())])), "array<struct<a:smallint>>"),
        (pa.map_(pa.string(), pa.list_(pa.date32())), "map<string,array<date>>"),
        (pa.null(), "void"),
    ],
    ids=str,
)
def test_each_type_becomes_the_narrowest_that_holds_its_values(given: pa.DataType, expected: str) -> None:
    (field,) = spark_schema(pa.schema([pa.field("c", given, nullable=pa.types.is_null(given))]), "any").fields
    assert (field.dataType.simpleString(), field.nullable) == (expected, True)


def test_every_column_of_a_type_that_spark_lacks_is_named() -> None:
    schema = pa.schema(
        [("good", pa.int8()), ("far", pa.list_(pa.month_day_nano_interval())), ("wide", pa.decimal256(50, 2))]
    )
    with pytest.raises(FrameMismatchError) as caught:
        spark_schema(schema, "any")
    assert [difference.split(":")[0] for difference in caught.value.differences] == ["column far", "column wide"]
