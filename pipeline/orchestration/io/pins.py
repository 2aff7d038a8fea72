"""The pins of a repeated run: the versions that its steps read, and the root that they write to.

Here belongs what the IO manager does in such a run instead of what it does in any other. A run has pins only within
`pipeline rerun`, in the process that executes it. What is pinned is decided in `commands.rerun_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from dagster import AssetKey, InputContext, StepExecutionContext

from pipeline.dataset import Dataset, table_location
from pipeline.delta.read.pinned import PinnedChanges
from pipeline.errors import RerunError, TableNotFoundError
from pipeline.orchestration.io.cached import decided_version
from pipeline.orchestration.io.inputs import may_be_missing
from pipeline.orchestration.io.reads import version_written_in_run


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The pins of one run. `root` replaces the root of everything that the run writes.

    `versions` has the versions of the sources by the asset that reads them, `changes` a consumer's reads of changes.
    """

    root: str
    versions: Mapping[str, Mapping[str, int]]
    changes: Mapping[str, Mapping[str, PinnedChanges]]


# Dagster builds the IO managers of a run itself, again for each run: nothing can be passed to them but through it.
_PINS: ContextVar[Pins | None] = ContextVar("pipeline_pins", default=None)


@contextmanager
def pinned(pins: Pins) -> Iterator[None]:
    """Let the runs of the block, in this thread, read and write as the pins say."""
    token = _PINS.set(pins)
    try:
        yield
    finally:
        _PINS.reset(token)


def is_pinned() -> bool:
    """Whether pins are in force."""
    return _PINS.get() is not None


def output_root(root: str) -> str:
    """The root to write to: that of the pins, or else the root of the IO manager."""
    pins = _PINS.get()
    return root if pins is None else pins.root


def output_dataset(dataset: Dataset, catalog: str | None) -> Dataset:
    """The dataset of an output under its name in the catalog. With pins it has none: the name is the real table's."""
    return dataset.named(catalog) if _PINS.get() is None else replace(dataset, table_name=None)


def version_to_read(context: InputContext, step: StepExecutionContext, root: str) -> int | None:
    """The version of a source that a step reads: the pinned one, or else the one that the run has written.

    None for the newest.

    Raises:
        TableNotFoundError: the pinned run has not read this source, because it had no rows for the step.
        RerunError: the pinned run has not read this source.
    """
    pins = _PINS.get()
    if pins is None:
        decided = decided_version(step, context.asset_key)
        return version_written_in_run(step, context.asset_key) if decided is None else decided
    name, readers = _name(context.asset_key), _assets_of(step)
    found = (pins.versions.get(reader, {}).get(name) for reader in readers)
    version = next((number for number in found if number is not None), None)
    if version is None and may_be_missing(context, step):
        raise TableNotFoundError(dataset=name, location=table_location(root, name))
    if version is None:
        reason = f"{' and '.join(readers)} now reads {name}, and the run that is repeated has not read it"
        raise RerunError(reason=reason, hint="Repeat it with the code that the run had.")
    return version


def pinned_changes(consumer: Dataset) -> Mapping[str, PinnedChanges] | None:
    """The pinned reads of a consumer by source. Without pins, None."""
    pins = _PINS.get()
    return None if pins is None else pins.changes.get(consumer.name, {})


def _assets_of(step: StepExecutionContext) -> list[str]:
    return sorted(map(_name, () if step.assets_def is None else step.assets_def.keys))


def _name(key: AssetKey) -> str:
    return "/".join(key.path)
