"""Settings: the environment and `[tool.pipeline]` of the project, read once, frozen, and passed down.

Here belong the names, defaults, precedence and validation of an operator's settings. Declarations of datasets do not
belong here. A secret is named here at most, by the variable that has it.

The environment wins over `pyproject.toml`, and that wins over the defaults. A value is never merged. An unknown name is
an error, so that a misspelt setting is never ignored.
"""

from pipeline.settings.addresses import shown_remote
from pipeline.settings.load import PREFIX, dagster_module, find_project, load_settings, setting_names
from pipeline.settings.log_requests import LogRequests
from pipeline.settings.readers import require_uri_without_secret
from pipeline.settings.storage import SCHEMES, StorageOptions
from pipeline.settings.values import (
    LOCAL_FRAME_MAX_BYTES,
    STATE_FOLDER,
    Settings,
    SparkSettings,
    refuse_other_types,
)

__all__ = [
    "LOCAL_FRAME_MAX_BYTES",
    "PREFIX",
    "SCHEMES",
    "STATE_FOLDER",
    "LogRequests",
    "Settings",
    "SparkSettings",
    "StorageOptions",
    "dagster_module",
    "find_project",
    "load_settings",
    "refuse_other_types",
    "require_uri_without_secret",
    "setting_names",
    "shown_remote",
]
