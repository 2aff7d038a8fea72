"""The snapshot of a source tree, and what a worker makes of a file that is or is not as it was in it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pipeline.assets.codegraph.assets import SOURCE_TREE, SourceTree
from pipeline.assets.codegraph.errors import SourceTreeError
from pipeline.assets.codegraph.tree import STALE, base_of, installed_package, parsed_file, snapshot


def put(folder: Path, **files: str) -> Path:
    """Files by name, in which `__` stands for a folder and the suffix is left out."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def test_a_package_s_files_are_told_from_the_folder_above_the_topmost_package_on(tmp_path: Path) -> None:
    pkg = put(tmp_path / "site" / "pkg", sub__a="x = 1\ny = 2", b="")
    for folder in (pkg, pkg / "sub"):
        (folder / "__init__.py").write_text("\n")
    assert base_of(pkg) == base_of(pkg / "sub") == tmp_path / "site"
    content = b"x = 1\ny = 2"
    found = {file.path: (file.sha256, file.bytes, file.lines) for file in snapshot(pkg)}
    assert list(found) == ["pkg/__init__.py", "pkg/b.py", "pkg/sub/__init__.py", "pkg/sub/a.py"]
    assert found["pkg/sub/a.py"] == (hashlib.sha256(content).hexdigest(), 11, 2)
    assert (found["pkg/b.py"][1:], found["pkg/__init__.py"][1:]) == ((0, 0), (1, 1))
    assert [file.path for file in snapshot(pkg / "sub")] == ["pkg/sub/__init__.py", "pkg/sub/a.py"]


def test_other_files_hidden_names_and_linked_folders_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, a="", **{".venv__b": "", ".hidden": ""})
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    assert [file.path for file in snapshot(tmp_path)] == ["a.py"]


def test_a_tree_that_can_t_be_read_whole_is_refused_since_its_files_would_pass_for_deleted(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "no Python file")):
        with pytest.raises(SourceTreeError) as caught:
            snapshot(folder)
        assert (caught.value.folder, problem in caught.value.problem) == (str(folder), True)
    (tmp_path / "folder.py").mkdir()
    put(tmp_path, a="")
    assert [file.path for file in snapshot(tmp_path)] == ["a.py"]
    with open(os.fsencode(tmp_path) + b"/\xff.py", "wb"):
        pass
    with pytest.raises(SourceTreeError, match="can't be read"):
        snapshot(tmp_path)


def test_the_default_tree_is_found_without_importing_it() -> None:
    assert (installed_package() / "__init__.py").is_file()
    with pytest.raises(SourceTreeError):
        installed_package("a_package_that_nobody_has")


def test_a_worker_parses_only_the_file_of_the_snapshot(tmp_path: Path) -> None:
    put(tmp_path, a="def f(): ...\n")
    (file,) = snapshot(tmp_path)
    row = parsed_file(str(tmp_path), file.path, file.sha256)
    assert (row["module"], row["problem"], len(row["definitions"]), row[STALE]) == ("a", None, 1, None)
    put(tmp_path, a="def g(): ...\n")
    assert parsed_file(str(tmp_path), file.path, file.sha256)[STALE] == "its content has changed"
    (tmp_path / "a.py").unlink()
    assert "No such file" in parsed_file(str(tmp_path), file.path, file.sha256)[STALE]


def test_a_source_tree_is_a_folder_below_the_project_or_at_home_if_it_is_no_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    named = {name: SourceTree.in_environment({SOURCE_TREE: name}, tmp_path).path for name in ("src", "~/src", "/src")}
    assert named == {"src": tmp_path / "src", "~/src": tmp_path / "home" / "src", "/src": Path("/src")}
    assert SourceTree.in_environment({}, tmp_path).folder is None
