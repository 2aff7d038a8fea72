"""The Spark session as a Dagster resource, built when it is first asked for."""

from dataclasses import replace
from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pipeline.delta.spark.session import open_session
from pipeline.settings import SparkSettings, load_settings

# This process's settings by number. They may hold credentials, and Dagster shows the fields of a resource to everybody.
_HELD: dict[int, SparkSettings] = {}


class DeltaSparkResource(LazyPySparkResource):
    """A session that can do Delta: embedded, on a cluster's master, or a Connect client.

    Loading definitions starts nothing. In one process all runs share one session. Where nothing is said, the settings
    of the environment hold. Fields are shown in Dagster's UI: credentials belong into the environment, or into settings
    that are handed over with `from_settings`, not into `spark_config`.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)
    held_settings: int | None = None

    @classmethod
    def from_settings(cls, settings: SparkSettings) -> "DeltaSparkResource":
        """The resource for settings that were read before."""
        number = next((number for number, held in _HELD.items() if held == settings), len(_HELD))
        _HELD[number] = settings
        return cls(held_settings=number)

    def to_settings(self) -> SparkSettings:
        """The settings that this resource stands for; its own confs win."""
        held = load_settings().spark if self.held_settings is None else _HELD[self.held_settings]
        conf = dict(held.conf) | {name: str(value) for name, value in self.spark_config.items()}
        return replace(held, conf=tuple(sorted(conf.items())))

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session(self.to_settings())
