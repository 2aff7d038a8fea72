"""A dataset as a Dagster asset: everything that Dagster shows is derived from the declaration.

Here belong the decorator, the parts for Dagster's other forms of assets, the spec for tables that are written
elsewhere, and the metadata of definitions. The metadata that a run adds belongs to `metadata`.
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
from pipeline.orchestration.failures import with_dagster_failures
from pipeline.orchestration.io.consumers import ONE_OUTPUT, REFRESH_CONFIG, refuse_partitions, release_changes
from pipeline.orchestration.io.memoized import memoized
from pipeline.orchestration.metadata import column_schema, declaration_metadata, declared_dataset, table_name
from pipeline.orchestration.metadata_keys import (
    COLUMN_SCHEMA,
    DATASET,
    DECLARED_FINGERPRINT,
    DECLARED_WRITE_MODE,
    FED_ELSEWHERE,
    KEYS,
    PARTITION_BY,
    PARTITION_EXPR,
    READS_CHANGES_OF,
    TABLE_NAME,
)
from pipeline.orchestration.partitions import partition_columns

IO_MANAGER = "delta_io_manager"
# The names of kinds for which Dagster's UI has icons.
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

    A parameter named like the last part of a name in `dataset.reads` gets that dataset's frame, or its `Changes` if
    `reads_changes_of` contains it too. Sources without a parameter become plain dependencies. Other parameters are
    Dagster's: the context, config, resources. If the asset is partitioned, one run may address any range of its keys.

    Args:
        partition_expr: the partition column of the keys, needed if the table has several.
        automation_condition: a condition that the declaration can't express. It excludes `starts_on_change`.
        is_fed_elsewhere: whether a sink or another project writes the table too. The asset's metadata records it.

    Raises:
        DeclarationError: the partition keys can't address the table, two sources share a parameter name, Dagster
            refuses the freshness, there are two conditions, or a consumer of changes is partitioned or has no
            parameter for one of their sources.
    """
    require_dataset(dataset, "dataset_asset")
    if partitions_def is not None:
        refuse_partitions(dataset, partitions_def)
        partition_columns(dataset, partitions_def, partition_expr)

    options: dict[str, Any] = {
        "partitions_def": partitions_def,
        # Needed on an unpartitioned asset too: Dagster asks for it on every asset that a run over a range selects.
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
            # Dagster calls `backfill_policy` beta, but nothing else lets one run address many keys.
            warnings.simplefilter("ignore", BetaWarning)
            decorated = asset(ins=ins, **declared, **options, **consumes)(with_dagster_failures(function))
        assert isinstance(decorated, AssetsDefinition)  # noqa: S101  the type that `asset` returns for arguments
        return memoized(decorated)

    return decorate


def kinds_of_frame(function: Callable[..., Any]) -> set[str]:
    """The library of the frame in a function's return annotation. Empty without an annotation or with another type."""
    try:
        returned = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError, SyntaxError):  # a name that only type checkers can resolve
        return set()
    if returned is Touched:
        return {KINDS_OF_FRAMES["pyspark"]}
    kind = kind_of(get_args(returned)[0] if get_origin(returned) is Output and get_args(returned) else returned)
    return set() if kind is None else {KINDS_OF_FRAMES[kind.partition(".")[0]]}


def _consuming(function: Callable[..., Any]) -> dict[str, Any]:
    """Further arguments of `asset` for a consumer. A function with a config of its own must declare it itself."""
    has_config = "config" in inspect.signature(function).parameters
    return {"hooks": {release_changes}} | ({} if has_config else {"config_schema": REFRESH_CONFIG})


def _refuse_unread(dataset: Dataset, parameter_sources: Iterable[str]) -> None:
    """Refuse a consumer whose function has no parameter for a source: that source's changes would be ignored."""
    unread = [source for source in dataset.reads_changes_of if source not in parameter_sources]
    if unread:
        problems = tuple(f"no parameter of its function takes the changes of {source}" for source in unread)
        raise DeclarationError(dataset=dataset.name, problems=problems)


