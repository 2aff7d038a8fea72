"""The slice that a step reads of a source, if keys of the source's partitions were deleted in Dagster."""

from __future__ import annotations

import datetime as dt
import warnings
from typing import Any

import pytest
from dagster import (
    AllPartitionMapping,
    AssetIn,
    BetaWarning,
    DagsterInstance,
    DailyPartitionsDefinition,
    DimensionPartitionMapping,
    DynamicPartitionsDefinition,
    IdentityPartitionMapping,
    InputContext,
    IOManager,
    MultiPartitionKey,
    MultiPartitionMapping,
    MultiPartitionsDefinition,
    MultiToSingleDimensionPartitionMapping,
    OutputContext,
    PartitionMapping,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    asset,
    materialize,
)
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pipeline.dataset import Dataset
from pipeline.delta.sql.slices import Box, Slice, Values
from pipeline.orchestration.io.inputs import input_slice

CELLS = Dataset(
    name="cells",
    schema=StructType(
        [StructField("n", LongType()), StructField("day", DateType()), StructField("letter", StringType())]
    ),
    partition_by=("day", "letter"),
)
DAILY = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-11")
LETTERS = DynamicPartitionsDefinition(name="letters")
STATIC = StaticPartitionsDefinition(["A"])
ZONES = MultiPartitionsDefinition({"day": DAILY, "zone": StaticPartitionsDefinition(["x", "y"])})
FIRST = MultiPartitionKey({"day": "2026-01-02", "zone": "x"})


class Slices(IOManager):
    """Gives a step the slice that it reads, as its input."""

    def handle_output(self, context: OutputContext, obj: object) -> None:
        raise AssertionError

    def load_input(self, context: InputContext) -> Slice | None:
        return input_slice(context, context.step_context, CELLS)


def slice_read(
    letters: PartitionsDefinition[Any],
    reader: PartitionsDefinition[Any] | None,
    mapping: PartitionMapping | None,
    key: str,
    known: list[str],
) -> Slice | None:
    """The slice that a step over one key reads of the cells, if Dagster knows these letters."""
    slices: list[Slice | None] = []
    definition = MultiPartitionsDefinition({"day": DAILY, "letter": letters})

    @asset(partitions_def=definition)
    def cells() -> None: ...

    @asset(partitions_def=reader, ins={"given": AssetIn("cells", partition_mapping=mapping)})
    def look(given: Any) -> None:
        slices.append(given)

    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("letters", known)
        options = {} if reader is None else {"partition_key": key}
        resources = {"io_manager": Slices()}
        materialize([cells, look], selection=[look], resources=resources, instance=instance, **options)
    return slices[0]


def by_day(mapping: PartitionMapping, **others: DimensionPartitionMapping) -> MultiPartitionMapping:
    return MultiPartitionMapping({"day": DimensionPartitionMapping("day", mapping), **others})


def days(*numbers: int) -> Slice:
    return Slice((Box((("day", Values(tuple(dt.date(2026, 1, number) for number in numbers))),)),))


with warnings.catch_warnings():
    warnings.simplefilter("ignore", BetaWarning)
    MAPPED: dict[str, tuple[PartitionsDefinition[Any] | None, PartitionMapping | None, str, Slice | None]] = {
        "no partitions": (None, None, "", None),
        "all": (DAILY, AllPartitionMapping(), "2026-01-02", None),
        "inferred": (DAILY, None, "2026-01-02", days(2)),
        "multi to single": (DAILY, MultiToSingleDimensionPartitionMapping("day"), "2026-01-02", days(2)),
        "one dimension": (ZONES, by_day(IdentityPartitionMapping()), FIRST, days(2)),
        "an offset": (ZONES, by_day(TimeWindowPartitionMapping(start_offset=-1)), FIRST, days(1, 2)),
        "all of a dimension": (
            ZONES,
            by_day(IdentityPartitionMapping(), letter=DimensionPartitionMapping("zone", AllPartitionMapping())),
            FIRST,
            days(2),
        ),
        "no dimension": (ZONES, MultiPartitionMapping({}), FIRST, None),
    }


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
@pytest.mark.parametrize("known", [["A"], []], ids=["one known", "all deleted"])
@pytest.mark.parametrize(("reader", "mapping", "key", "expected"), MAPPED.values(), ids=MAPPED)
def test_a_dimension_with_dynamic_keys_of_which_a_step_reads_all_is_not_restricted_to_the_known_keys(
    reader: PartitionsDefinition[Any] | None,
    mapping: PartitionMapping | None,
    key: str,
    expected: Slice | None,
    known: list[str],
) -> None:
    assert slice_read(LETTERS, reader, mapping, key, known) == expected


def test_a_dimension_is_restricted_if_a_step_names_its_keys_or_its_keys_are_static() -> None:
    cell = Slice((Box((("day", Values((dt.date(2026, 1, 2),))), ("letter", Values(("A",))))),))
    same = MultiPartitionsDefinition({"day": DAILY, "letter": LETTERS})
    key = MultiPartitionKey({"day": "2026-01-02", "letter": "A"})
    assert slice_read(LETTERS, same, None, key, ["A", "C"]) == cell
    assert slice_read(STATIC, DAILY, None, "2026-01-02", []) == cell
