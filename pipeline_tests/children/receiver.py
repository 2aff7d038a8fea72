"""A receiver in a process of its own, to be killed: it tells of every update that is acknowledged.

Run as `python -m pipeline_tests.children.receiver FOLDER FIRST`; the updates are numbered from FIRST on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType

from pipeline.delta.sink.buffer import Receipt
from pipeline_tests.unit.sink_sample import receiver, update

SOURCE = "numbers"


def main(folder: Path, first: int) -> None:
    opened = receiver(folder, flush_seconds=0.01, buffer_rows=200)
    opened.start()
    print("ready", flush=True)
    guard = threading.Lock()

    def tell(number: int, receipt: Future[Receipt]) -> None:
        assert receipt.result().refused == 0
        with guard:
            print(number, flush=True)

    for number in count(first):
        item = opened.item(update(number), (SOURCE, number))
        item.receipt.add_done_callback(partial(tell, number))
        opened.put(item, None)


class Child:
    """The process, and what it has told."""

    def __init__(self, folder: Path, first: int = 1) -> None:
        command = [sys.executable, "-m", "pipeline_tests.children.receiver", str(folder), str(first)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.told: list[int] = []

    def __enter__(self) -> Child:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def wait_for(self, acknowledged: int) -> None:
        assert self._process.stdout is not None
        while len(self.told) < acknowledged:
            self.told.append(int(self._process.stdout.readline()))

    def kill(self) -> None:
        """SIGKILL, and the rest of what it has told; a line that was cut off counts for nothing."""
        self._process.send_signal(signal.SIGKILL)
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        self.told += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
