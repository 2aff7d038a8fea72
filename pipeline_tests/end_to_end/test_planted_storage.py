"""Runs and a warm server with everything logged at DEBUG: no secret of a storage is printed or written down."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.delta.storage.file_system import file_system, list_folder
from pipeline.delta.storage.options import use_confs
from pipeline.settings import SparkSettings
from pipeline_tests.conftest import free_port
from pipeline_tests.delta.processes import watched
from pipeline_tests.end_to_end.conftest import PROJECTS, REPOSITORY, ProjectFolder
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket, served_container

LITERAL, VARIABLE = "pl4ntedliteral", "pl4ntedvariable"
OTHERS = "account.dfs.core.windows.net"
# Accounts that nothing uses: their confs are in the session.
UNUSED = f"""
[tool.pipeline.storage."abfss://one@key.{OTHERS}"]
account_key = "{LITERAL}key=="
[tool.pipeline.storage."abfss://one@signed.{OTHERS}"]
sas_token = "sv=2024-01-01&sig={LITERAL}"
[tool.pipeline.storage."abfss://one@service.{OTHERS}"]
client_id = "c"
client_secret = "{LITERAL}secret"
tenant_id = "t"
"""
CONFS = {
    "spark.hadoop.fs.s3a.server-side-encryption.key": LITERAL,
    "fs.s3a.bucket.other.secret.key": LITERAL,
    "spark.hadoop.fs.s3a.bucket.other.endpoint": f"https://me:{LITERAL}@storage.invalid",
    "spark.hadoop.fs.gs.auth.service.account.private.key": LITERAL,
    "spark.hadoop.javax.jdo.option.ConnectionPassword": LITERAL,
    "spark.planted.jdbc.url": f"jdbc:mysql://u:{LITERAL}@h:3306/db",
}
LOGGING = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/jvm.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
logger.catalyst.name = org.apache.spark.sql.catalyst
logger.catalyst.level = info
"""
# Python imports it in each process of the project.
CUSTOMIZE = """
import logging, os
logging.basicConfig(filename=f"{folder}/python-{{os.getpid()}}.log", level=logging.DEBUG)
"""


