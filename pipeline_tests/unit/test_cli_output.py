"""How tables are printed: as wide as their values, or as a terminal is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.options import WIDE
from pipeline.cli.output import fitted, print_pairs, print_table

COLUMNS = ("dataset", "rows", "note")
ROWS = [
    ("aviation/sightings_of_a_long_name", "1,234,567", "a remark that goes on for longer than a terminal is wide"),
    ("short", "1", "-"),
]


@click.command()
@WIDE
def table() -> None:
    print_table(COLUMNS, ROWS, right=("rows",))


@click.command()
@WIDE
def pairs() -> None:
    print_pairs([("location", "x" * 50), ("rows", "1")])


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines of a command on a terminal of so many columns; on none where 0."""

    def printed(command: click.Command, columns: int, *arguments: str) -> list[str]:
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
        result = CliRunner().invoke(on_terminal(command) if columns else command, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    return printed


def on_terminal(command: click.Command) -> click.Command:
    """The command with an output that says it is a terminal."""
    inner = command.callback
    assert inner is not None

    def told() -> None:
        sys.stdout.isatty = lambda: True  # type: ignore[method-assign]
        inner()

    return click.Command(command.name, params=command.params, callback=told)


def test_where_the_output_is_no_terminal_every_value_is_printed_in_full(lines: Callable[..., list[str]]) -> None:
    printed = lines(table, 0)
    assert [cell.strip() for cell in printed[2].split("   ")] == list(ROWS[0])
    assert lines(pairs, 0) == [f"location  {'x' * 50}", "rows      1"]


@pytest.mark.parametrize("width", [100, 80, 60, 45])
def test_on_a_terminal_the_widest_columns_are_cut_and_numbers_are_not(
    lines: Callable[..., list[str]], width: int
) -> None:
    head, rule, first, second = lines(table, width)
    assert max(map(len, (head, rule, first, second))) <= width
    assert "1,234,567" in first
    assert "…" in first
    assert second.split() == ["short", "1", "-"]


def test_a_table_that_is_too_wide_even_so_is_a_record_a_row_with_every_value(lines: Callable[..., list[str]]) -> None:
    printed = lines(table, 30)
    assert max(map(len, printed)) <= 30
    text = "".join(line[9:] for line in printed)
    for value in (*ROWS[0], *ROWS[1]):
        assert value.replace(" ", "") in text.replace(" ", "")
    assert [line.split()[0] for line in printed if line[:1].strip()] == [*COLUMNS, *COLUMNS]
    assert "" in printed


def test_wide_prints_values_in_full_on_a_narrow_terminal(lines: Callable[..., list[str]]) -> None:
    assert lines(table, 30, "--wide") == lines(table, 0)
    assert lines(pairs, 30, "--wide") == lines(pairs, 0)
    assert max(map(len, lines(pairs, 30))) <= 30


def test_no_column_is_narrower_than_its_head_and_no_table_wider_than_is_told() -> None:
    rows = [["x" * 100, "1" * 5, "y" * 20, "ab"]]
    columns = ["a head of 18 cells", "n", "b", "c"]
    assert fitted(columns, rows, ["n"], 200) == [100, 5, 20, 2]
    assert fitted(columns, rows, ["n"], 60) == [24, 5, 20, 2]
    assert fitted(columns, rows, ["n"], 46) == [18, 5, 12, 2]
    assert fitted(columns, rows, ["n"], 45) is None
    assert fitted(["wide"], [["漢" * 10]], [], 12) == [12]
    assert fitted(["none"], [], [], 80) == [4]
