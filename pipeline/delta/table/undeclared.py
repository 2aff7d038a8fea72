"""The dataset that a table is of which nothing is declared: what it says of itself, as a declaration.

Here belongs the way from a table to a dataset. What else is known of it, as of a plain asset, is for those to add who
know it.
"""

from __future__ import annotations

from typing import Any, cast

from pipeline.dataset import Check, ColumnMapping, Dataset, Features
from pipeline.dataset.features import MAPPING_MODE
from pipeline.delta.log.table_state import TableState
from pipeline.delta.table.plan import CHANGE_FEED, observed_shape


def dataset_of(name: str, state: TableState, **known: Any) -> Dataset:
    """The dataset of a table, under a name; `known` are further fields of it.

    Raises:
        DeclarationError: the table is none that can be declared, or what is known contradicts it.
    """
    shape = observed_shape(state)
    return Dataset(
        name=name,
        schema=shape.schema,
        partition_by=state.partition_by,
        checks=tuple(Check(name, condition) for name, condition in shape.checks.items()),
        features=Features(
            column_mapping=cast("ColumnMapping | None", shape.property(MAPPING_MODE)),
            generated=tuple(shape.generated.items()),
            defaults=tuple(shape.defaults.items()),
        ),
        change_feed=(shape.property(CHANGE_FEED) or "").lower() == "true",
        **known,
    )
