"""A process with a sink that waits to be ended; run as `python -m pipeline_tests.children.ending FOLDER`."""

from __future__ import annotations

import select
import sys
from pathlib import Path

from pipeline.delta.sink.receiver import SinkSettings
from pipeline.delta.sink.sink import DeltaSink
from pipeline_tests.unit.sink_sample import UPDATES, WRITER, settings_in, update


def main(folder: str) -> None:
    sink = DeltaSink(UPDATES, WRITER, settings_in(Path(folder)), SinkSettings(flush_seconds=600)).start()
    for number in range(10):
        sink.on_update(update(number))
    print("ready", flush=True)
    # Until the test that has started it closes the pipe, or ends. A single read could begin just behind the signal, and
    # Python's handlers run between two calls only.
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
