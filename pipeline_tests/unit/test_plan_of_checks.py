"""A check is as declared if its SQL is, however the words of it are spaced; ADD CONSTRAINT spaces each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.dataset import Append, Check, Dataset
from pipeline.delta.table.plan import plan
from pipeline_tests.unit.test_features import ROWS, STATE


@pytest.mark.parametrize(
    ("declared", "stored", "is_equal"),
    [
        ("try_divide(1,id)>=-1.5", "try_divide ( 1 , id ) >= - 1.5", True),
        ("id>0  AND\n id < 9", "id > 0 AND id < 9", True),
        ("concat('a  b') = `id`", "concat ( 'a  b' ) = `id`", True),
        (r"concat('it\'s (1,2)') = id", r"concat ( 'it\'s (1,2)' ) = id", True),
        ("concat('a  b') = id", "concat ( 'a b' ) = id", False),
        ('concat("a b") = id', 'concat ( "ab" ) = id', False),
        ("`a b` > 0", "`ab` > 0", False),
        ("id > 0", "id > 1", False),
    ],
)
def test_spaces_between_words_make_no_difference_and_those_in_literals_and_names_do(
    declared: str, stored: str, *, is_equal: bool
) -> None:
    dataset = Dataset(name="rows", schema=ROWS, write=Append(), checks=(Check("check", declared),))
    state = replace(STATE, properties={**STATE.properties, "delta.constraints.check": stored})
    steps = [step.kind for step in plan(dataset, state).steps]
    assert steps == ([] if is_equal else ["drop check", "add check"])
