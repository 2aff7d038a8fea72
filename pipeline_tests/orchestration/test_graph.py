"""The assembled graph against the one that is kept beside this file: what changes by accident shows in the difference.

A change on purpose is taken over with `UPDATE_GRAPH=1 python -m pytest pipeline_tests/orchestration/test_graph.py`.
"""

import json
import os
from pathlib import Path
from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    FreshnessPolicy,
    JobDefinition,
    RepositoryDefinition,
    SensorDefinition,
)
from dagster._serdes import serialize_value

from pipeline.definitions import shipped_definitions
from pipeline.settings import Settings

KEPT = Path(__file__).with_name("graph.json")
UPDATE = "UPDATE_GRAPH"


def graph_of(repository: RepositoryDefinition) -> dict[str, Any]:
    """The graph in JSON's types; nothing in it depends on the machine, the settings' paths or the order of loading."""
    return {
        "assets": {name_of(key): asset_of(repository, key) for key in repository.asset_graph.get_all_asset_keys()},
        "checks": {
            f"{name_of(key.asset_key)}.{key.name}": {"blocking": spec.blocking, "description": spec.description}
            for key in repository.asset_graph.asset_check_keys
            for spec in [repository.asset_graph.get_check_spec(key)]
        },
        "jobs": {job.name: job_of(job) for job in repository.get_all_jobs()},
        "schedules": {
            schedule.name: {
                "cron": schedule.cron_schedule,
                "job": schedule.job_name,
                "timezone": schedule.execution_timezone,
                "status": schedule.default_status.value,
            }
            for schedule in repository.schedule_defs
        },
        "sensors": {sensor.name: sensor_of(sensor) for sensor in repository.sensor_defs},
        "resources": sorted(repository.get_top_level_resources()),
    }


def name_of(key: AssetKey) -> str:
    return key.to_user_string()


def asset_of(repository: RepositoryDefinition, key: AssetKey) -> dict[str, Any]:
    node = repository.asset_graph.get(key)
    definition: AssetsDefinition = repository.assets_defs_by_key[key]
    metadata = definition.metadata_by_key[key]
    return {
        "deps": sorted(map(name_of, node.parent_keys)),
        "partitions": str(node.partitions_def) if node.partitions_def else None,
        "backfill": node.backfill_policy.policy_type.value if node.backfill_policy else None,
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "owners": sorted(node.owners),
        "tags": {name: value for name, value in node.tags.items() if not name.startswith("dagster/kind/")},
        "code_version": node.code_version,
        "io_manager": definition.get_io_manager_key_for_asset_key(key),
        "automation": condition_of(node.automation_condition),
        "freshness": freshness_of(node.freshness_policy),
        "writes": metadata["delta/write_mode"],
        "partition_by": metadata["delta/partition_by"],
        "reads_changes_of": metadata.get("delta/reads_changes_of"),
        "columns": [column.name for column in metadata["dagster/column_schema"].columns],
        "fingerprint": metadata["delta/declared_fingerprint"],
    }


def condition_of(condition: AutomationCondition | None) -> str | None:
    """As in `OR(missing, ANY_DEPS_MATCH(data_version_changed))`."""
    if condition is None:
        return None
    inner = ", ".join(str(condition_of(child)) for child in condition.children)
    return f"{condition.name}({inner})" if inner else condition.name


def freshness_of(policy: FreshnessPolicy | None) -> dict[str, Any] | None:
    return json.loads(serialize_value(policy)) if policy is not None else None


def job_of(job: JobDefinition) -> dict[str, Any]:
    layer = job.asset_layer
    return {
        "assets": sorted(map(name_of, layer.executable_asset_keys)),
        "checks": sorted(f"{name_of(key.asset_key)}.{key.name}" for key in layer.asset_graph.asset_check_keys),
        "steps": sorted(node.name for node in job.nodes),
        "executor": job.executor_def.name,
    }


def sensor_of(sensor: SensorDefinition) -> dict[str, Any]:
    return {
        "kind": sensor.sensor_type.value,
        "selection": str(sensor.asset_selection) if sensor.asset_selection is not None else None,
        "seconds": sensor.minimum_interval_seconds,
        "status": sensor.default_status.value,
    }


def test_the_graph_is_the_one_that_is_kept(settings: Settings) -> None:
    found = graph_of(shipped_definitions(settings).get_repository_def())
    text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get(UPDATE):
        KEPT.write_text(text, encoding="utf-8")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert json.loads(text) == kept, f"if that is meant: {UPDATE}=1 python -m pytest {Path(__file__).name}"
