"""What differs between S3, Azure and GCS: confs, jars, and the objects that stand for folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pyarrow import fs

from pipeline.delta.spark.confs import CONDITIONAL_LOG_STORES, confs
from pipeline.delta.spark.jars import jar_path, jar_url
from pipeline.delta.storage.file_system import (
    create_file,
    file_system,
    list_files,
    read_file,
    write_file,
)
from pipeline.delta.storage.options import use_confs
from pipeline.delta.storage.published_jars import DELTA_JARS, jars_for
from pipeline.settings import SCHEMES, SparkSettings, load_settings
from pipeline_tests.conftest import TESTS
from pipeline_tests.object_stores import (
    NAMES,
    AnyStore,
    require_exact_name,
    require_parts_of_a_file,
    require_single_requests,
    served_bucket,
    served_store,
)


@pytest.fixture(scope="module", params=["azure", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyStore]:
    cache = load_settings(start=TESTS.parent).spark.cache
    with served_store(request.param, tmp_path_factory.mktemp("store"), cache) as served:
        yield served


@pytest.mark.parametrize(
    ("scheme", "log_store"),
    [
        ("s3a", "io.pipeline.delta.ConditionalS3LogStore"), ("abfs", "io.delta.storage.AzureLogStore"),
        ("abfss", "io.delta.storage.AzureLogStore"), ("gs", "io.delta.storage.GCSLogStore"),
    ],
)  # fmt: skip
def test_each_scheme_gets_a_log_store_whose_commit_is_one_conditional_request(scheme: str, log_store: str) -> None:
    ours = confs(SparkSettings(schemes=(scheme,)), [])
    assert ours[f"spark.delta.logStore.{scheme}.impl"] == log_store
    assert log_store in CONDITIONAL_LOG_STORES
    assert ours["spark.databricks.delta.commit.idempotencyCheck.enabled"] == "true"
    of_disks = {name for name in confs(SparkSettings(), []) if "logStore" in name}
    assert of_disks == {"spark.delta.logStore.file.impl"}


def test_a_log_store_that_the_user_has_set_for_all_schemes_stays_the_only_one() -> None:
    theirs = {"spark.delta.logStore.class": "org.example.LogStore"}
    ours = confs(SparkSettings(conf=tuple(theirs.items())), [])
    assert {name: text for name, text in ours.items() if "logStore" in name} == theirs


def test_each_scheme_adds_the_jars_of_its_connector() -> None:
    counts = {scheme: len(jars_for([scheme])) - len(DELTA_JARS) for scheme in SCHEMES}
    assert counts == {"s3": 36, "s3a": 36, "s3n": 36, "abfs": 3, "abfss": 3, "gs": 1}
    assert len(jars_for(["s3a", "abfss", "gs"])) == len(DELTA_JARS) + 40


def test_a_jar_with_a_classifier_has_it_in_its_name_and_address(tmp_path: Path) -> None:
    coordinate = "org.example.some:connector:4.0.0:shaded"
    assert jar_path(coordinate, tmp_path).name == "org.example.some_connector-4.0.0-shaded.jar"
    assert jar_url(coordinate, "https://host/maven2/") == (
        "https://host/maven2/org/example/some/connector/4.0.0/connector-4.0.0-shaded.jar"
    )


def test_an_empty_object_that_hadoop_writes_for_a_folder_is_no_file() -> None:
    with served_bucket() as bucket:
        use_confs(bucket.hadoop)
        folder = f"{bucket.uri}/table"
        for key in ("table/", "table/part=1/", "table/part=1/b"):
            urlopen(Request(f"{bucket.endpoint}/{bucket.name}/{key}", method="PUT"), timeout=30).close()
        write_file(f"{folder}/a", b"1")
        assert [(file.name, file.size) for file in list_files(folder)] == [("a", 1)]
        system, path = file_system(folder)
        found = system.get_file_info(fs.FileSelector(path, recursive=True))
        assert sorted(info.path for info in found) == [f"{path}/a", f"{path}/part=1/b"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_name_is_read_byte_by_byte_as_it_was_written_in_each_store(store: AnyStore, name: str) -> None:
    require_exact_name(store, name)


@pytest.mark.exhaustive
def test_small_files_cost_one_request_each_in_each_store(store: AnyStore) -> None:
    require_single_requests(store)


@pytest.mark.exhaustive
def test_a_large_file_is_opened_by_one_request_in_each_store(store: AnyStore) -> None:
    require_parts_of_a_file(store)


@pytest.mark.exhaustive
def test_a_file_is_created_once_in_each_store(store: AnyStore) -> None:
    assert [create_file(f"{store.uri}/probed/file", content) for content in (b"1", b"2")] == [True, False]
    assert read_file(f"{store.uri}/probed/file") == b"1"


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", ["azure"], indirect=True)
def test_a_folder_of_azure_without_files_is_a_folder(store: AnyStore) -> None:
    system, path = file_system(f"{store.uri}/table/_delta_log")
    system.handler._store.put("table/_delta_log", b"", attributes={"hdi_isfolder": "true"})
    write_file(f"{store.uri}/table/empty", b"")
    assert system.get_file_info(path).type == fs.FileType.Directory
    assert system.get_file_info(path.replace("_delta_log", "empty")).type == fs.FileType.File
