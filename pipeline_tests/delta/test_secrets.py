"""Confs that hold secrets reach the JVM, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.spark.java import find_java
from pipeline.delta.spark.launch import as_java_arguments, as_properties, java_options
from pipeline.settings import SparkSettings
from pipeline_tests.children import launching
from pipeline_tests.delta.processes import watched

SECRET = "s3cret-of-a-conf"
NAME = "spark.hadoop.fs.s3a.secret.key"
PROJECT = f"""
[tool.pipeline]
driver_memory = "600m"
[tool.pipeline.spark_conf]
"{NAME}" = "{SECRET}"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC '-Dplanted={SECRET} twice'"
"spark.planted.ours" = 'a = b: \\ "c" é 𝄞'
"spark.planted.both" = "ours"
"""
# What spark-submit is told by others, below our confs and above them.
OTHERS = "spark.planted.both=theirs\nspark.planted.theirs=theirs\nspark.driver.memory=900m\n"
NAMED = "--conf spark.planted.both=named --conf spark.planted.named=named"


def launched(project: Path, cache: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What a child process has been given whose project plants a secret; nobody else has seen the secret."""
    (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PIPELINE_CACHE": str(cache)}
    temporary = {"TMPDIR": str(project / "tmp")}
    (project / "tmp").mkdir()
    with watched(SECRET) as seen:
        child = subprocess.Popen(
            [sys.executable, "-m", launching.__name__], cwd=project, env=os.environ | own | temporary | variables,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        line = child.stdout.readline()
        left = [path.name for path in (project / "tmp").glob("pipeline-*")]
        _, errors = child.communicate("", timeout=120)
    assert child.returncode == 0, errors
    assert seen == set()
    assert left == []
    assert SECRET not in errors
    return json.loads(line)  # type: ignore[no-any-return]


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["spark-defaults.conf", "a properties file of the user's"])
def test_a_conf_of_the_project_reaches_the_jvm_unseen_and_ranks_between_the_users_files_and_arguments(
    tmp_path: Path, spark_settings: SparkSettings, place: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(OTHERS, encoding="utf-8")
    if place == "spark-defaults.conf":
        variables = {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": f"{NAMED} pyspark-shell"}
    else:
        theirs = tmp_path / "spark-defaults.conf"
        variables = {"PYSPARK_SUBMIT_ARGS": f"{NAMED} --properties-file {theirs} pyspark-shell"}
    found = launched(tmp_path, spark_settings.cache, variables)
    confs = found["confs"]
    assert confs[NAME] == SECRET
    assert confs["spark.planted.ours"] == 'a = b: \\ "c" é 𝄞'
    assert confs["spark.planted.both"] == "ours"
    assert confs["spark.planted.theirs"] == "theirs"
    assert confs["spark.planted.named"] == "named"
    assert confs["spark.driver.memory"] == "600m"
    assert found["planted"] == f"{SECRET} twice"
    assert 500 < found["heap"] / 2**20 <= 600


def test_java_reads_from_the_file_what_was_written(classic: SparkSession) -> None:
    confs = {"spark.a b=c:d": " \\ = : # ! \t\r\n\f é 𝄞 ", "spark.empty": "", "#x": "!y", "spark.u": "\\u0041"}
    jvm: Any = classic.sparkContext._jvm
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(as_properties(confs).decode("ascii")))
    assert dict(properties) == confs


def test_java_reads_its_options_from_the_file_as_they_were_declared(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    declared = r"""-Da=1  '-Db=two words' -Dc="q \" b \\ e" -Dd=x'y z'\ é -De=#none"""
    file = tmp_path / "java.options"
    file.write_bytes(as_java_arguments(java_options(declared)))
    java = find_java(os.environ, spark_settings.cache).home / "bin" / "java"
    command = [str(java), "-Dfile.encoding=UTF-8", "-Dstderr.encoding=UTF-8", f"@{file}", "-XshowSettings:properties"]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, encoding="utf-8", check=True)
    lines = {name.strip(): value for name, _, value in (line.partition(" = ") for line in done.stderr.splitlines())}
    wanted = {"a": "1", "b": "two words", "c": 'q " b \\ e', "d": "xy z é", "e": "#none"}
    assert {name: lines[name] for name in wanted} == wanted
