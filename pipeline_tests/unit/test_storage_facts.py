"""What is shown and recorded of a storage: how it is reached, and never a secret."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkRuntimeError

from pipeline.cli import main
from pipeline.delta.spark.confs import confs
from pipeline.delta.storage.options import use_accounts
from pipeline.delta.table.storage_facts import StorageFacts, storage_facts, storage_facts_in
from pipeline.settings import load_settings
from pipeline_tests.object_stores import KEY, SECRET, served_bucket
from pipeline_tests.projects import conform_datasets

OURS = "io.pipeline.delta.ConditionalS3LogStore"
CONTAINER = "abfss://tables@account.dfs.core.windows.net"


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("pipeline.delta.storage.options._CONFS", {})
    monkeypatch.setattr("pipeline.delta.storage.options._LOG_REQUESTS", {})


def facts(folder: Path, uri: str, text: str = "", log_store: str | None = OURS) -> StorageFacts:
    (folder / "pyproject.toml").write_text(f"[tool.pipeline]\nroot = '{uri}/tables'\n{text}", encoding="utf-8")
    use_accounts(load_settings({"HOME": str(folder)}, folder).spark)
    return storage_facts(f"{uri}/tables/rows", log_store)


def test_a_bucket_is_shown_by_its_addresses_its_kind_of_account_and_its_log_store(tmp_path: Path) -> None:
    text = """[tool.pipeline.storage."s3://lake"]
        endpoint = "http://inside:9000/path"
        region = "eu-central-1"
        access_key_id = "hush"
        secret_access_key = "hush"
        log = { endpoint = "https://outside.example" }
        """
    assert facts(tmp_path, "s3a://lake", text) == StorageFacts(
        uri="s3a://lake", scheme="s3a", endpoint="http://inside:9000", log_endpoint="https://outside.example",
        region="eu-central-1", account="key", log_store=OURS, creates_checked=True,
    )  # fmt: skip


def test_a_folder_has_no_facts_but_its_scheme(tmp_path: Path) -> None:
    for location in (str(tmp_path), tmp_path.as_uri()):
        assert storage_facts(location, None) == StorageFacts(uri="file:", scheme="file")


@pytest.mark.parametrize(
    ("uri", "options", "kind"),
    [
        ("s3a://lake", 'access_key_id = "hush"\nsecret_access_key = "hush"', "key"),
        ("s3a://lake", 'access_key_id = "h"\nsecret_access_key = "hush"\nsession_token = "hush"', "temporary key"),
        ("s3a://lake", 'profile = "hush"', "profile"),
        ("s3a://lake", "anonymous = true", "anonymous"),
        ("s3a://lake", "", "machine"),
        (CONTAINER, 'account_key = "hush"', "key"),
        (CONTAINER, 'sas_token = "sv=1&sig=hush"', "signature"),
        (CONTAINER, 'client_id = "hush"\nclient_secret = "hush"\ntenant_id = "hush"', "service principal"),
        (CONTAINER, "", "environment or machine"),
        ("gs://lake", 'service_account_file = "/keys/hush.json"', "key file"),
        ("gs://lake", "", "environment or machine"),
    ],
)
def test_an_account_is_shown_by_its_kind(tmp_path: Path, uri: str, options: str, kind: str) -> None:
    found = facts(tmp_path, uri, f'[tool.pipeline.storage."{uri}"]\n{options}')
    assert found.account == kind
    assert "hush" not in json.dumps(asdict(found))


def test_an_account_of_the_environment_is_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert facts(tmp_path, "s3a://lake").account == "web identity"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hush")
    assert facts(tmp_path, "s3a://lake").account == "key of the environment"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fs.s3a.endpoint", "https://me:hush@store"),
        ("fs.s3a.endpoint", "https://store?sig=hush"),
        ("fs.s3a.endpoint", "https://store/path@hush"),
        ("fs.s3a.endpoint.region", "hush/hush"),
    ],
)
def test_a_conf_of_another_form_may_hold_a_secret_and_is_hidden(tmp_path: Path, name: str, value: str) -> None:
    found = facts(tmp_path, "s3a://lake", f'[tool.pipeline.spark_conf]\n"spark.hadoop.{name}" = "{value}"')
    shown = json.dumps(asdict(found))
    assert "hush" not in shown
    assert "***" in shown
    assert facts(tmp_path, "s3a://lake", log_store="hush hush").log_store == "***"


@pytest.mark.parametrize(("log_store", "checked"), [(OURS, True), ("com.example.Store", False), (None, None)])
def test_creates_are_checked_if_the_log_store_relies_on_them(
    tmp_path: Path, log_store: str | None, checked: bool | None
) -> None:
    assert facts(tmp_path, "s3a://lake", log_store=log_store).creates_checked is checked


class Lost:
    """A session that is gone."""

    @property
    def conf(self) -> object:
        raise PySparkRuntimeError("the answer was lost")


def test_without_a_session_the_log_store_is_not_known() -> None:
    session: object = Lost()
    found = storage_facts_in(session, "s3a://lake/rows")  # type: ignore[arg-type]
    assert (found.uri, found.log_store, found.creates_checked) == ("s3a://lake", None, None)


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_shows_how_each_bucket_is_reached_also_if_a_table_can_t_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with served_bucket() as bucket:
        monkeypatch.setenv("PIPELINE_ROOT", f"{bucket.uri}/tables")
        (tmp_path / "pyproject.toml").write_text(
            f'[tool.pipeline]\ndatasets = "{conform_datasets.__name__}:datasets"\n'
            f'[tool.pipeline.storage."{bucket.uri}"]\nendpoint = "{bucket.endpoint}"\naccess_key_id = "{KEY}"\n'
            f'secret_access_key = "{SECRET}"\n[tool.pipeline.storage."{CONTAINER}"]\nsas_token = "sig=hush"\n',
            encoding="utf-8",
        )
        rows = pa.table({"n": [1]})
        table = f"{bucket.uri}/tables/rows"
        deltalake.write_deltalake(table.replace("s3a:", "s3:"), rows, storage_options=dict(bucket.delta_rs))
        done = CliRunner().invoke(main, ["doctor", table], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        shown = done.stdout
        heads, _, first, second = (line.split() for line in shown.splitlines()[:4])
        assert heads[:4] == ["bucket", "endpoint", "endpoint", "of"]
        assert first == [
            bucket.uri, bucket.endpoint, bucket.endpoint, "us-east-1", "key", OURS, "checked", "before", "a", "write",
        ]  # fmt: skip
        assert second[:5] == [CONTAINER, "-", "-", "-", "signature"]
        assert "hush" not in shown
        (diagnosis,) = json.loads(CliRunner().invoke(main, ["doctor", table, "--json"]).stdout)
        assert diagnosis["healthy"]
        assert diagnosis["storage"] == asdict(
            StorageFacts(
                uri=bucket.uri, scheme="s3a", endpoint=bucket.endpoint, log_endpoint=bucket.endpoint,
                region="us-east-1", account="key", log_store=OURS, creates_checked=True,
            )
        )  # fmt: skip
        refused = CliRunner().invoke(main, ["doctor", f"{bucket.uri}/tables/nothing"])
        assert refused.exit_code == 1
        assert OURS in refused.stdout


def test_doctor_names_the_scheme_of_a_table_on_this_machine_and_shows_no_bucket(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "rows", pa.table({"n": [1]}))
    result = CliRunner().invoke(main, ["doctor", str(tmp_path / "rows"), "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)[0]["storage"] == asdict(StorageFacts(uri="file:", scheme="file"))
    shown = CliRunner().invoke(main, ["doctor", str(tmp_path / "rows")], catch_exceptions=False).stdout
    assert shown.split()[0] == "dataset"


@pytest.mark.parametrize("uri", ["s3a://me:hush@lake/rows", "s3a://hush@lake/rows", "gs://lake/rows?sig=hush"])
@pytest.mark.parametrize("command", ["doctor", "show", "history"])
def test_the_uri_of_a_table_with_a_secret_is_refused_and_not_shown(command: str, uri: str) -> None:
    result = CliRunner().invoke(main, [command, uri])
    assert result.exit_code != 0
    assert "hush" not in result.output
    assert "a user, key or signature" in f"{result.output}{result.exception}"
    assert "hush" not in str(result.exception)


def test_a_session_has_the_log_store_that_doctor_shows() -> None:
    assert confs(load_settings({"PIPELINE_ROOT": "s3a://lake"}).spark, [])["spark.delta.logStore.s3a.impl"] == OURS
