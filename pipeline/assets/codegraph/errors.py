"""The errors of the code graph."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import PipelineError


@dataclass(eq=False, kw_only=True)
class SourceTreeError(PipelineError):
    """A tree of source files can't be read, or differs from its snapshot; `paths` are files, with the reason."""

    folder: str
    problem: str
    paths: tuple[str, ...] = ()

    sentence = "The source tree {folder}: {problem}; nothing was written.{paths}"

    def remedy(self) -> str:
        """The command for a new snapshot, or the variable that names the folder."""
        if self.paths:
            return "pipeline materialize source_files takes a new snapshot, with the changes since the last one."
        return "Set CODEGRAPH_SOURCE_TREE to a folder of Python files that can be read."
