"""Benchmarks measure the session that a user gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.settings import SparkSettings
from pipeline_tests.conftest import INTERPRETED


@pytest.fixture(scope="session")
def spark_settings(spark_settings: SparkSettings) -> SparkSettings:
    """Settings of the driver, which generates code."""
    return replace(spark_settings, conf=tuple(pair for pair in spark_settings.conf if pair not in INTERPRETED))
