"""What consumers of changes have still to read is kept from vacuum and from log clean-up, until somebody insists."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.dataset import Append, Dataset, Merge, TableRef
from pipeline.delta.maintain.maintain import checkpoint, vacuum
from pipeline.delta.maintain.retention import Unread, unread_files
from pipeline.delta.write.consume import consume
from pipeline.errors import ConsumerBehindError, CursorUnreadableError
from pipeline_tests.delta.sample import actions_of, note, placed, put, rows_of, versions_of

ROWS = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
_BY_TYPE = Merge(delete_when="_change_type = 'delete'", frame_columns=("_change_type",))
CONSUMER = Dataset(name="consumer", schema=ROWS, write=_BY_TYPE, keys=("id",))
DAYS_40 = 40 * 86_400


def source(**properties: str) -> Dataset:
    named = tuple((f"delta.{name}", value) for name, value in properties.items())
    return Dataset(name="source", schema=ROWS, write=Append(), keys=("id",), properties=named)


def at(dataset: Dataset, root: str) -> TableRef:
    return dataset.at(root)


def run(session: SparkSession, root: str, dataset: Dataset) -> str:
    """Bring the consumer up to date; what the verdict said."""
    done = consume(
        session, CONSUMER.at(root), sources=[at(dataset, root)],
        compute=lambda changes: changes["source"].frame, note=note("consumer"),
    )  # fmt: skip
    return str(done.verdicts["source"])


def sql(session: SparkSession, dataset: Dataset, root: str, statement: str) -> None:
    session.sql(statement.format(f"delta.`{dataset.location(root)}`")).collect()


def change_files(dataset: Dataset, root: str, version: int) -> tuple[str, ...]:
    return tuple(action["cdc"]["path"] for action in actions_of(dataset, root, version) if "cdc" in action)


def test_a_vacuum_waits_for_the_consumers_of_what_it_would_remove_unless_it_is_forced(
    classic: SparkSession, root: str
) -> None:
    """With no retention at all, where Delta itself would neither keep the changes nor let them be read."""
    dataset = source(deletedFileRetentionDuration="interval 0 hours")
    location, consumers = dataset.location(root), [at(CONSUMER, root)]
    placed(classic, dataset, root, [(1, "a"), (2, "b"), (3, "c")])
    sql(classic, dataset, root, "UPDATE {} SET text = 'B' WHERE id = 2")
    never = vacuum(classic, TableRef(dataset, location), consumers=consumers)
    read = change_files(dataset, root, 2)
    assert [(found.consumer, found.version, found.files[1:]) for found in never.needed] == [("consumer", 0, read)]
    assert never.needed[0].files[0].startswith("part-"), "what the first commit added and the second removed"
    assert run(classic, root, dataset) == "full snapshot: nothing was consumed before"

    sql(classic, dataset, root, "UPDATE {} SET text = 'A' WHERE id = 1")
    sql(classic, dataset, root, "DELETE FROM {} WHERE id = 3")
    missed = change_files(dataset, root, 3) + change_files(dataset, root, 4)
    (needed,) = unread_files(classic, at(dataset, root), consumers)
    assert needed == Unread(consumer="consumer", version=2, files=missed)
    with pytest.raises(ConsumerBehindError) as behind:
        vacuum(classic, TableRef(dataset, location), consumers=consumers, apply=True)
    assert (behind.value.behind, behind.value.version) == ({"consumer": 2}, 4)
    assert (versions_of(dataset, root)[-1], all((Path(location) / file).exists() for file in missed)) == (4, True)
    assert run(classic, root, dataset) == "changes"
    assert rows_of(CONSUMER, root) == rows_of(dataset, root) == [(1, "A"), (2, "B")]

    put(classic, dataset, root, [(4, "d")])  # not read yet, and in no danger: the file stays in the table
    done = vacuum(classic, TableRef(dataset, location), consumers=consumers, apply=True)
    assert done.needed == ()
    assert not any((Path(location) / file).exists() for file in (*read, *missed))
    sql(classic, dataset, root, "UPDATE {} SET text = 'D' WHERE id = 4")
    assert vacuum(classic, TableRef(dataset, location), consumers=consumers, apply=True, force=True).applied
    # The update has taken the file of version 5 out of the table, too.
    assert run(classic, root, dataset) == "full snapshot: change files vacuumed (versions 5, 8)"
    assert rows_of(CONSUMER, root) == rows_of(dataset, root) == [(1, "A"), (2, "B"), (4, "D")]


@pytest.mark.exhaustive
def test_nothing_is_removed_where_it_is_not_known_what_a_consumer_has_read(classic: SparkSession, root: str) -> None:
    dataset = source(deletedFileRetentionDuration="interval 0 hours")
    location, consumers = dataset.location(root), [at(CONSUMER, root)]
    placed(classic, dataset, root, [(1, "a")])
    put(classic, replace(CONSUMER, write=Append()), root, [(1, "a")])
    newest = Path(CONSUMER.location(root)) / "_delta_log" / f"{versions_of(CONSUMER, root)[-1]:020d}.json"
    newest.write_text(newest.read_text(encoding="utf-8")[:200], encoding="utf-8")

    with pytest.raises(CursorUnreadableError) as caught:
        vacuum(classic, TableRef(dataset, location), consumers=consumers, apply=True)
    assert (caught.value.dataset, caught.value.consumer) == ("source", "consumer")
    with pytest.raises(CursorUnreadableError):
        checkpoint(classic, TableRef(dataset, location), consumers=consumers)
    assert versions_of(dataset, root) == [0, 1]
    assert vacuum(classic, TableRef(dataset, location), consumers=consumers, force=True).needed == ()


def test_a_checkpoint_keeps_the_log_from_the_cursors_of_consumers_on(classic: SparkSession, root: str) -> None:
    dataset = source(logRetentionDuration="interval 30 days")
    location, consumers = dataset.location(root), [at(CONSUMER, root)]
    placed(classic, dataset, root, [(1, "a")])
    run(classic, root, dataset)
    for number in (2, 3):
        put(classic, dataset, root, [(number, "b")])
    for path in (Path(location) / "_delta_log").glob("*"):
        os.utime(path, (time.time() - DAYS_40,) * 2)

    kept = checkpoint(classic, TableRef(dataset, location), consumers=consumers)
    (behind,) = kept.log_kept_for
    assert (kept.version, behind.consumer, behind.version, len(behind.files)) == (3, "consumer", 1, 2)
    assert versions_of(dataset, root) == [0, 1, 2, 3]
    assert (Path(location) / "_delta_log" / "_last_checkpoint").is_file()
    assert unread_files(classic, at(dataset, root), consumers) == (behind,)
    # Without anybody to keep it for, the log is cleaned, and the consumer has to read all of it.
    assert checkpoint(classic, TableRef(dataset, location)).log_kept_for == ()
    assert versions_of(dataset, root) == [3]
    assert unread_files(classic, at(dataset, root), consumers) == ()