def _declared(dataset: Dataset, metadata: Mapping[str, Any], inputs: AbstractSet[str] = frozenset()) -> dict[str, Any]:
    """The arguments of `asset` and `AssetSpec` from a declaration. Sources in `inputs` are not plain dependencies."""
    return {
        "key": AssetKey(dataset.asset_key),
        "deps": [AssetKey(source.split("/")) for source in dataset.reads if source not in inputs],
        "metadata": metadata,
        "description": dataset.description or None,
        "group_name": dataset.group,
        "owners": list(dataset.owners),
        "tags": dict(dataset.tags),
        "kinds": {KIND},
        "freshness_policy": freshness_policy(dataset),
    }


def _computed(dataset: Dataset, condition: AutomationCondition[AssetKey] | None) -> dict[str, Any]:
    """The arguments of `asset` but not of `AssetSpec`: they apply only if our code computes the rows."""
    if condition is not None and dataset.starts_on_change:
        problem = "it declares starts_on_change, and its asset has another automation condition"
        raise DeclarationError(dataset=dataset.name, problems=(problem,))
    if dataset.starts_on_change:
        condition = on_changed_source()
    return {"code_version": dataset.code_version, "automation_condition": condition}


def freshness_policy(dataset: Dataset) -> FreshnessPolicy | None:
    """The declared freshness in Dagster's form.

    Raises:
        DeclarationError: the cron expression, its window or its time zone is not valid.
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
    """The output of a `multi_asset` for a dataset. It has the dataset's key and table.

    The `multi_asset` itself names the sources, in `ins` or `deps`.

    Args:
        is_required: False if the function may skip this output, as with `can_subset`.
    """
    require_dataset(dataset, "dataset_out")
    if dataset.reads_changes_of:
        raise DeclarationError(dataset=dataset.name, problems=(ONE_OUTPUT,))
    if dataset.cache:
        problem = "cache needs an asset of its own: a step with several outputs is not skipped for one of them"
        raise DeclarationError(dataset=dataset.name, problems=(problem,))
    declared = _declared(dataset, dataset_metadata(dataset, partition_expr))
    del declared["deps"]
    return AssetOut(
        **declared,
        **_computed(dataset, automation_condition),
        is_required=is_required,
        io_manager_key=io_manager_key,
    )


def dataset_spec(dataset: Dataset, *, io_manager_key: str = IO_MANAGER) -> AssetSpec:
    """The asset of a table that something other than Dagster writes."""
    return AssetSpec(**_declared(dataset, dataset_metadata(dataset))).with_io_manager_key(io_manager_key)


def dataset_metadata(dataset: Dataset, partition_expr: str | Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """The metadata of a dataset before any run, including the declaration itself for the IO manager.

    Set as `metadata` of any asset whose output `DeltaIOManager` writes (a plain `asset`, a `graph_asset`), it makes the
    asset one of that dataset. The table's location follows from the asset's own key, not from the dataset's name.
    """
    require_dataset(dataset, "dataset_metadata")
    expr = {PARTITION_EXPR: partition_expr} if partition_expr is not None else {}
    keys = {KEYS: ", ".join(dataset.keys)} if dataset.keys else {}
    changes = {READS_CHANGES_OF: ", ".join(dataset.reads_changes_of)} if dataset.reads_changes_of else {}
    name = {TABLE_NAME: table_name(dataset)} if dataset.table_name is not None else {}
    return {
        DATASET: declaration_metadata(dataset),
        COLUMN_SCHEMA: column_schema(dataset),
        PARTITION_BY: ", ".join(dataset.partition_by),
        DECLARED_WRITE_MODE: type(dataset.write).__name__.lower(),
        DECLARED_FINGERPRINT: dataset.fingerprint,
    } | {**keys, **expr, **changes, **name}


def with_table_names(asset: AssetsDefinition, catalog: str | None) -> AssetsDefinition:
    """The asset with the table names that the setting `catalog` gives to its datasets in its metadata."""

    def named(spec: AssetSpec) -> AssetSpec:
        dataset = declared_dataset(spec.key, spec.metadata)
        if dataset is None or dataset.table_name is not None:
            return spec
        return spec.merge_attributes(metadata={TABLE_NAME: table_name(dataset.named(catalog))})

    return asset if catalog is None else asset.map_asset_specs(named)


def _inputs(dataset: Dataset, function: Callable[..., Any]) -> dict[str, str]:
    """The source of each parameter's frame, by parameter name."""
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
