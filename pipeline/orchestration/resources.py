"""The Spark session as a Dagster resource. It is opened on its first use."""

from dataclasses import replace
from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings, load_settings

# This process's settings by number. They may contain credentials, and Dagster shows a resource's fields to everybody.
_SETTINGS: dict[int, SparkSettings] = {}


class DeltaSparkResource(LazyPySparkResource):
    """A session that supports Delta: embedded, on a cluster's master, or a Connect client.

    Loading definitions starts nothing. In one process all runs share one session. Without other settings those of the
    environment apply. Fields are shown in Dagster's UI: credentials belong in the environment, or in settings passed
    with `from_settings`, not in `spark_config`.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)
    held_settings: int | None = None

    @classmethod
    def from_settings(cls, settings: SparkSettings) -> "DeltaSparkResource":
        """The resource for settings that were loaded before."""
        number = next((number for number, known in _SETTINGS.items() if known == settings), len(_SETTINGS))
        _SETTINGS[number] = settings
        return cls(held_settings=number)

    def to_settings(self) -> SparkSettings:
        """The settings of this resource. Its own `spark_config` overrides their confs."""
        settings = load_settings().spark if self.held_settings is None else _SETTINGS[self.held_settings]
        conf = dict(settings.conf) | {name: str(value) for name, value in self.spark_config.items()}
        return replace(settings, conf=tuple(sorted(conf.items())))

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session(self.to_settings())
