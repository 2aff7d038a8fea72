"""CSV and NDJSON: a value that its type can't have in full, and a line that Spark would read in part, are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pipeline.delta.migrate.copy import copy
from pipeline.delta.migrate.plan import Target, plan_migration
from pipeline.errors import MigrationRefusedError

pytestmark = pytest.mark.exhaustive
COLUMNS = "n BIGINT, d DECIMAL(10,2), day DATE, x DOUBLE, f FLOAT, t TIMESTAMP, l TIMESTAMP_NTZ"
LINES = "n BIGINT, d DECIMAL(38,10), x DOUBLE, text STRING, s STRUCT<a: INT, t: STRUCT<b: INT>>"


def schema(columns: str) -> StructType:
    parsed = StructType.fromDDL(columns)
    assert isinstance(parsed, StructType)
    return parsed


def migrated(session: SparkSession, folder: Path, name: str, content: bytes, columns: str) -> list[dict[str, Any]]:
    """The rows of a table of one file, by n."""
    folder.mkdir()
    (folder / name).write_bytes(content)
    location = f"{folder}-table"
    plan = plan_migration(str(folder), Target(name="t", location=location, schema=schema(columns)))
    copy(session, plan, "run")
    return sorted(deltalake.DeltaTable(location).to_pyarrow_table().to_pylist(), key=lambda row: row["n"])


def test_values_that_a_type_has_in_full_are_taken_in_each_spelling(classic: SparkSession, tmp_path: Path) -> None:
    content = (
        "n,d,day,x,f,t,l\n"
        "1,1.2300,2026-1-31,1e300,0.5,2026-01-31 12:00:00.123456,2026-01-31T12:00:00\n"
        "2,-.5,2026-01-31 00:00:00,-Infinity,Inf,2026-01-31T12:00:00+02:00,2026-01-31\n"
        "3,1.2345E2,,,,2026-01-31T12:00:00.1200000Z,\n"
    )
    noon, utc = dt.datetime(2026, 1, 31, 12), dt.timezone.utc
    found = migrated(classic, tmp_path / "lake", "a.csv", content.encode(), COLUMNS)
    assert [tuple(row.values()) for row in found] == [
        (1, Decimal("1.23"), noon.date(), 1e300, 0.5, noon.replace(microsecond=123_456, tzinfo=utc), noon),
        (2, Decimal("-0.50"), noon.date(), float("-inf"), float("inf"), noon.replace(hour=10, tzinfo=utc),
         noon.replace(hour=0)),
        (3, Decimal("123.45"), None, None, None, noon.replace(microsecond=120_000, tzinfo=utc), None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("d", "1.239"), ("d", "1.2345E1"), ("d", "99999999999"), ("d", '""'), ("day", "2026-01-31 12:30"),
        ("day", "2026-02-30"), ("x", "1e400"), ("f", "1e39"), ("t", "2026-01-31 12:00:00.1234567"), ("t", "12:00"),
        ("l", "2026-01-31 12:00:00Z"),
    ],
)  # fmt: skip
def test_a_value_that_would_be_rounded_or_cut_off_is_refused(
    classic: SparkSession, tmp_path: Path, column: str, text: str
) -> None:
    kind = schema(COLUMNS)[column].dataType.simpleString()
    with pytest.raises(Exception, match="can't be computed"):
        migrated(classic, tmp_path / "lake", "a.csv", f"n,{column}\n1,{text}\n".encode(), f"n BIGINT, {column} {kind}")
    assert deltalake.DeltaTable(str(tmp_path / "lake-table")).to_pyarrow_table().num_rows == 0


def test_a_file_in_another_encoding_is_refused(classic: SparkSession, tmp_path: Path) -> None:
    """Its first bytes, with the header, are valid."""
    content = b"n,text\n" + b"1,abcdefgh\n" * 100_000 + "2,größe\n".encode("latin-1")
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, tmp_path / "lake", "a.csv", content, "n BIGINT, text STRING")
    assert caught.value.problems == ("a.csv: it has a line that is not UTF-8",)


def test_lines_of_json_are_taken_with_all_their_digits(classic: SparkSession, tmp_path: Path) -> None:
    content = (
        '{"n": 1, "d": 1234567890123456789012345678.0123456789, "text": "}{ , ["}\n\n'
        '{"n": 2, "d": "1.5", "x": "NaN", "s": {"a": 1, "t": {"b": 2}}}\n'
    )
    first, second = migrated(classic, tmp_path / "lake", "a.ndjson", content.encode(), LINES)
    assert (first["d"], first["text"]) == (Decimal("1234567890123456789012345678.0123456789"), "}{ , [")
    assert (second["d"], second["s"], str(second["x"])) == (Decimal("1.5"), {"a": 1, "t": {"b": 2}}, "nan")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"n": 5}{"n": 6}', "a.ndjson: it has a line that is no JSON object"),
        ('{"n": 5}, {"n": 6}', "a.ndjson: it has a line that is no JSON object"),
        ('[{"n": 5}, {"n": 6}]', "a.ndjson: it has a line that is no JSON object"),
        ('{"n": 2, "n": 3}', "a.ndjson: it has a line in which a name occurs twice"),
        ('{"n": 2, "s": {"z": 3}}', "lines have the name 's.z', which is not declared"),
        ('{"n": 2, "s": {"t": {"a": 3}}}', "lines have the name 's.t.a', which is not declared"),
    ],
)
def test_a_line_that_spark_would_read_in_part_is_refused(
    classic: SparkSession, tmp_path: Path, line: str, problem: str
) -> None:
    with pytest.raises(MigrationRefusedError) as caught:
        migrated(classic, tmp_path / "lake", "a.ndjson", f'{{"n": 1}}\n{line}\n'.encode(), LINES)
    assert problem in caught.value.problems
