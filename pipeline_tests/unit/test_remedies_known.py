"""Each error has a remedy that a test follows to its end, or it has no remedy."""

from __future__ import annotations

import pytest

from pipeline.errors import PipelineError
from pipeline_tests import remedies
from pipeline_tests.delta import test_catalog_names as _of_names  # noqa: F401  it registers its tests
from pipeline_tests.delta import test_cluster as _of_clusters  # noqa: F401
from pipeline_tests.delta import test_export as _of_exports  # noqa: F401
from pipeline_tests.delta import test_history as _of_histories  # noqa: F401
from pipeline_tests.delta import test_publish_command as _of_publications  # noqa: F401
from pipeline_tests.delta import test_remedies_arrive as _with_spark  # noqa: F401  it registers its tests
from pipeline_tests.delta import test_remedies_of_migrations as _of_migrations  # noqa: F401
from pipeline_tests.delta import test_remedies_of_tables as _of_tables  # noqa: F401
from pipeline_tests.end_to_end import test_rerun as _of_reruns  # noqa: F401
from pipeline_tests.orchestration import test_asset_forms as _of_steps  # noqa: F401
from pipeline_tests.unit import test_clean_log as _of_logs  # noqa: F401
from pipeline_tests.unit import test_object_stores as _of_stores  # noqa: F401
from pipeline_tests.unit import test_remedies_arrive as _without_spark  # noqa: F401
from pipeline_tests.unit import test_remedies_of_machine as _of_machine  # noqa: F401
from pipeline_tests.unit import test_remedies_of_sinks as _of_sinks  # noqa: F401
from pipeline_tests.unit import test_storage_options as _of_storage  # noqa: F401
from pipeline_tests.unit import test_warm as _of_servers  # noqa: F401
from pipeline_tests.unit.test_errors import CONCRETE


def has_remedy(kind: type[PipelineError]) -> bool:
    """Whether an error of this type may have one."""
    return bool(kind.next_step) or kind.remedy is not PipelineError.remedy


def test_every_remedy_is_followed_by_a_test_that_arrives() -> None:
    assert [kind.__name__ for kind in CONCRETE if has_remedy(kind) and kind not in remedies.FOLLOWED] == []


def test_only_remedies_that_exist_are_followed() -> None:
    assert [kind.__name__ for kind in remedies.FOLLOWED if not has_remedy(kind)] == []


def test_a_test_that_reads_no_remedy_fails() -> None:
    kind = next(kind for kind in CONCRETE if has_remedy(kind))
    before = remedies.FOLLOWED[kind].copy()
    with pytest.raises(AssertionError, match="was not read"):
        remedies.follows(kind)(lambda: None)()
    remedies.FOLLOWED[kind] = before