@dataclass
class Planted:
    """A project whose root is in a store, and the texts that may be nowhere but where the user has written them."""

    project: ProjectFolder
    root: str
    bucket: Bucket | None
    secrets: list[str] = field(default_factory=lambda: [LITERAL, VARIABLE])

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command, whose output has no secret."""
        done = self.project.command("pipeline", "--verbose", *arguments, **environment)
        assert [secret for secret in self.secrets if secret in done.stdout + done.stderr] == [], arguments
        return done

    def finds(self) -> Iterator[str]:
        """The files of the project and of its root that hold a secret."""
        own = {self.project.folder / "pyproject.toml", self.project.folder / "credentials"}
        for path in self.project.folder.rglob("*"):
            if path.is_file() and path not in own and self._is_found(path.read_bytes()):
                yield str(path.relative_to(self.project.folder))
        system, top = file_system(self.root)
        for info in list_folder(system, top, recursive=True):
            if info.is_file and info.size and self._is_found(system.open_input_stream(info.path).read()):
                yield str(info.path)

    def _is_found(self, content: bytes) -> bool:
        return any(secret.encode() in content for secret in self.secrets)


@pytest.fixture(params=["keys", "profile", "azure"])
def planted(request: pytest.FixtureRequest, tmp_path: Path, spark_settings: SparkSettings) -> Iterator[Planted]:
    folder = tmp_path / "planted"
    for name in ("tmp", "events", "python"):
        (folder / name).mkdir(parents=True)
    shutil.copy(REPOSITORY / "dagster.yaml", folder / "dagster.yaml")
    (folder / "log4j2.properties").write_text(LOGGING.format(folder=folder), encoding="utf-8")
    (folder / "python" / "sitecustomize.py").write_text(CUSTOMIZE.format(folder=folder), encoding="utf-8")
    variables = {
        "PYTHONPATH": f"{folder / 'python'}:{REPOSITORY}:{PROJECTS}", "TMPDIR": str(folder / "tmp"),
        "LAKE_SECRET": f"{VARIABLE}secret",
    }  # fmt: skip
    with ExitStack() as servers:
        project = ProjectFolder(folder, spark_settings.cache, variables)
        if request.param == "azure":
            store = servers.enter_context(served_container(spark_settings.cache))
            use_confs(store.hadoop)
            confs = {name.removeprefix("spark.hadoop.fs.azure."): text for name, text in store.hadoop.items()}
            key = next(text for name, text in confs.items() if name.startswith("account.key."))
            account = f'endpoint = "http://{confs["abfs.endpoint"]}"\naccount_key = "{key}"'
            found = Planted(project, f"{store.uri}/tables", None, [LITERAL, VARIABLE, key])
        else:
            bucket = servers.enter_context(served_bucket())
            use_confs(bucket.hadoop)
            account = f'endpoint = "{bucket.endpoint}"\n{_account(request.param, folder)}'
            found = Planted(project, f"{bucket.uri}/tables", bucket)
            project.environment = variables | {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
        _write_project(folder, found.root, account)
        yield found


def _account(kind: str, folder: Path) -> str:
    if kind == "profile":
        lines = [f"aws_access_key_id = AKIA{LITERAL}", f"aws_secret_access_key = {LITERAL}secret"]
        (folder / "credentials").write_text("\n".join(["[work]", *lines]), encoding="utf-8")
        return 'profile = "work"'
    key = f'access_key_id = "AKIA{LITERAL}"\nsession_token = "{LITERAL}token"'
    return f'{key}\nsecret_access_key = {{ env = "LAKE_SECRET" }}'


def _write_project(folder: Path, root: str, account: str) -> None:
    file = (folder / "log4j2.properties").as_uri()
    options = f"-Dlog4j2.configurationFile={file} -Dplanted.password={LITERAL}"
    confs = CONFS | {
        "spark.driver.extraJavaOptions": options, "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(), "spark.eventLog.compress": "false",
    }  # fmt: skip
    lines = [f'"{name}" = "{value}"' for name, value in confs.items()]
    text = f'[tool.dagster]\nmodule_name = "planted"\n[tool.pipeline]\ndatasets = "planted:datasets"\nroot = "{root}"\n'
    text += f'[tool.pipeline.storage."{root.removesuffix("/tables")}"]\n{account}\n{UNUSED}\n'
    text += "\n".join(["[tool.pipeline.spark_conf]", *lines])
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


@pytest.mark.exhaustive
def test_no_secret_of_a_storage_is_printed_or_written_down_though_all_is_logged(planted: Planted) -> None:
    with watched(LITERAL) as literal, watched(VARIABLE) as variable:
        assert planted.run("materialize", "kept").returncode == 0
        assert planted.run("doctor").returncode == 0
        if planted.bucket is not None:
            content = (
                f"<Error><Code>InvalidAccessKeyId</Code><Message>refused</Message>"
                f"<AWSAccessKeyId>AKIA{LITERAL}</AWSAccessKeyId><Token-0>{LITERAL}token</Token-0></Error>"
            )
            planted.bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=403, content=content)]
            refused = planted.run("materialize", "kept")
            planted.bucket.faults.clear()
            assert (refused.returncode, "StorageAccessError" in refused.stderr + refused.stdout) == (1, True)
    assert literal == set()
    assert {one for one in variable if one.startswith("cmdline")} == set()
    assert list(planted.finds()) == []
    logged = (planted.project.folder / "jvm.log").read_text(encoding="utf-8")
    assert " DEBUG org.apache.hadoop.fs." in logged
    assert " DEBUG org.apache.spark." in logged
    python = [path.read_text(encoding="utf-8") for path in planted.project.folder.glob("python-*.log")]
    assert any("DEBUG:" in text for text in python)
    events = [path.read_text(encoding="utf-8") for path in planted.project.folder.glob("events/*/events_*")]
    assert any("SparkListenerEnvironmentUpdate" in text and "redacted" in text for text in events)


@pytest.mark.exhaustive
@pytest.mark.parametrize("planted", ["keys"], indirect=True)
def test_a_warm_server_writes_down_neither_a_secret_nor_its_own_token(planted: Planted) -> None:
    port, state = free_port(), planted.project.folder / ".pipeline" / "spark"
    with watched(LITERAL) as literal:
        assert planted.run("spark", "start", "--port", str(port)).returncode == 0
        try:
            token = (state / "token").read_text(encoding="ascii")
            planted.secrets.append(token)
            run = planted.run("materialize", "kept", SPARK_REMOTE=f"sc://127.0.0.1:{port}")
            assert run.returncode == 0, run.stderr
            assert planted.run("spark", "status", "--json").returncode == 0
            assert [found for found in planted.finds() if found != ".pipeline/spark/token"] == []
        finally:
            planted.run("spark", "stop")
    assert literal == set()
    assert list(planted.finds()) == []
