"""The Spark session as a Dagster resource. It is opened on its first use."""

from dataclasses import replace
from typing import Any, ClassVar

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pipeline.delta.server.warm import open_project_session
from pipeline.settings import SparkSettings, load_settings


class DeltaSparkResource(LazyPySparkResource):
    """A session that supports Delta: embedded, on a cluster's master, or a Connect client.

    Loading definitions starts nothing. In one process all runs share one session. Without other settings those of the
    environment apply. Fields are shown in Dagster's UI: credentials belong in the environment, or in settings passed
    with `from_settings`, not in `spark_config`.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)
    # Not a field: settings may contain credentials, and Dagster shows the fields of a resource to everybody.
    loaded: ClassVar[SparkSettings | None] = None

    @classmethod
    def from_settings(cls, settings: SparkSettings) -> "DeltaSparkResource":
        """The resource for settings that were loaded before."""

        class WithSettings(cls):  # type: ignore[misc, valid-type]  # Dagster makes further instances of the class
            loaded: ClassVar[SparkSettings | None] = settings

        WithSettings.__name__, WithSettings.__doc__ = cls.__name__, cls.__doc__
        return WithSettings()

    def to_settings(self) -> SparkSettings:
        """The settings of this resource. Its own `spark_config` overrides their confs."""
        settings = self.loaded or load_settings().spark
        conf = dict(settings.conf) | {name: str(value) for name, value in self.spark_config.items()}
        return replace(settings, conf=tuple(sorted(conf.items())))

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_project_session(self.to_settings())
