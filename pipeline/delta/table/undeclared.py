"""The dataset of a table without a declaration, derived from the table's state.

Here belongs the conversion of a table's state to a dataset. A caller may add what it knows, for example of a plain
asset.
"""

from __future__ import annotations

from typing import Any, cast

from pipeline.dataset import Check, ColumnMapping, Dataset, Features
from pipeline.dataset.features import MAPPING_MODE
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.table.plan import CHANGE_FEED, observed_shape


def dataset_of(name: str, state: TableState, **known: Any) -> Dataset:
    """The dataset of a table, with this name; `known` are its other fields.

    Raises:
        DeclarationError: such a table can't be declared, or `known` contradicts it.
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
