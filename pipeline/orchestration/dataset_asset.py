"""A dataset as a Dagster asset: everything that Dagster shows is derived from the declaration.

Here belong the decorator, the parts for Dagster's other forms of assets, the spec for tables that are written
elsewhere, and the metadata of definitions. What a run adds to the metadata belongs to `metadata`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, get_args, get_origin, get_type_hints

from dagster import (
    AssetIn,
    AssetKey,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    BetaWarning,
    FreshnessPolicy,
    Output,
    PartitionsDefinition,
    RetryPolicy,
    asset,
)
from dagster_shared.check import CheckError

from pipeline.dataset import Dataset, FreshByCron, FreshWithin, require_dataset
from pipeline.delta.frames.convert import kind_of
from pipeline.delta.write.consume import Touched
from pipeline.errors import DeclarationError
from pipeline.orchestration.automation.pools import pool
from pipeline.orchestration.automation.sensors import on_changed_source
from pipeline.orchestration.failures import telling_failures
from pipeline.orchestration.io.consumers import ONE_OUTPUT, REFRESH_CONFIG, refuse_partitions, release_changes
from pipeline.orchestration.metadata import DATASET, FED_ELSEWHERE, column_schema, declaration_metadata
from pipeline.orchestration.partitions import PARTITION_EXPR, partition_columns

IO_MANAGER = "delta_io_manager"
# As Dagster's UI names them, which has an icon for each.
KIND = "deltalake"
KINDS_OF_FRAMES = {"pyspark": "pyspark", "pandas": "pandas", "polars": "polars", "pyarrow": "arrow"}


def dataset_asset(
    dataset: Dataset,
    *,
    partitions_def: PartitionsDefinition[Any] | None = None,
    partition_expr: str | Mapping[str, str] | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    retry_policy: RetryPolicy | None = None,
    io_manager_key: str = IO_MANAGER,
    is_fed_elsewhere: bool = False,
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Make the asset of a dataset from the function that computes its frame.

    A parameter named as the last part of a name in `dataset.reads` gets that dataset's frame, or its `Changes` where
    `reads_changes_of` names it too; sources that no parameter names become plain dependencies. Other parameters are
    Dagster's: the context, config, resources. Where the asset is partitioned, one run may address any range of its
    keys.

    Args:
        partition_expr: the partition column that the keys stand for, where the table has several.
        automation_condition: one that the declaration has no word for, where it doesn't say `starts_on_change`.
        is_fed_elsewhere: whether a sink or another project writes the table too; its definition says so.

    Raises:
        DeclarationError: the partition keys can't address the table, two sources share a parameter name, the freshness
            is none that Dagster knows, there are two conditions, or a consumer of changes is partitioned or has no
            parameter for a source of them.
    """
    require_dataset(dataset, "dataset_asset")
    if partitions_def is not None:
        refuse_partitions(dataset, partitions_def)
        partition_columns(dataset, partitions_def, partition_expr)

    options: dict[str, Any] = {
        "partitions_def": partitions_def,
        # Also on an unpartitioned asset: Dagster asks it of every asset that a run over a range selects.
        "backfill_policy": BackfillPolicy.single_run(),
        "retry_policy": retry_policy,
        "io_manager_key": io_manager_key,
        "pool": pool(dataset),
    } | _computed(dataset, automation_condition)

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        consumes = _consuming(function) if dataset.reads_changes_of else {}
        inputs = _inputs(dataset, function)
        _refuse_unread(dataset, inputs.values())
        elsewhere = {FED_ELSEWHERE: True} if is_fed_elsewhere else {}
        metadata = {**dataset_metadata(dataset, partition_expr), **elsewhere}
        declared = _declared(dataset, metadata, set(inputs.values())) | {"kinds": {KIND, *kinds_of_frame(function)}}
        ins = {name: AssetIn(key=AssetKey(source.split("/"))) for name, source in inputs.items()}
        with warnings.catch_warnings():
            # Dagster calls `backfill_policy` beta; it has no other way to say that one run may address many keys.
            warnings.simplefilter("ignore", BetaWarning)
            decorated = asset(ins=ins, **declared, **options, **consumes)(telling_failures(function))
        assert isinstance(decorated, AssetsDefinition)  # noqa: S101  what `asset` returns when it is given arguments
        return decorated

    return decorate


def kinds_of_frame(function: Callable[..., Any]) -> set[str]:
    """The library of the frame that a function says it returns; none where it does not say, or in words of its own."""
    try:
        returned = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError, SyntaxError):  # a name that is only there for type checkers
        return set()
    if returned is Touched:
        return {KINDS_OF_FRAMES["pyspark"]}
    frame = kind_of(get_args(returned)[0] if get_origin(returned) is Output and get_args(returned) else returned)
    return set() if frame is None else {KINDS_OF_FRAMES[frame.partition(".")[0]]}


def _consuming(function: Callable[..., Any]) -> dict[str, Any]:
    """What `asset` is told of a consumer beside; a function with a configuration of its own says what that holds."""
    has_own = "config" in inspect.signature(function).parameters
    return {"hooks": {release_changes}} | ({} if has_own else {"config_schema": REFRESH_CONFIG})


