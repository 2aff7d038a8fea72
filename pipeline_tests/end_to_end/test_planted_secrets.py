"""Secrets of every kind are planted where settings are read; no command prints one or writes one down."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from pipeline.settings import SparkSettings
from pipeline_tests.conftest import free_port
from pipeline_tests.delta.processes import watched
from pipeline_tests.end_to_end.conftest import PROJECTS, REPOSITORY, ProjectFolder

PLANT = "pl4nted"
# Confs whose values are or contain a secret, in the place of `{}`.
CONFS = {
    "spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net": "{}==",
    "spark.hadoop.fs.azure.account.oauth2.client.secret.acct.dfs.core.windows.net": "{}",
    "spark.hadoop.fs.azure.account.oauth2.client.secret": "{}",
    "spark.hadoop.fs.azure.sas.fixed.token.acct.dfs.core.windows.net": "sv=2024&sig={}",
    "spark.hadoop.fs.azure.sas.container.acct.blob.core.windows.net": "?sig={}",
    "fs.azure.account.key.acct.blob.core.windows.net": "{}",
    "spark.hadoop.fs.s3a.access.key": "AKIA{}",
    "spark.hadoop.fs.s3a.secret.key": "{}",
    "spark.hadoop.fs.s3a.session.token": "{}",
    "spark.hadoop.fs.s3a.bucket.one.secret.key": "{}",
    "spark.hadoop.fs.s3a.server-side-encryption.key": "{}",
    "spark.hadoop.fs.s3a.proxy.password": "{}",
    "spark.hadoop.fs.s3a.endpoint": "https://me:{}@storage.invalid",
    "fs.s3a.secret.key": "{}",
    "spark.hadoop.fs.gs.auth.service.account.private.key": "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END-----",
    "spark.hadoop.fs.gs.auth.service.account.private.key.id": "{}",
    "spark.hadoop.google.cloud.auth.service.account.json": '{\\"private_key\\": \\"{}\\"}',
    "spark.hadoop.fs.oss.accessKeySecret": "{}",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": "{}",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:postgresql://h/db?user=u&password={}",
    "spark.hadoop.hadoop.security.credential.provider.path": "user:///{}",
    "spark.hadoop.ssl.client.keystore.password": "{}",
    "spark.planted.jdbc.url": "jdbc:mysql://u:{}@h:3306/db",
    "spark.planted.db.pwd": "{}",
    "spark.planted.api.token": "{}",
    "spark.planted.header": "Authorization: Bearer {}",
    "spark.planted.basic": "Basic {}",
    "spark.planted.auth": "{}",
    "spark.planted.credential": "{}",
    "spark.planted.apikey": "{}",
    "spark.planted.passphrase": "{}",
    "spark.planted.harmless.name": "{}",
    "spark.ssl.keyPassword": "{}",
    "spark.ssl.keyStorePassword": "{}",
    "spark.sql.catalog.spark_catalog.token": "{}",
    "spark.planted.repositories": "https://me:{}@repository.invalid/maven",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "{}",
    "spark.redaction.planted": "{}",
    "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword={}",
}
VARIABLES = {
    "PIPELINE_MAVEN_REPOSITORY": "https://me:{}@repository.invalid/maven",
    "AWS_SECRET_ACCESS_KEY": "{}",
    "AWS_SESSION_TOKEN": "{}",
    "AZURE_CLIENT_SECRET": "{}",
    "AZURE_STORAGE_SAS_TOKEN": "{}",
    "https_proxy": "http://me:{}@proxy.invalid:3128",
    "DATABASE_URL": "postgresql://u:{}@h/db",
}
REMOTES = (
    "sc://127.0.0.1:{port}/;token={secret}", "sc://127.0.0.1:{port}/;use_ssl=true;token={secret}",
    "sc://127.0.0.1:{port};token={secret}", "sc://me:{secret}@127.0.0.1:{port}", "sc://127.0.0.1:{port}/?token={secret}",
    "sc://127.0.0.1:{port}/#{secret}", "http://127.0.0.1/;token={secret}", "sc://127.0.0.1:{secret}",
    "sc://127.0.0.1:{port}/;user_id={secret}", "127.0.0.1:{port}/;token={secret}",
)  # fmt: skip
ROOTS = (
    "s3a://AKIA:{secret}@bucket/root", "s3a://{secret}@bucket/root", "s3a://AKIA:a/{secret}@bucket",
    "abfss://c@acct.dfs.core.windows.net/x?sv=1&sig={secret}", "wasbs://u:{secret}@acct/x", "gs://b/x#{secret}",
    "https://h/x?X-Amz-Signature={secret}", "s3a:{secret}",
)  # fmt: skip


def planted(texts: dict[str, str], kind: str) -> dict[str, str]:
    """The texts with a secret in each; what a secret is, and where it stands, can be told from it."""
    return {name: text.replace("{}", f"{PLANT}{kind}{number}") for number, (name, text) in enumerate(texts.items())}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, spark_settings: SparkSettings) -> ProjectFolder:
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(REPOSITORY / "dagster.yaml", folder / "dagster.yaml")
    lines = [f'"{name}" = "{value}"' for name, value in planted(CONFS, "conf").items()]
    text = '[tool.dagster]\nmodule_name = "planted"\n[tool.pipeline]\ndatasets = "planted:datasets"\n'
    text += "\n".join(["[tool.pipeline.spark_conf]", *lines])
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    (folder / "tmp").mkdir()
    variables = {"PYTHONPATH": f"{REPOSITORY}:{PROJECTS}", "TMPDIR": str(folder / "tmp")}
    return ProjectFolder(folder, spark_settings.cache, variables | planted(VARIABLES, "variable"))


def printed(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout}\n{done.stderr}"


def finds(project: ProjectFolder) -> Iterator[str]:
    """The files of the project that hold a secret, but for the one that the operator has written."""
    for path in project.folder.rglob("*"):
        if path.is_file() and path.name != "pyproject.toml" and PLANT.encode() in path.read_bytes():
            yield str(path.relative_to(project.folder))


@pytest.mark.exhaustive
def test_no_run_that_succeeds_or_fails_and_no_report_of_it_shows_a_secret(project: ProjectFolder) -> None:
    with watched(f"{PLANT}conf") as seen:
        done = {asset: project.command("pipeline", "materialize", asset) for asset in ("kept", "refused")}
        done["history"] = project.command("pipeline", "--verbose", "history", "kept", "--json")
    assert {name: one.returncode for name, one in done.items()} == {"kept": 0, "refused": 1, "history": 0}
    assert {name: PLANT in printed(one) for name, one in done.items()} == dict.fromkeys(done, False)
    assert seen == set()
    assert json.loads(done["history"].stdout)
    for arguments in (["doctor"], ["manifest", "list"], ["registry"]):
        told = project.invoke(*arguments)
        assert told.stdout
        assert PLANT not in printed(told)
    assert list(finds(project)) == []
    assert list((project.folder / "tmp").glob("pipeline-*")) == []


@pytest.mark.exhaustive
def test_no_address_of_a_server_and_no_root_is_repeated_with_its_secret(project: ProjectFolder) -> None:
    secret = f"{PLANT}address"
    for remote in REMOTES:
        address = remote.format(port=free_port(), secret=secret)
        told = project.invoke("--verbose", "sql", "select 1", SPARK_REMOTE=address)
        assert (told.returncode, secret in printed(told)) == (1, False), printed(told)
    for root in ROOTS:
        told = project.invoke("--verbose", "show", PIPELINE_ROOT=root.format(secret=secret))
        assert (told.returncode, secret in printed(told)) == (1, False), root
    assert list(finds(project)) == []
