"""The settings as frozen values, with their defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import SettingsError
from pipeline.errors.argument_types import type_problems
from pipeline.settings.storage import StorageOptions

VacuumMode = Literal["dry", "apply"]
WarmMode = Literal["auto", "never", "require"]

STATE_FOLDER = ".pipeline"
LOCAL_FRAME_MAX_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Where and how Spark runs. The `repr` leaves out fields that may hold a secret.

    Args:
        master: the Spark master of an embedded Spark. A cluster's master needs a root that the cluster reaches.
        remote: a Spark Connect server with Delta, as `sc://host:port`. If it is set, no Spark starts here and `master`
            is not used.
        warm: whether commands and runs share a Spark server of the project that stays in the background for 30 idle
            minutes. `auto` starts one for the commands `pipeline` and `dagster` and their runs, if nothing forbids it:
            a variable `CI`, a `master`, a `remote`, a folder that can't be written, less than 2 GiB of free memory.
            Otherwise, and with `never`, Spark runs in each process. With `require` there is an error then,
            and `CI` forbids nothing.
        driver_memory: the memory of an embedded Spark.
        cache: the folder of Delta's jars and of start scripts for Java.
        maven_repository: the Maven repository that the jars come from, if not the public one.
        schemes: the schemes of the URIs that Spark reads and writes. They are those of `root`, `landing` and `storage`,
            and can't be set.
        conf: further Spark confs, a table of names and values; they win over the confs that the pipeline sets.
        storage: the account and the address of a bucket, a table for each.
    """

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    warm: WarmMode = "auto"
    driver_memory: str = "2g"
    cache: Path = field(default_factory=lambda: Path.home() / ".cache" / "delta-first-pipeline")
    maven_repository: str | None = field(default=None, repr=False)
    schemes: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    storage: tuple[StorageOptions, ...] = ()

    def __post_init__(self) -> None:
        refuse_other_types(self)

    @property
    def is_cluster(self) -> bool:
        """Whether the master is a cluster's, and not `local` or `local[...]`."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything an operator can set.

    Args:
        project: the folder of the project. It is detected and can't be set.
        root: the URI or folder under which the tables lie. Spark resolves it, so it must be reachable where Spark runs.
        landing: the URI or folder in which input files arrive.
        datasets: the collection of declared datasets, as `package.module:name`.
        catalog: the catalog, or catalog and schema with a dot between them, in which the tables of datasets without a
            `table_name` are registered. Without it, only datasets with a `table_name` are registered.
        vacuum: whether the schedule `vacuum_weekly` lists files (`dry`) or removes them (`apply`).
        running: the schedules and sensors that run without being switched on in Dagster. In the environment, names
            with commas between them.
        local_frame_max_bytes: how much memory of the run's own process one input in pandas, polars or pyarrow may take.
        spark: where and how Spark runs.
    """

    project: Path
    root: str
    landing: str
    datasets: str | None = None
    catalog: str | None = None
    vacuum: VacuumMode = "dry"
    running: tuple[str, ...] = ()
    local_frame_max_bytes: int = LOCAL_FRAME_MAX_BYTES
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        refuse_other_types(self)


def refuse_other_types(settings: Any) -> None:
    """Check the types of a dataclass of settings that is constructed in code.

    The error shows the value, unless the field is left out of the `repr` of its settings.

    Raises:
        SettingsError: for the first field whose value is not of its type.
    """
    shown = {one.name for one in fields(settings) if one.repr}
    for wrong in type_problems(settings):
        expected, problem = wrong.expected, "it is of another type"
        if re.split(r"[.\[]", wrong.path, maxsplit=1)[0] in shown:
            expected += f"; did you mean {wrong.near_miss}?" if wrong.near_miss else ""
            problem = f"got {wrong.got}"
        raise SettingsError(setting=f"{type(settings).__name__}.{wrong.path}", problem=problem, expected=expected)