def _refuse_unread(dataset: Dataset, taken: Iterable[str]) -> None:
    """Refuse a consumer whose function has no parameter for a source, so that its changes would be passed over."""
    unread = [source for source in dataset.reads_changes_of if source not in taken]
    if unread:
        problems = tuple(f"no parameter of its function takes the changes of {source}" for source in unread)
        raise DeclarationError(dataset=dataset.name, problems=problems)


def _declared(dataset: Dataset, metadata: Mapping[str, Any], taken: AbstractSet[str] = frozenset()) -> dict[str, Any]:
    """What `asset` and `AssetSpec` are told of a declaration; sources in `taken` are no plain dependencies."""
    return {
        "key": AssetKey(dataset.asset_key),
        "deps": [AssetKey(source.split("/")) for source in dataset.reads if source not in taken],
        "metadata": metadata,
        "description": dataset.description or None,
        "group_name": dataset.group,
        "owners": list(dataset.owners),
        "tags": dict(dataset.tags),
        "kinds": {KIND},
        "freshness_policy": freshness_policy(dataset),
    }


def _computed(dataset: Dataset, condition: AutomationCondition[AssetKey] | None) -> dict[str, Any]:
    """What `asset` is told of a declaration and `AssetSpec` is not, because nothing of ours computes its rows."""
    if condition is not None and dataset.starts_on_change:
        problem = "it says starts_on_change, and its asset is given another automation condition"
        raise DeclarationError(dataset=dataset.name, problems=(problem,))
    if dataset.starts_on_change:
        condition = on_changed_source()
    return {"code_version": dataset.code_version, "automation_condition": condition}


def freshness_policy(dataset: Dataset) -> FreshnessPolicy | None:
    """The declared freshness in Dagster's form.

    Raises:
        DeclarationError: the cron expression, its window or its time zone is none.
    """
    declared = dataset.freshness
    try:
        if isinstance(declared, FreshWithin):
            return FreshnessPolicy.time_window(fail_window=declared.fail_after, warn_window=declared.warn_after)
        if isinstance(declared, FreshByCron):
            return FreshnessPolicy.cron(
                deadline_cron=declared.cron, lower_bound_delta=declared.window, timezone=declared.timezone
            )
    except CheckError as error:
        raise DeclarationError(dataset=dataset.name, problems=(f"freshness: {error}",)) from error
    return None


def dataset_out(
    dataset: Dataset,
    *,
    partition_expr: str | Mapping[str, str] | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    is_required: bool = True,
    io_manager_key: str = IO_MANAGER,
) -> AssetOut:
    """The output of a `multi_asset` that is a dataset's table; its key and its table are the dataset's.

    Sources are named by the `multi_asset` itself, in `ins` or `deps`.

    Args:
        is_required: False where the function may leave this output out, as one with `can_subset` does.
    """
    require_dataset(dataset, "dataset_out")
    if dataset.reads_changes_of:
        raise DeclarationError(dataset=dataset.name, problems=(ONE_OUTPUT,))
    declared = _declared(dataset, dataset_metadata(dataset, partition_expr))
    del declared["deps"]
    return AssetOut(
        **declared,
        **_computed(dataset, automation_condition),
        is_required=is_required,
        io_manager_key=io_manager_key,
    )


def dataset_spec(dataset: Dataset, *, io_manager_key: str = IO_MANAGER) -> AssetSpec:
    """The asset of a table that something else than Dagster writes."""
    return AssetSpec(**_declared(dataset, dataset_metadata(dataset))).with_io_manager_key(io_manager_key)


def dataset_metadata(dataset: Dataset, partition_expr: str | Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """What is known of a dataset before anything has run; the declaration itself for the IO manager among it.

    As `metadata` of any asset whose output `DeltaIOManager` writes (a plain `asset`, a `graph_asset`) it makes the
    asset one of a dataset. The table lies at the asset's own key, whatever the dataset's name.
    """
    require_dataset(dataset, "dataset_metadata")
    expr = {PARTITION_EXPR: partition_expr} if partition_expr is not None else {}
    keys = {"delta/keys": ", ".join(dataset.keys)} if dataset.keys else {}
    changes = {"delta/reads_changes_of": ", ".join(dataset.reads_changes_of)} if dataset.reads_changes_of else {}
    return {
        DATASET: declaration_metadata(dataset),
        "dagster/column_schema": column_schema(dataset),
        "delta/partition_by": ", ".join(dataset.partition_by),
        "delta/write_mode": type(dataset.write).__name__.lower(),
        "delta/declared_fingerprint": dataset.fingerprint,
    } | {**keys, **expr, **changes}


def _inputs(dataset: Dataset, function: Callable[..., Any]) -> dict[str, str]:
    """By parameter name, the source whose frame it gets."""
    parameters = inspect.signature(function).parameters
    inputs: dict[str, str] = {}
    for source in dataset.reads:
        name = source.rsplit("/", 1)[-1].replace("-", "_").replace(".", "_")
        if name in inputs:
            problem = f"sources {inputs[name]} and {source} would share the parameter {name}"
            raise DeclarationError(dataset=dataset.name, problems=(problem,))
        if name in parameters:
            inputs[name] = source
    return inputs
