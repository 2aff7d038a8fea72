"""The Spark session as a Dagster resource, built when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pipeline.delta.session import open_session
from pipeline.settings import SparkSettings


class DeltaSparkResource(LazyPySparkResource):
    """A session that can do Delta: embedded, on a cluster's master, or a Connect client.

    Loading definitions starts nothing. In one process all runs share one session. `spark_config` holds further Spark
    confs and wins over ours.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)
    master: str = SparkSettings.master
    remote: str | None = None
    driver_memory: str = SparkSettings.driver_memory
    cache: str | None = None
    maven_repository: str | None = None

    @classmethod
    def from_settings(cls, settings: SparkSettings) -> DeltaSparkResource:
        """The resource for settings that were read before."""
        return cls(
            spark_config=dict(settings.conf),
            master=settings.master,
            remote=settings.remote,
            driver_memory=settings.driver_memory,
            cache=str(settings.cache),
            maven_repository=settings.maven_repository,
        )

    def to_settings(self) -> SparkSettings:
        """The settings that this resource stands for."""
        cache = {"cache": Path(self.cache)} if self.cache else {}
        return SparkSettings(
            master=self.master,
            remote=self.remote,
            driver_memory=self.driver_memory,
            maven_repository=self.maven_repository,
            conf=tuple(sorted((name, str(value)) for name, value in self.spark_config.items())),
            **cache,
        )

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session(self.to_settings())
