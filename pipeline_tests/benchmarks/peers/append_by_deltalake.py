"""Append a thousand rows to a table and read it, by delta-rs alone. Prints the seconds of it without the imports."""

from __future__ import annotations

import os
import time

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

LOCATION = ".pipeline/appended_by_deltalake"

started = time.perf_counter()
rows = pa.table({"id": pa.array(range(1000)), "name": [f"row {number}" for number in range(1000)]})
write_deltalake(LOCATION, rows, mode="append")
assert DeltaTable(LOCATION).to_pyarrow_table().num_rows % 1000 == 0
print(time.perf_counter() - started, flush=True)
# The threads of Arrow sometimes abort the process as the interpreter ends.
os._exit(0)
