"""Append a thousand rows to a table and read it, by `write`. Prints the seconds of it without imports and session."""

from __future__ import annotations

import time
from dataclasses import replace

from outside import SMALL

from pipeline.dataset import Append
from pipeline.delta.log.mark import CommitNote, Mark
from pipeline.delta.read.version import read
from pipeline.delta.server.warm import open_project_session
from pipeline.delta.write.write import write
from pipeline.settings import load_settings

settings = load_settings()
table = replace(SMALL, name="appended", write=Append()).at(settings.root)
session = open_project_session(settings.spark)
started = time.perf_counter()
frame = session.range(1000).selectExpr("id", "concat('row ', id) AS name")
assert write(frame, table=table, note=CommitNote(mark=Mark(writer="bench"))).committed
assert read(session, table).frame.count() % 1000 == 0
print(time.perf_counter() - started)
