"""A source whose files may go at once, and a consumer of its changes that never ran."""

from __future__ import annotations

from dataclasses import replace

from pipeline_tests.projects.shop_datasets import customers

at_once = ("delta.deletedFileRetentionDuration", "interval 0 hours")
source = replace(customers, name="source", reads=(), properties=(at_once,))
log = replace(customers, name="log", reads=("source",), reads_changes_of=("source",))
datasets = (source, log)
