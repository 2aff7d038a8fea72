"""Customers under further declarations: with more columns and a feature, and with a check that rows break."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.types import LongType, StructType

from pipeline.dataset import Check, Features
from pipeline_tests.projects.shop_datasets import customers

wider = StructType([*customers.schema.fields]).add("age", LongType(), True)
named = replace(customers, name="named", reads=(), change_feed=False, schema=wider)
older = replace(named, features=Features(deletion_vectors=True))
never = replace(named, checks=(Check("short", "length(name) < 2"),))
datasets, refused = (older,), (never,)
