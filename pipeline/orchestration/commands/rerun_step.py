"""The definitions of a run that is to be repeated: its job, and for each of its writes the asset of today.

Here belongs what Dagster knows of the run and of its assets: the job, the configuration, tags and partitions, the
inputs, and the reasons why an asset can't write or read as the run did. The records of the run belong to `rerun_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterInvalidSubsetError,
    DagsterRun,
    DynamicPartitionsDefinition,
    JobDefinition,
    PartitionsDefinition,
    RepositoryDefinition,
)

# Dagster's own names for a node of its graph of assets, for dynamic keys, for the IO manager of any other library, and
# for the tags of a run; not public.
from dagster._core.definitions.assets.graph.asset_graph import AssetNode
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.storage.io_manager import IOManagerDefinition
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    HIDDEN_TAG_PREFIX,
    MULTIDIMENSIONAL_PARTITION_PREFIX,
    PARTITION_NAME_TAG,
    SYSTEM_TAG_PREFIX,
)

from pipeline.dataset import Dataset
from pipeline.delta.inspect.record import DatasetRecord
from pipeline.errors.listing import listed
from pipeline.orchestration.commands.reports import step_key
from pipeline.orchestration.io.io_manager import DeltaIOManager
from pipeline.orchestration.metadata import declared_dataset
from pipeline.orchestration.partitions import dimensions_of
from pipeline.orchestration.resources import DeltaSparkResource

_IMPLICIT_JOB = "__ASSET_JOB"
_RANGE = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
# What the configuration of a run says of its process, and not of its steps.
_OF_PROCESS = ("execution", "loggers")


@dataclass(frozen=True, kw_only=True)
class RepeatedStep:
    """The assets of a run in the project's definitions. `names` are the datasets that are repeated.

    If the instance no longer has the run, `run` is None. `failed` are the keys of the steps that failed in it.
    """

    repository: RepositoryDefinition
    instance: DagsterInstance
    run: DagsterRun | None
    names: frozenset[str]
    failed: frozenset[str] = frozenset()

    def node(self, name: str) -> AssetNode | None:
        """The asset of a dataset. If there is none, None."""
        key, graph = AssetKey(name.split("/")), self.repository.asset_graph
        return graph.get(key) if graph.has(key) else None

    def declared(self, name: str) -> Dataset | None:
        """The declaration of a dataset. If there is no such asset, or if it is a plain one, None."""
        node = self.node(name)
        return None if node is None else declared_dataset(node.key, node.metadata)

    def code_version(self, name: str) -> str | None:
        """The code version of a dataset's asset now. If there is none, None."""
        node = self.node(name)
        return None if node is None else node.code_version

    def inputs(self, name: str) -> dict[str, bool]:
        """By source of an asset, whether a parameter takes it. The function itself reads any other source."""
        node = self.node(name)
        if node is None or not node.is_materializable:
            return {}
        asset = node.assets_def
        return {
            _name(key): not asset.node_def.input_dict[parameter].dagster_type.is_nothing
            for parameter, key in asset.keys_by_input_name.items()
        }

    @property
    def job(self) -> JobDefinition:
        """The job of the run; if the definitions no longer have it, that of all assets."""
        name = _IMPLICIT_JOB if self.run is None else self.run.job_name
        keys = {AssetKey(one.split("/")) for one in self.names}
        if name != _IMPLICIT_JOB and self.repository.has_job(name):
            job = self.repository.get_job(name)
            if keys <= set(job.asset_layer.executable_asset_keys):
                return job
        return self.repository.get_job(_IMPLICIT_JOB)

    def subset(self) -> JobDefinition:
        """The job with the repeated assets alone, without checks and hooks.

        Raises:
            DagsterInvalidSubsetError: Dagster can't run these assets without others.
        """
        keys = {AssetKey(name.split("/")) for name in self.names}
        return self.job.get_subset(asset_selection=keys, asset_check_selection=set())

    def config(self, job: JobDefinition) -> dict[str, Any]:
        """The configuration of the run, as far as it is about resources and about steps of the job."""
        config: dict[str, Any] = {} if self.run is None else dict(self.run.run_config)
        kept = {name: value for name, value in config.items() if name not in _OF_PROCESS}
        steps = {node.name for node in job.nodes}
        return kept | {"ops": {name: value for name, value in (kept.get("ops") or {}).items() if name in steps}}

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the run that decide what its steps do: its partitions, and all that are not Dagster's own."""
        tags = {} if self.run is None else self.run.tags
        return {name: value for name, value in tags.items() if _decides(name)}

    def problems(self, record: DatasetRecord) -> Iterator[str]:
        """Why the asset of a record can't write again as it did."""
        node = self.node(record.name)
        if node is None or not node.is_materializable:
            yield "no asset of the definitions writes it any more"
            return
        if step_key(node.key) in self.failed:
            yield "its step failed in the run, and its rows were committed in another way, as `pipeline publish` does"
        others = sorted(_name(key) for key in node.execution_set_asset_keys if _name(key) not in self.names)
        if others:
            yield f"its step also writes {listed(others)}, of which the run has no record"
        if not self._is_ours(node.io_manager_key):
            yield f"its IO manager {node.io_manager_key!r} is no DeltaIOManager any more"
        yield from self._of_partitions(node, record)
        yield from self._of_inputs(node, record)
        if not others:
            yield from self._of_subset()

    def _is_ours(self, io_manager: str) -> bool:
        return _is_a(self.job.resource_defs.get(io_manager), DeltaIOManager)

    def _of_subset(self) -> Iterator[str]:
        try:
            self.subset()
        except DagsterInvalidSubsetError as error:
            yield f"Dagster can't run it alone: {str(error).splitlines()[0]}"

    def _of_partitions(self, node: AssetNode, record: DatasetRecord) -> Iterator[str]:
        if (node.partitions_def is None) != (record.partitions is None):
            was, now = ("partitioned", "is not") if node.partitions_def is None else ("not partitioned", "is")
            yield f"its asset was {was} then, and {now} now"
        elif node.partitions_def is not None and self.run is not None:
            keys = [self.tags[tag] for tag in (PARTITION_NAME_TAG, *_RANGE) if tag in self.tags]
            if not keys:
                yield "the run does not name its partitions by a key or a range"
            with partition_loading_context(dynamic_partitions_store=self.instance):
                for key in keys:
                    if not is_dynamic(node.partitions_def) and not node.partitions_def.has_partition_key(key):
                        yield f"its asset has no partition {key!r} any more"

    def _of_inputs(self, node: AssetNode, record: DatasetRecord) -> Iterator[str]:
        """Sources that a parameter takes now and that the run has not read. Without mapped keys, none is read."""
        for name, is_parameter in self.inputs(record.name).items():
            source = self.node(name)
            if not is_parameter or name in (*record.sources, record.name) or source is None:
                continue
            reads_keys = node.partitions_def is not None and source.partitions_def is not None
            if self._is_table(name) and not reads_keys:
                yield f"it reads {name} now, and the run has not read it: run it with the code that the run had"

    def unpinned(self, record: DatasetRecord) -> tuple[str, ...]:
        """The inputs of an asset of which no version is known: other resources, and sources that are no tables."""
        node = self.node(record.name)
        if node is None or not node.is_materializable:
            return ()
        unread = sorted(
            name
            for name, is_parameter in self.inputs(record.name).items()
            if name not in (*record.sources, record.name) and not (is_parameter and self._is_table(name))
        )
        resources = self.job.resource_defs
        others = sorted(
            key
            for key in node.assets_def.required_resource_keys
            if not isinstance(resources.get(key), IOManagerDefinition)
            and not _is_a(resources.get(key), DeltaSparkResource)
        )
        return (*(f"source {name}" for name in unread), *(f"resource {key}" for key in others))

    def _is_table(self, name: str) -> bool:
        """Whether a source is read as a table by an IO manager of ours."""
        source = self.node(name)
        return source is not None and self._is_ours(source.io_manager_key)

    def copy_dynamic_keys(self, to: DagsterInstance) -> None:
        """Add the dynamic keys of the repeated assets and their sources to another instance, with those of the run."""
        asked = {self.tags[tag] for tag in (PARTITION_NAME_TAG, *_RANGE) if tag in self.tags}
        nodes = [node for name in self.names if (node := self.node(name)) is not None]
        sources = [node for name in self.names for one in self.inputs(name) if (node := self.node(one)) is not None]
        for node in (*nodes, *sources):
            for dimension, part in _dynamic(node.partitions_def).items():
                known = self.instance.get_dynamic_partitions(part)
                tag = f"{MULTIDIMENSIONAL_PARTITION_PREFIX}{dimension}"
                own = {self.tags[tag]} if tag in self.tags else asked
                added = own if node in nodes else set()
                to.add_dynamic_partitions(part, [*dict.fromkeys((*known, *sorted(added)))])


def _decides(tag: str) -> bool:
    if tag in (PARTITION_NAME_TAG, *_RANGE) or tag.startswith(MULTIDIMENSIONAL_PARTITION_PREFIX):
        return True
    return not tag.startswith((SYSTEM_TAG_PREFIX, HIDDEN_TAG_PREFIX))


def is_dynamic(parts: PartitionsDefinition[Any]) -> bool:
    """Whether a definition, or one of its dimensions, has dynamic keys."""
    return bool(_dynamic(parts))


def _dynamic(parts: PartitionsDefinition[Any] | None) -> Mapping[str, str]:
    """The names of the dynamic definitions of an asset's partitions, by dimension."""
    dimensions = {} if parts is None else dimensions_of(parts)
    return {
        dimension: inner.name
        for dimension, inner in dimensions.items()
        if isinstance(inner, DynamicPartitionsDefinition) and inner.name is not None
    }


def _is_a(definition: object, kind: type) -> bool:
    """Whether a resource definition is one of a class of Dagster's configurable resources."""
    found = getattr(definition, "configurable_resource_cls", None)
    return isinstance(found, type) and issubclass(found, kind)


def _name(key: AssetKey) -> str:
    return "/".join(key.path)
