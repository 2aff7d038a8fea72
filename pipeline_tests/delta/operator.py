"""An operator who does what an error names: by commands in this process, and so on its Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetsDefinition, DagsterInstance
from pyspark.sql import SparkSession

from pipeline.dataset import Dataset, TableRef
from pipeline.delta.sql.slices import Slice
from pipeline.delta.write.result import WriteResult
from pipeline.delta.write.write import write
from pipeline.errors import PipelineError
from pipeline.orchestration.commands.materialize import Request, materialize
from pipeline_tests.delta.sample import note
from pipeline_tests.projects import declared
from pipeline_tests.remedies import command_refused, invoke


@dataclass(frozen=True)
class Operator:
    """A project in a folder of its own, whose declarations can be changed."""

    session: SparkSession
    folder: Path
    patch: pytest.MonkeyPatch

    @classmethod
    def of(cls, session: SparkSession, folder: Path, patch: pytest.MonkeyPatch) -> Operator:
        lines = f'[tool.dagster]\nmodule_name = "{declared.__name__}"\n'
        (folder / "pyproject.toml").write_text(lines, encoding="utf-8")
        patch.chdir(folder)
        patch.delenv("SPARK_REMOTE", raising=False)
        patch.setenv("PIPELINE_DATASETS", f"{declared.__name__}:datasets")
        operator = cls(session, folder, patch)
        operator.move_root("tables")
        return operator

    @property
    def root(self) -> str:
        return str(self.folder / "tables")

    def move_root(self, name: str) -> str:
        """Set PIPELINE_ROOT to a folder of that name."""
        root = str(self.folder / name)
        self.patch.setenv("PIPELINE_ROOT", root)
        return root

    def declare(self, *datasets: Dataset, assets: tuple[AssetsDefinition, ...] = ()) -> None:
        self.patch.setattr(declared, "datasets", datasets)
        self.patch.setattr(declared, "assets", assets)

    def put(self, dataset: Dataset, query: str, within: Slice | None = None, root: str | None = None) -> WriteResult:
        """Write the rows of a query."""
        location = dataset.location(root or self.root)
        return write(self.session.sql(query), table=TableRef(dataset, location), note=note(), within=within)

    def sql(self, statement: str) -> None:
        self.session.sql(statement).collect()

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a command prints."""
        result, _ = invoke(arguments, {})
        assert result.exit_code == status, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, kind: type[PipelineError], arguments: tuple[str, ...], *advice: str) -> Any:
        return command_refused(kind, arguments, {}, *advice)

    def does(self, error: PipelineError, command: str, *further: str, status: int = 0) -> str:
        """Run the command that the remedy names, with further arguments; return what it prints."""
        assert f"pipeline {command}" in error.remedy(), error.remedy()
        return self.run(*command.split(), *further, status=status)

    def materializes(self, error: PipelineError, selection: str, partition: str | None = None) -> None:
        """Run the `pipeline materialize` that the remedy names, which would be a process of its own."""
        assert f"pipeline materialize {selection}" in error.remedy(), error.remedy()
        with DagsterInstance.ephemeral() as instance:
            assert materialize(self.folder, instance, Request(selection, partition), lambda _: None)
