"""A stream whose checkpoint was set back, lost or changed: no row is skipped and none is doubled, and it is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, InsertNew
from pipeline.delta.maintain.restore import plan_restore, restore
from pipeline.delta.read.version import ReadOptions
from pipeline.delta.stream.structured_streaming import write_available
from pipeline.delta.write.result import WriteResult
from pipeline.errors import StreamBatchError, StreamCheckpointError, StreamError
from pipeline_tests.children.sink import ARRIVALS
from pipeline_tests.children.stream import source
from pipeline_tests.delta.sample import note, rows_of
from pipeline_tests.tiers import first_is_quick

KEYED = Dataset(name="arrivals", write=InsertNew(), keys=("arrival",), schema=ARRIVALS.schema)


class Stream:
    """Files of a folder into a table, by as many runs as are asked for."""

    def __init__(self, spark: SparkSession, folder: Path, dataset: Dataset = ARRIVALS) -> None:
        self._spark, self.dataset = spark, dataset
        self.root, self.arrivals, self.checkpoint = str(folder / "tables"), folder / "in", folder / "checkpoint"
        self.location = dataset.location(self.root)
        self.arrivals.mkdir()

    def arrive(self, *numbers: int) -> None:
        """One file a number."""
        for number in numbers:
            line = json.dumps({"arrival": number, "update_id": number})
            (self.arrivals / f"{number:03}.json").write_text(f"{line}\n", encoding="utf-8")

    def run(self, per_batch: int = 10) -> list[WriteResult]:
        frame = source(self._spark, str(self.arrivals))
        if per_batch > 1:
            reader = self._spark.readStream.schema(self.dataset.schema).option("maxFilesPerTrigger", per_batch)
            frame = reader.json(str(self.arrivals))
        written = write_available(frame, table=self.dataset.at(self.root), checkpoint=str(self.checkpoint))
        return list(written)

    def back_to(self, version: int) -> None:
        plan = plan_restore(self._spark, self.dataset.at(self.root), ReadOptions(version=version))
        restore(self._spark, self.dataset, plan, note("operator"))

    @property
    def numbers(self) -> list[int]:
        return sorted(row[0] for row in rows_of(self.dataset, self.root))


@pytest.mark.exhaustive
@pytest.mark.case("R-STREAM-SETBACK")
def test_a_checkpoint_that_was_set_back_by_a_batch_skips_no_file_that_has_come_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.arrive(1)
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    stream.arrive(2)
    (second,) = stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(tmp_path / "copy", stream.checkpoint)
    (again,) = stream.run()  # the same file as before: the same batch
    assert (again.skipped, again.version, stream.numbers) == (True, second.version, [1, 2])
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(tmp_path / "copy", stream.checkpoint)
    stream.arrive(3)
    with pytest.raises(StreamBatchError) as caught:
        stream.run()
    assert (caught.value.epoch, caught.value.version) == (1, second.version)
    assert stream.numbers == [1, 2]
    stream.back_to(caught.value.before)  # as the remedy says
    stream.run()
    assert stream.numbers == [1, 2, 3]


def lose_all(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def lose_id(checkpoint: Path) -> None:
    (checkpoint / "metadata").unlink()
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)


def lose_all_but_id(checkpoint: Path) -> None:
    for part in ("offsets", "commits", "sources"):
        shutil.rmtree(checkpoint / part)


def lose_sources(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "sources")


def replaced_id(checkpoint: Path) -> None:
    lose_all(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}', encoding="utf-8")


@pytest.mark.case("R-STREAM-SETBACK")
@pytest.mark.parametrize("lose", first_is_quick([lose_all, lose_id, lose_all_but_id, lose_sources, replaced_id]))
def test_a_checkpoint_that_is_lost_in_whole_or_in_part_doubles_nothing(
    classic: SparkSession, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    stream = Stream(classic, tmp_path)
    stream.arrive(1, 2)
    stream.run(per_batch=1)
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    lose(stream.checkpoint)
    stream.arrive(3)
    known = {lose_all_but_id: StreamBatchError, lose_sources: StreamError}  # Spark itself misses the files of a batch
    with pytest.raises(known.get(lose, StreamCheckpointError)):
        stream.run()
    assert stream.numbers == [1, 2]
    shutil.rmtree(stream.checkpoint, ignore_errors=True)
    shutil.copytree(tmp_path / "copy", stream.checkpoint)
    stream.run()
    assert stream.numbers == [1, 2, 3]


@pytest.mark.exhaustive
def test_a_lost_checkpoint_is_no_matter_where_nothing_is_left_of_its_batches_or_a_repeat_changes_nothing(
    classic: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(classic, tmp_path)
    stream.arrive(1, 2)
    (first,) = stream.run()
    lose_all(stream.checkpoint)
    with pytest.raises(StreamCheckpointError) as caught:
        stream.run()
    assert (caught.value.epoch, caught.value.version) == (0, first.version)
    stream.back_to(caught.value.before)
    stream.run()
    assert stream.numbers == [1, 2]
    deltalake.DeltaTable(stream.location).delete()
    lose_all(stream.checkpoint)
    stream.run()
    assert stream.numbers == [1, 2]

    keyed = tmp_path / "keyed"
    keyed.mkdir()
    stream = Stream(classic, keyed, KEYED)
    stream.arrive(1)
    stream.run()
    lose_all(stream.checkpoint)
    stream.arrive(2)
    stream.run()
    assert stream.numbers == [1, 2]
