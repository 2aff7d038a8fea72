"""The log as files, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.delta.log.commits import commit_versions
from pipeline.delta.storage.file_system import list_files

FLAPS = 2_000


def test_a_folder_that_comes_and_goes_is_empty_or_not_there(tmp_path: Path) -> None:
    folder, over = tmp_path / "table" / "_delta_log", threading.Event()
    folder.parent.mkdir()

    def flap() -> None:
        for _ in range(FLAPS):
            folder.mkdir()
            folder.rmdir()
        over.set()

    flapping = threading.Thread(target=flap)
    flapping.start()
    looks = 0
    while not over.is_set():
        assert list_files(str(folder)) == []
        assert commit_versions(str(folder.parent)) == []
        looks += 1
    flapping.join()
    assert looks > 1


def test_only_the_files_right_below_a_folder_are_listed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b").write_text("b", encoding="utf-8")
    (tmp_path / "a").write_text("abc", encoding="utf-8")
    assert [(file.name, file.size) for file in list_files(str(tmp_path))] == [("a", 3)]
