"""An asset whose function is called only if its outcome is not cached.

Here belongs the replacement of an asset's function. The decision belongs to `cached`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInvariantViolationError,
    DagsterType,
    In,
    OpDefinition,
    Out,
    StepExecutionContext,
    TypeCheck,
    TypeCheckContext,
)

# Dagster's own function of a decorated op, and the handle of an output; not public yet.
from dagster._core.definitions.decorators.op_decorator import DecoratedOpFunction
from dagster._core.execution.plan.outputs import StepOutputHandle

from pipeline.errors import DeclarationError
from pipeline.orchestration.failures import as_dagster_failure
from pipeline.orchestration.io.cached import CachedRows, Deferred, cached_rows, is_cached
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.io.pins import is_pinned

_MARK = "_outcome_is_cached"
_NOT_PLAIN = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)


def memoized(asset: AssetsDefinition) -> AssetsDefinition:
    """The asset, with a function that is skipped if its outcome is cached. Other assets are returned as they are.

    Raises:
        DeclarationError: the asset has several outputs, is a graph, has no code version, or its function is a generator
            or a coroutine.
    """
    specs = [spec for spec in asset.specs if is_cached(spec.key, spec.metadata)]
    op = asset.node_def if specs else None
    if op is None or (isinstance(op, OpDefinition) and _is_memoized(op)):
        return asset
    (key, *_), problem = [spec.key for spec in specs], _problem(asset, op)
    if problem is not None:
        raise DeclarationError(dataset="/".join(key.path), problems=(f"its outcome is cached, and {problem}",))
    assert isinstance(op, OpDefinition)  # noqa: S101  anything else is a problem
    return AssetsDefinition.dagster_internal_init(**asset.get_attributes_dict() | {"node_def": _memoized_op(op)})


def _is_memoized(op: OpDefinition) -> bool:
    return isinstance(op.compute_fn, DecoratedOpFunction) and hasattr(op.compute_fn.decorated_fn, _MARK)


def _problem(asset: AssetsDefinition, op: object) -> str | None:
    if not isinstance(op, OpDefinition) or not isinstance(op.compute_fn, DecoratedOpFunction):
        return "it is not made of one function"
    if len(op.outs) != 1:
        return "its asset has further outputs"
    if any(spec.code_version is None for spec in asset.specs):
        return "it has no code_version, so that changed code would go unnoticed"
    function = op.compute_fn.decorated_fn
    if any(is_one(function) for is_one in _NOT_PLAIN):
        return "its function is a generator or a coroutine; return the frame"
    return None


def _memoized_op(op: OpDefinition) -> OpDefinition:
    assert isinstance(op.compute_fn, DecoratedOpFunction)  # noqa: S101  `_problem` has found it
    function = _memoized_function(op.compute_fn.decorated_fn)
    ins = {one.name: In.from_definition(one.with_dagster_type(_or_later(one.dagster_type))) for one in op.input_defs}
    outs = {
        one.name: Out.from_definition(one)._replace(dagster_type=_or_later(one.dagster_type)) for one in op.output_defs
    }
    return OpDefinition.dagster_internal_init(
        name=op.name, compute_fn=DecoratedOpFunction(function), ins=ins, outs=outs, description=op.description,
        config_schema=op.config_schema, required_resource_keys=set(op.required_resource_keys), tags=op.tags,
        version=None, retry_policy=op.retry_policy, code_version=None, pool=op.pool,
    )  # fmt: skip


@functools.cache
def _or_later(of: DagsterType) -> DagsterType:
    """The type of the same values, and of what stands for one of them."""

    def check(context: TypeCheckContext, value: object) -> TypeCheck | bool:
        return isinstance(value, Deferred | CachedRows) or of.type_check(context, value)

    if of.is_nothing:
        return of
    return DagsterType(
        check, key=f"{of.key} or later", description=of.description, typing_type=of.typing_type, loader=of.loader
    )


def _memoized_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        step = _step()
        if step is not None:
            with as_dagster_failure():
                rows = _cached_rows(step)
                if rows is not None:
                    return rows
        given = [_loaded(value) for value in args]
        return function(*given, **{name: _loaded(value) for name, value in kwargs.items()})

    setattr(call, _MARK, True)
    return call


def _loaded(value: Any) -> Any:
    return value.load() if isinstance(value, Deferred) else value


def _step() -> StepExecutionContext | None:
    """The step that calls the function. If it is called outside a run, None."""
    try:
        step: StepExecutionContext = AssetExecutionContext.get().get_step_execution_context()
    except DagsterInvariantViolationError:
        return None
    return step


def _cached_rows(step: StepExecutionContext) -> CachedRows | None:
    (output,) = step.step.step_outputs
    handle = StepOutputHandle(step.step.key, output.name)
    manager = step.get_io_manager(handle)
    if is_pinned() or not isinstance(manager, DeltaIOManager):
        return None
    return cached_rows(step, step.get_output_context(handle), manager.root)
