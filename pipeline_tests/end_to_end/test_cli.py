"""The commands that look at tables, as an operator runs them in a project of his own."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.inspect.record import write_record
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.sql import slices
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.settings import SparkSettings
from pipeline_tests.end_to_end.conftest import ProjectFolder
from pipeline_tests.projects import shop_conforming, shop_datasets, shop_keeping

FIRST = """
VALUES (DATE'2026-07-01', 1L, 1.10BD, TIMESTAMP'2026-07-01 12:00:00.5+02:00', '[red]'),
       (DATE'2026-07-02', NULL, 9.00BD, NULL, NULL),
       (DATE'2026-07-02', 2L, 2.00BD, NULL, NULL) AS t (day, id, price, at, text)
"""
SECOND = """
SELECT DATE'2026-07-02' day, id, 3.30BD price, TIMESTAMP'2026-07-01 10:00:00.5Z' at, 'NULL' text FROM range(3, 5)
"""
NO_JAVA = {"JAVA_HOME": "/nowhere", "SPARK_REMOTE": "sc://127.0.0.1:1"}


@dataclass
class Shop:
    """A user's project with one table of two commits, each with its record, and a dataset that was never written.

    Of the first commit a row is in quarantine.
    """

    project: ProjectFolder
    commits: tuple[WriteResult, ...]

    def run(self, *arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = self.project.invoke(*arguments, **environment)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, **environment: str) -> Any:
        return json.loads(self.run(*arguments, "--json", **environment).stdout)

    def cells(self, *arguments: str, **environment: str) -> list[list[str]]:
        """The lines of a text table below its head, cut where three spaces stand."""
        lines = self.run(*arguments, **environment).stdout.splitlines()[2:]
        return [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in lines]


@pytest.fixture(scope="module")
def shop(
    classic: SparkSession,
    spark_settings: SparkSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    declared = f'[tool.pipeline]\ndatasets = "{shop_datasets.__name__}:datasets"\n'
    (folder / "pyproject.toml").write_text(declared, encoding="utf-8")
    orders, root = shop_datasets.orders, str(folder / ".pipeline" / "tables")
    slice_ = slices.of_values("day", [dt.date(2026, 7, 2)])
    commits = []
    for run_id, within, rows in (("first-run", None, FIRST), ("second-run", slice_, SECOND)):
        result = write(
            classic.sql(rows), table=orders.at(root), within=within,
            note=CommitNote(mark=Mark(writer="orders/step"), run_id=run_id, partitions=within and str(within)),
        )  # fmt: skip
        write_record(
            classic, orders, result, root=root, run_id=run_id, sources={}, options={}, partitions=within and str(within)
        )
        commits.append(result)
    return Shop(ProjectFolder(folder, spark_settings.cache), tuple(commits))


def test_the_registry_is_listed_without_java(shop: Shop) -> None:
    orders, customers, quarantine = shop.json("registry", **NO_JAVA)
    assert (orders["name"], orders["asset_key"], orders["write"]) == (
        "shop/orders", ["shop", "orders"], {"mode": "replace"},
    )  # fmt: skip
    assert orders["location"] == str(shop.project.folder / ".pipeline" / "tables" / "shop" / "orders")
    assert (orders["partition_by"], orders["keys"]) == (["day"], ["id"])
    assert orders["checks"] == [
        {"name": "not_for_nothing", "condition": "price > 0", "on_violation": "fail", "severity": "error",
         "blocking": False},
    ]  # fmt: skip
    assert [expectation["name"] for expectation in orders["expectations"]] == ["unique_price", "text_in_customers"]
    assert quarantine["name"] == "shop/orders__quarantine"
    assert orders["columns"][2] == {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}}
    assert orders["fingerprint"] == shop.commits[0].schema_fingerprint
    assert customers["reads"] == ["shop/orders"]
    rows = shop.cells("registry", **NO_JAVA)
    assert [row[:4] for row in rows[:2]] == [
        ["shop/orders", "replace", "day", "id"], ["customers", "replace", "-", "-"],
    ]  # fmt: skip


def test_show_has_one_line_for_each_dataset_and_all_of_the_one_that_is_named(shop: Shop) -> None:
    orders, customers, quarantine = shop.cells("show")
    assert orders[:3] == ["shop/orders", "ok", "3"]
    assert orders[5:7] == ["2", "2"], "partitions and version"
    assert orders[7] == f"{shop.commits[1].timestamp:%Y-%m-%d %H:%M:%S}Z"
    assert customers == ["customers", "never written", *["-"] * 6]
    assert quarantine[:3] == ["shop/orders__quarantine", "ok", "1"]

    named = shop.json("show", "shop/orders")
    assert (named["standing"], named["rows"], named["table"]["version"]) == ("ok", 3, 2)
    assert named["table"]["properties"]["delta.constraints.not_for_nothing"] == "price > 0"
    text = shop.run("show", "shop/orders").stdout
    for part in (named["table"]["table_id"], "decimal(10,2)", "when it came", "price > 0", "changeDataFeed"):
        assert part in text


def test_the_history_names_runs_slices_and_what_made_the_table(shop: Shop) -> None:
    newest, first, created = shop.cells("history", "shop/orders")
    assert [row[0] for row in (newest, first, created)] == ["2", "1", "0"]
    assert newest[2:4] == ["WRITE", "2"]
    assert newest[5:] == ["second-run", "day = 2026-07-02", "1", "orders/step"]
    assert created[2:] == ["CREATE TABLE", *["-"] * 4, "1", "shop/orders/create"]
    (entry,) = shop.json("history", "shop/orders", "--limit", "1")
    assert entry["note"]["mark"]["token"] == shop.commits[1].mark.token
    assert entry["metrics"]["numOutputRows"] == "2"


def test_a_diff_has_one_line_a_key_from_the_feed_or_by_comparison(shop: Shop) -> None:
    """What is at the first version came with a table that had no version before it; the feed has it all the same."""
    text = shop.cells("diff", "shop/orders", "--from", "1", "--to", "2")
    assert [line[0] for line in text[:3]] == ["delete", "insert", "insert"]
    assert text[0][1:] == ["2026-07-02", "2", "2.00", "NULL", "NULL"]
    assert text[-1] == ["2 inserts, 0 updates, 1 delete"]
    found = shop.json("diff", "shop/orders", "--from", "0", "--to", "2", "--limit", "2")
    assert (found["from"], found["to"], found["compared_because"], found["more"]) == (0, 2, None, True)
    assert found["counts"] == {"insert": 3, "update": 0, "delete": 0}
    assert [column["name"] for column in found["columns"]] == ["day", "id", "price", "at", "text"]
    assert found["rows"][0] == {
        "change": "insert", "values": ["2026-07-01", 1, "1.10", "2026-07-01 10:00:00.5Z", "[red]"],
    }  # fmt: skip
    beyond = shop.run("diff", "shop/orders", "--from", "0", "--to", "9", status=1)
    assert "up to 2" in beyond.stderr


def test_sql_prints_values_exactly_at_the_version_that_is_asked_for(shop: Shop) -> None:
    query = "select id, price, at, text from shop__orders order by id"
    assert shop.cells("sql", query) == [
        ["1", "1.10", "2026-07-01 10:00:00.5Z", "[red]"],
        ["3", "3.30", "2026-07-01 10:00:00.5Z", "NULL"],
        ["4", "3.30", "2026-07-01 10:00:00.5Z", "NULL"],
    ]
    before = shop.json("sql", query, "--version", "shop/orders=1")
    assert before["rows"] == [[1, "1.10", "2026-07-01 10:00:00.5Z", "[red]"], [2, "2.00", None, None]]
    assert before["versions"] == {"shop/orders": 1}
    changes = "select _change_type, id from shop__orders__changes order by 1, 2"
    found = shop.json("sql", changes, "--changes", "shop/orders=2..")
    assert found["rows"] == [["delete", 2], ["insert", 3], ["insert", 4]]
    assert [(read["name"], read["kind"], read["first"], read["version"]) for read in found["reads"]] == [
        ("shop__orders", "view", None, 2), ("shop__orders__changes", "changes", 2, 2),
    ]  # fmt: skip
    limited = shop.run("sql", query, "--limit", "1")
    assert "more rows than 1" in limited.stderr
    assert len(limited.stdout.splitlines()) == 3


def test_a_check_looks_at_the_newest_version_and_its_exit_status_says_whether_something_failed(shop: Shop) -> None:
    found = {one["name"]: one for one in json.loads(shop.run("check", "shop/orders", "--json", status=1).stdout)}
    assert {name: (one["passed"], one["severity"], one["rows"]) for name, one in found.items()} == {
        "schema": (True, "error", None), "id IS NULL": (True, "error", 0), "not_for_nothing": (True, "error", 0),
        "unique_price": (False, "error", 2), "text_in_customers": (False, "error", None),
        "row_count": (False, "warn", None),
    }  # fmt: skip
    assert (found["unique_price"]["version"], found["unique_price"]["examples"]) == (2, ["price = 3.30"])
    assert "has no table yet" in found["text_in_customers"]["detail"]
    assert found["row_count"]["detail"] == "2026-07-02: 2"
    text = shop.run("check", "shop/orders__quarantine").stdout
    assert "failed" not in text
    apart = shop.json("sql", "select price, _reasons, _run_id from shop__orders__quarantine")
    assert apart["rows"] == [["9.00", '["id IS NULL"]', "first-run"]]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("show", "shop/order"), 1, "Did you mean 'shop/orders'"),
        (("history", "customers"), 1, "has no table yet"),
        (("sql", "select * from shop__order"), 1, "Did you mean 'shop__orders'"),
        (("sql", "delete from shop__orders"), 1, "Only statements that read are run"),
        (("sql", "select 1", "--version", "orders"), 2, "DATASET=N"),
        (("sql", "select 1", "--as-of", "2026-07-01T12:00:00"), 2, "has no zone"),
        (("sql",), 2, "STATEMENT"),
        (("history", "shop/orders", "--limit", "0"), 2, "--limit"),
        (("manifest", "show", "first-rum"), 1, "Did you mean first-run?"),
    ],
)
def test_what_is_asked_wrongly_is_answered_in_one_readable_message(
    shop: Shop, arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = shop.run(*arguments, status=status)
    assert said in done.stderr
    assert done.stdout == ""
    if status == 1:
        assert done.stderr.startswith("Error: ")
        assert len(done.stderr.splitlines()) <= 3


def test_the_manifests_of_runs_are_listed_compared_and_verified_without_java(shop: Shop) -> None:
    listed = shop.json("manifest", "list", **NO_JAVA)
    assert [(run["run_id"], run["datasets"], run["rows_written"]) for run in listed] == [
        ("second-run", ["shop/orders"], 2), ("first-run", ["shop/orders"], 2),
    ]  # fmt: skip
    assert [row[0] for row in shop.cells("manifest", "list", **NO_JAVA)] == ["second-run", "first-run"]
    (record,) = shop.json("manifest", "show", "second", **NO_JAVA)
    assert (record["version"], record["partitions"]) == (2, "day = 2026-07-02")
    assert record["mark"]["token"] == shop.commits[1].mark.token
    (row,) = shop.cells("manifest", "diff", "first-run", "second-run", **NO_JAVA)
    assert row == ["shop/orders", "version", "1 -> 2", "2", record["fingerprint"][:12]]
    assert shop.cells("manifest", "verify", "second-run", **NO_JAVA) == [["shop/orders", "2", "as recorded"]]

    path = next((shop.project.folder / ".pipeline/tables/_records/first-run/shop").iterdir())
    before = path.read_text(encoding="utf-8")
    Path(path).write_text(before.replace(shop.commits[0].mark.token, "0" * 32), encoding="utf-8")
    done = shop.run("manifest", "verify", "first-run", status=1, **NO_JAVA)
    assert "version 1 has another mark" in done.stdout
    Path(path).write_text(before, encoding="utf-8")


@pytest.mark.exhaustive
def test_a_vacuum_names_the_consumer_that_still_needs_what_it_would_remove(shop: Shop, classic: SparkSession) -> None:
    environment = {"PIPELINE_DATASETS": f"{shop_keeping.__name__}:datasets"}
    location = shop.project.folder / ".pipeline/tables/source"
    properties = "'delta.enableChangeDataFeed' = true, 'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    classic.sql(f"CREATE TABLE delta.`{location}` (name STRING) USING delta TBLPROPERTIES ({properties})")
    for name in "ab":
        classic.sql(f"INSERT OVERWRITE delta.`{location}` VALUES ('{name}')")
    files = sorted(location.glob("*.parquet"))

    (listed,) = shop.json("maintain", "vacuum", "source", **environment)
    needed = listed["needed"]
    names = [Path(file).name for file in listed["files"]]
    assert [(by["consumer"], by["version"], by["files"]) for by in needed] == [("log", 0, names)]
    refused = shop.run("maintain", "vacuum", "source", "--apply", status=1, **environment)
    assert "'log' has read to version 0" in refused.stderr
    assert "--force" in refused.stderr
    assert sorted(location.glob("*.parquet")) == files
    forced = shop.run("maintain", "vacuum", "source", "--apply", "--force", **environment)
    assert forced.stdout.startswith("source (version 4): 1 removed")
    assert len(sorted(location.glob("*.parquet"))) == len(files) - 1


def test_a_plan_says_what_differs_and_who_loses_the_table_and_is_then_taken(shop: Shop, classic: SparkSession) -> None:
    environment = {"PIPELINE_DATASETS": f"{shop_conforming.__name__}:datasets"}
    location = shop.project.folder / ".pipeline/tables/named"
    classic.sql(f"CREATE TABLE delta.`{location}` (name STRING) USING delta")
    classic.sql(f"INSERT INTO delta.`{location}` VALUES ('a'), ('bb')")

    shown = shop.run("conform", "plan", status=3, **environment).stdout
    assert "add column: column age: added as bigint" in shown
    assert "raises the protocol: deletionVectors" in shown
    assert "no longer read by deltalake" in shown
    done = shop.run("conform", "plan", "--json", status=3, **environment)
    (plan,) = json.loads(done.stdout)
    assert [step["step"] for step in plan["steps"]] == ["set property", "add column"]
    refused = shop.run("conform", "apply", status=1, PIPELINE_DATASETS=f"{shop_conforming.__name__}:refused")
    assert "break its constraints (short: 1 row)" in refused.stderr
    assert '"name":"bb"' in refused.stderr
    assert len(list((location / "_delta_log").glob("*.json"))) == 2

    (applied,) = shop.json("conform", "apply", **environment)
    assert applied["versions"] == {"before": 1, "after": 3}
    assert shop.run("conform", "plan", **environment).stdout == "named (version 3): as declared\n"
    assert shop.json("sql", "select name, age from named order by 1", **environment)["rows"] == [
        ["a", None],
        ["bb", None],
    ]
