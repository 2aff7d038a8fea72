"""Every error can be built, read, sent to another process, and says whether trying again helps.

One test a property names every error that lacks it.
"""

import copy
import dataclasses
import inspect
import pickle
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import pytest

from pipeline import errors
from pipeline.errors import JournalError, PipelineError, RowViolationError, StorageError, TableError, ViolationError

GROUPS = (PipelineError, TableError, StorageError, ViolationError, RowViolationError, JournalError)


def subclasses(cls: type[PipelineError]) -> Iterator[type[PipelineError]]:
    for child in cls.__subclasses__():
        if child.__module__.startswith(f"{errors.__name__}."):
            yield child
            yield from subclasses(child)


ALL = tuple(dict.fromkeys(subclasses(PipelineError)))
CONCRETE = [cls for cls in ALL if cls not in GROUPS]


def value_for(name: str, hint: Any) -> Any:
    """A value of the field's type that can be told from every other field's."""
    origin = get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return value_for(name, next(arm for arm in get_args(hint) if arm is not type(None)))
    if origin is tuple:
        return (f"<{name} 1>", f"<{name} 2>")
    if origin is Mapping:
        return {f"<{name} 1>": 1, f"<{name} 2>": 22}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    return {str: f"<{name}>", int: 4711, bool: True}[hint]


def built(cls: type[PipelineError], only_required: bool = False) -> PipelineError:
    hints = get_type_hints(cls)
    no_default = dataclasses.MISSING
    wanted = [
        f
        for f in dataclasses.fields(cls)
        if not only_required or (f.default is no_default and f.default_factory is no_default)
    ]
    return cls(**{f.name: value_for(f.name, hints[f.name]) for f in wanted})


def fields_of(error: PipelineError) -> dict[str, Any]:
    return {f.name: getattr(error, f.name) for f in dataclasses.fields(error)}


def without(holds: Callable[[type[PipelineError]], bool]) -> list[str]:
    """The names of the errors of which a property does not hold."""
    return [cls.__name__ for cls in CONCRETE if not holds(cls)]


def test_the_groups_are_the_only_errors_that_others_build_on() -> None:
    assert {cls for cls in (PipelineError, *ALL) if cls.__subclasses__()} == set(GROUPS)


@pytest.mark.parametrize("only_required", [False, True])
def test_the_text_is_the_message_and_then_the_remedy(only_required: bool) -> None:
    def holds(cls: type[PipelineError]) -> bool:
        error = built(cls, only_required)
        expected = [error.message(), error.remedy()] if error.remedy() else [error.message()]
        return bool(error.message().strip()) and str(error).split("\n  -> ") == expected

    assert without(holds) == []


def test_the_text_shows_values_and_no_python_internals() -> None:
    internals = ("None", "object at", "mappingproxy", "{'", "('")
    texts = {cls: str(built(cls)) for cls in CONCRETE}
    assert without(lambda cls: "<" in texts[cls]) == [], "no field is shown"
    assert without(lambda cls: not any(trace in texts[cls] for trace in internals)) == []


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_a_copy_has_equal_type_fields_and_text(copied: Callable[[PipelineError], PipelineError]) -> None:
    """Dagster and multiprocessing send errors between processes."""

    def holds(cls: type[PipelineError]) -> bool:
        error = built(cls)
        again = copied(error)
        return type(again) is cls and fields_of(again) == fields_of(error) and str(again) == str(error)

    assert without(holds) == []


def test_whether_to_try_again_is_said_by_the_type_and_not_by_the_instance() -> None:
    assert without(lambda cls: isinstance(cls.retryable, bool) and "retryable" not in fields_of(built(cls))) == []
    assert get_origin(get_type_hints(PipelineError)["retryable"]) is ClassVar


def test_only_what_another_attempt_can_change_is_retryable() -> None:
    """An unknown outcome is not: the same rows could be written twice. A server that is gone is started by somebody."""
    assert {cls.__name__ for cls in ALL if cls.retryable} == {
        "SinkFullError",
        "CommitConflictError",
        "JarsUnavailableError",
    }


def test_what_an_attempt_can_change_or_time_can_is_told_apart_from_what_stays() -> None:
    """A sink waits for these and a retry policy of Dagster runs again; damage and refusals stay what they are."""
    assert {cls.__name__ for cls in ALL if cls.may_pass} == {
        "AfterCommitError", "CatalogError", "CommitConflictError", "CommitUnknownError", "EngineError",
        "ExecutorsUnavailableError", "ExportIncompleteError", "ExportRunningError", "FileAccessError",
        "FrameFailedError", "JarsUnavailableError", "JournalWriteError", "SinkFullError", "SparkUnavailableError",
        "StagingError", "StorageAccessError", "StorageError",
    }  # fmt: skip
    assert not PipelineError.may_pass


def test_fields_are_given_by_name_only() -> None:
    def holds(cls: type[PipelineError]) -> bool:
        with suppress(TypeError):
            cls(*fields_of(built(cls)).values())
            return False
        return True

    assert without(holds) == []


def test_every_error_says_when_it_is_raised() -> None:
    assert without(lambda cls: bool(cls.__doc__)) == []
    assert without(lambda cls: not str(cls.__doc__).startswith(f"{cls.__name__}(")) == [], "made up by dataclass"


def test_an_error_can_be_a_cause_and_a_member_of_a_set() -> None:
    one, other = built(CONCRETE[0]), built(CONCRETE[0])
    assert len({one, other}) == 2
    with pytest.raises(PipelineError) as caught:
        raise one from other
    assert caught.value.__cause__ is other


def test_every_error_of_the_module_is_a_pipeline_error() -> None:
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)]
    assert set(found) == {PipelineError, *ALL}


def test_one_row_is_counted_in_the_singular() -> None:
    assert "a: 1 row, b: 2 rows" in errors.NullViolationError(dataset="d", counts={"a": 1, "b": 2}).message()
