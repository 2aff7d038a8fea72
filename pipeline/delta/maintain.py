"""Keeping a table healthy: vacuum and checkpoint.

Here belongs what changes files and no rows. Vacuum is dry unless asked otherwise, and obeys the table's own retention:
Delta ignores any other number of hours (delta#2129), so none can be given.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.dataset import Dataset
from pipeline.delta import sql
from pipeline.delta.commit import clone_session
from pipeline.delta.failures import SPARK_ERRORS, read_failure
from pipeline.delta.session import embedded_environment, is_connect
from pipeline.delta.table import TableState, existing
from pipeline.delta.transaction import INCARNATION, incarnation
from pipeline.errors import StorageError

CHILD_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class VacuumResult:
    """What a vacuum would remove or was about to: `files` names them, but no more than the 1000 that Delta lists."""

    dataset: str
    version: int
    applied: bool
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """The version that a checkpoint was written of."""

    dataset: str
    version: int


def vacuum(session: SparkSession, dataset: Dataset, location: str, *, apply: bool = False) -> VacuumResult:
    """Remove files that no version within the table's retention needs; only list them unless `apply`.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: files can't be listed or removed.
    """
    existing(session, dataset, location)
    try:
        listed = session.sql(f"VACUUM {sql.path_table(location)} DRY RUN").collect()
        if apply:
            session.sql(f"VACUUM {sql.path_table(location)}").collect()
    except SPARK_ERRORS as error:
        raise StorageError(dataset=dataset.name, location=location, reason=read_failure(error).summary) from error
    version = existing(session, dataset, location).version
    return VacuumResult(
        dataset=dataset.name, version=version, applied=apply, files=tuple(row["path"] for row in listed)
    )


def checkpoint(session: SparkSession, dataset: Dataset, location: str) -> CheckpointResult:
    """Write a checkpoint of the newest version, so that opening the table reads one file in place of many.

    Delta has no SQL verb for it: over Connect it runs in an embedded child process.

    Raises:
        TableNotFoundError: it was never written.
        StorageError: the checkpoint could not be written.
    """
    _keep_incarnation(session, dataset, existing(session, dataset, location))
    try:
        version = _checkpoint_in_child(location) if is_connect(session) else checkpoint_embedded(session, location)
    except (*SPARK_ERRORS, subprocess.SubprocessError) as error:
        reason = read_failure(error).summary
        if isinstance(error, subprocess.CalledProcessError):
            reason = next(iter(reversed(str(error.stderr).strip().splitlines())), reason)
        raise StorageError(dataset=dataset.name, location=location, reason=reason) from error
    return CheckpointResult(dataset=dataset.name, version=version)


def _keep_incarnation(session: SparkSession, dataset: Dataset, state: TableState) -> None:
    """Write down the newest restore before the log is cleaned of it, which Delta does when it writes a checkpoint."""
    found = incarnation(session, state)
    if found == int(state.properties.get(INCARNATION, "0")):
        return
    pair = f"{sql.string(INCARNATION)} = {sql.string(str(found))}"
    try:
        session.sql(f"ALTER TABLE {sql.path_table(state.location)} SET TBLPROPERTIES ({pair})").collect()
    except SPARK_ERRORS as error:
        raise StorageError(dataset=dataset.name, location=state.location, reason=read_failure(error).summary) from error


def checkpoint_embedded(session: SparkSession, location: str) -> int:
    """Write a checkpoint through the JVM of a classic session; returns the version that it is of.

    Delta only logs a checkpoint that fails unless a conf says otherwise, so a clone of the session says it.
    """
    clone = clone_session(session)
    clone.conf.set("spark.databricks.delta.checkpoint.exceptionThrowing.enabled", "true")
    jvm: Any = session._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(clone._jsparkSession, location)
    snapshot = log.update(False, none, none)
    log.checkpoint(snapshot, none)
    return int(snapshot.version())


def _checkpoint_in_child(location: str) -> int:
    done = subprocess.run(  # noqa: S603  this very module, on a location that was just read
        [sys.executable, "-m", __name__, location],
        env=embedded_environment(), capture_output=True, text=True, timeout=CHILD_SECONDS, check=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    from pipeline.delta.session import open_session
    from pipeline.settings import load_settings

    print(checkpoint_embedded(open_session(load_settings().spark), sys.argv[1]))
