"""What is refused of a stream whose checkpoint and table disagree; the tables are delta-rs's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Changelog, Dataset, Ignore, InsertNew, Merge, Replace, TableRef, WriteMode
from pipeline.delta.log.mark import StreamBatch
from pipeline.delta.stream.batches import refuse_lost_checkpoint, refuse_other_input
from pipeline.delta.stream.query_log import batch_content, name_beside
from pipeline.delta.write.merge import repeat_matters
from pipeline.errors import StreamBatchError, StreamCheckpointError

NO_SESSION = cast(SparkSession, None)  # nothing is asked of Spark where the log is local
DATASET = Dataset(name="d", schema=StructType([StructField("n", LongType())]), write=Append())


class Stream:
    """A table that a stream has written, one file a batch, and the checkpoint beside it."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.location = folder / "checkpoint", str(folder / "table")
        self.name = name_beside(str(self.checkpoint), self.location)

    def plan(self, number: int, *files: str) -> None:
        offsets, source = self.checkpoint / "offsets", self.checkpoint / "sources" / "0"
        for part in (offsets, source):
            part.mkdir(parents=True, exist_ok=True)
        (offsets / f"{number}").write_text(f'v1\n{{}}\n{{"logOffset":{number}}}', encoding="utf-8")
        lines = [json.dumps({"path": file, "timestamp": 1, "batchId": number}) for file in files]
        (source / f"{number}").write_text("\n".join(["v1", *lines]), encoding="utf-8")

    def commit(self, number: int, writer: str = "stream/q", *, told: bool = True) -> None:
        """As the write of the batch commits; of an older product where its content is not told."""
        note: dict[str, object] = {"pipeline": 1, "mark": {"writer": writer, "epoch": number, "token": "t"}}
        if told:
            content = batch_content(str(self.checkpoint), number)
            note["stream"] = {"checkpoint": self.name, "content": content}
        self._write({"userMetadata": json.dumps(note)})

    def commit_of_others(self) -> None:
        self._write({})

    def _write(self, metadata: dict[str, str]) -> None:
        rows, properties = pa.table({"n": [1]}), deltalake.CommitProperties(custom_metadata=metadata)
        deltalake.write_deltalake(self.location, rows, mode="append", commit_properties=properties)

    def check(self, number: int, writer: str = "stream/q") -> None:
        batch = StreamBatch(checkpoint=self.name, content=batch_content(str(self.checkpoint), number))
        refuse_other_input(
            NO_SESSION, TableRef(DATASET, self.location), str(self.checkpoint), writer=writer, epoch=number, batch=batch
        )

    def begin(self) -> None:
        refuse_lost_checkpoint(NO_SESSION, TableRef(DATASET, self.location), str(self.checkpoint), self.name)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Two batches: version 0 is of somebody else, 1 and 3 are of the stream."""
    found = Stream(tmp_path)
    found.commit_of_others()
    for number in (0, 1):
        found.plan(number, f"file {number}")
        found.commit(number)
        found.commit_of_others()
    return found


def test_the_newest_batch_may_be_repeated_and_the_next_one_written(stream: Stream) -> None:
    stream.check(1)
    stream.check(0)
    stream.plan(2, "file 2")
    stream.check(2)


def test_a_number_that_has_other_files_by_now_is_refused_with_the_version_that_has_it(stream: Stream) -> None:
    stream.plan(1, "file 1", "file 2")
    with pytest.raises(StreamBatchError) as caught:
        stream.check(1)
    assert (caught.value.epoch, caught.value.version, caught.value.before) == (1, 3, 2)
    with pytest.raises(StreamBatchError):  # nor is the next one taken, since this one's new file would be passed over
        stream.check(2)
    stream.plan(0, "file 0", "file 2")
    with pytest.raises(StreamBatchError):
        stream.check(0)


def test_a_batch_that_a_restore_has_undone_may_have_other_files(stream: Stream) -> None:
    stream.plan(1, "file 1", "file 2")
    deltalake.DeltaTable(stream.location).restore(2)
    stream.check(1)
    stream.plan(0, "file 0", "file 2")
    with pytest.raises(StreamBatchError):
        stream.check(1)


def test_of_batches_whose_content_was_not_recorded_only_the_newest_may_come_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for number in (0, 1):
        stream.plan(number, f"file {number}")
        stream.commit(number, told=False)
    stream.check(1)
    with pytest.raises(StreamBatchError) as caught:
        stream.check(0)
    assert (caught.value.epoch, caught.value.version) == (1, 1)
    stream.begin()  # whether it was this checkpoint is not known


def test_a_query_that_begins_anew_is_refused_as_long_as_the_table_holds_what_the_folder_s_last_one_wrote(
    stream: Stream,
) -> None:
    for begin in (stream.begin, lambda: stream.check(0, writer="stream/another")):
        with pytest.raises(StreamCheckpointError) as caught:
            begin()
        assert (caught.value.epoch, caught.value.version, caught.value.before) == (1, 3, 0)
    other = StreamBatch(checkpoint="../another checkpoint", content="c")
    refuse_other_input(
        NO_SESSION, TableRef(DATASET, stream.location), "/c", writer="stream/another", epoch=0, batch=other
    )
    deltalake.DeltaTable(stream.location).restore(caught.value.before)
    stream.begin()


def test_an_empty_table_and_one_that_is_not_there_may_be_begun_anew(stream: Stream, tmp_path: Path) -> None:
    deltalake.DeltaTable(stream.location).delete()
    stream.begin()
    stream.check(0, writer="stream/another")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    Stream(nothing).begin()


@pytest.mark.parametrize(
    ("mode", "matters"),
    [
        (Append(), True), (Merge(), True), (Merge(order_by="n"), False), (InsertNew(), False), (Replace(), False),
        (Merge(changelog=Changelog(operation="op", sequence="n")), True), (Ignore(), True),
        (Merge(order_by="n", delete_when="n = 1"), True),
    ],
    ids=str,
)  # fmt: skip
def test_a_repeat_matters_where_it_would_double_rows_or_bring_some_back(mode: WriteMode, matters: bool) -> None:
    assert repeat_matters(mode) is matters
