"""The secrets of a storage are planted where settings are read; no command without Spark shows or logs one."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.settings import load_settings
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket
from pipeline_tests.projects import conform_datasets

PLANT = "pl4nted"
HOST = "account.dfs.core.windows.net"
CONTAINER = f"abfss://tables@{HOST}"
EMULATOR = 'endpoint = "http://127.0.0.1:1"'
VERBS = (["show"], ["show", "{table}"], ["doctor"], ["doctor", "{table}"], ["history", "{table}"], ["manifest", "list"])
# S3 repeats a key's id and a token in the answer with which it refuses them.
REFUSAL = (
    f"<Error><Code>{{}}</Code><Message>refused</Message><AWSAccessKeyId>AKIA{PLANT}</AWSAccessKeyId>"
    f"<Token-0>{PLANT}</Token-0><StringToSign>{PLANT}</StringToSign></Error>"
)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        uri, options = f"s3://{served.name}/tables/rows", dict(served.delta_rs)
        deltalake.write_deltalake(uri, pa.table({"n": [1]}), storage_options=options)
        yield served


@pytest.fixture(autouse=True)
def _a_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A project in the working directory, with a profile and key files that hold secrets, and no other account."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPELINE_CACHE", str(load_settings().spark.cache))
    monkeypatch.setenv("PIPELINE_DATASETS", f"{conform_datasets.__name__}:datasets")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLANTED", PLANT)
    monkeypatch.setattr("pipeline.delta.storage.options._CONFS", {})
    monkeypatch.setattr("pipeline.delta.storage.options._LOG_REQUESTS", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[work]\naws_access_key_id = AKIA{PLANT}\naws_secret_access_key = {PLANT}\naws_session_token = {PLANT}\n"
    )
    key = {"client_email": "a@b", "private_key_id": PLANT, "private_key": f"-----BEGIN PRIVATE KEY-----\n{PLANT}\n"}
    (tmp_path / "key.json").write_text(json.dumps(key | {"type": "service_account"}))
    (tmp_path / "text.json").write_text(PLANT)


def told(root: str, table: str) -> str:
    """All that the commands print and log at DEBUG about tables below a root, whose storage this table describes."""
    Path("pyproject.toml").write_text(f"[tool.pipeline]\nroot = '{root}'\n{table}", encoding="utf-8")
    logged = io.StringIO()
    handler, source = logging.StreamHandler(logged), logging.getLogger()
    level = source.level
    source.addHandler(handler)
    source.setLevel(logging.DEBUG)
    printed = [repr(load_settings())]
    try:
        for verb in VERBS:
            arguments = [argument.format(table=f"{root}/rows") for argument in verb]
            done = CliRunner().invoke(main, ["--verbose", *arguments])
            printed += [done.stdout, done.stderr, str(done.exception)]
    finally:
        source.setLevel(level)
        source.removeHandler(handler)
    return "\n".join([*printed, logged.getvalue()])


ACCOUNTS = {
    "literal": f'access_key_id = "AKIA{PLANT}"\nsecret_access_key = "{PLANT}"\nsession_token = "{PLANT}"',
    "variable": f'access_key_id = "AKIA{PLANT}"\nsecret_access_key = {{ env = "PLANTED" }}',
    "profile": 'profile = "work"',
}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_no_secret_of_a_bucket_is_shown_whether_the_store_takes_or_refuses_it(bucket: Bucket, account: str) -> None:
    table = f'[tool.pipeline.storage."{bucket.uri}"]\nendpoint = "{bucket.endpoint}"\n{ACCOUNTS[account]}'
    taken = told(f"{bucket.uri}/tables", table)
    assert PLANT not in taken
    assert "healthy" in taken
    for status, code in ((403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (403, "Other"), (404, "NoSuchBucket")):
        bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=status, content=REFUSAL.format(code))]
        refused = told(f"{bucket.uri}/tables", table)
        bucket.faults.clear()
        assert PLANT not in refused, code
        assert code in refused


@pytest.mark.parametrize(
    "conf",
    [
        f'"fs.s3a.access.key" = "AKIA{PLANT}"\n"fs.s3a.secret.key" = "{PLANT}"',
        f'"spark.hadoop.fs.s3a.access.key" = "AKIA{PLANT}"\n"spark.hadoop.fs.s3a.secret.key" = "{PLANT}"',
    ],
)
def test_no_secret_of_a_conf_is_shown(bucket: Bucket, conf: str) -> None:
    taken = told(
        f"{bucket.uri}/tables",
        f'[tool.pipeline.spark_conf]\n"spark.hadoop.fs.s3a.endpoint" = "{bucket.endpoint}"\n{conf}',
    )
    assert PLANT not in taken
    assert "healthy" in taken


@pytest.mark.parametrize(
    ("root", "account"),
    [
        (CONTAINER, f'{EMULATOR}\naccount_key = "cGw0bnRlZA=={PLANT}"'),
        (CONTAINER, f'{EMULATOR}\naccount_key = "{PLANT}{PLANT}=="'),
        (CONTAINER, f'{EMULATOR}\nsas_token = "sv=2024-01-01&sig={PLANT}"'),
        ("gs://lake", 'service_account_file = "key.json"'),
        ("gs://lake", 'service_account_file = "text.json"'),
    ],
)
def test_no_secret_of_an_account_that_can_t_be_used_is_shown(root: str, account: str) -> None:
    refused = told(f"{root}/tables", f'[tool.pipeline.storage."{root}"]\n{account}\nlog = {{ retries = 0 }}')
    assert PLANT not in refused
    assert "can't be used" in refused or "can't be read" in refused
