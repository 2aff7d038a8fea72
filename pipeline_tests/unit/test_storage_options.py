"""The account of a bucket: from one description follow Spark's confs and the clients' options, and what is refused."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.dataset import Append, Dataset
from pipeline.delta.inspect.describe import described_in_log
from pipeline.delta.sink import DeltaSink
from pipeline.delta.spark.confs import confs
from pipeline.delta.storage.access import StoreError, problem_in_java
from pipeline.delta.storage.file_system import create_file, list_files, read_file, write_file
from pipeline.delta.storage.options import (
    AccountError,
    account_confs,
    azure_options,
    gcs_options,
    log_requests,
    s3_options,
    use_accounts,
    use_confs,
)
from pipeline.errors import AccessProblem, SettingsError, StorageAccessError
from pipeline.settings import LogRequests, SparkSettings, StorageOptions, load_settings
from pipeline_tests.object_stores import Bucket, Fault, FaultKind, served_bucket
from pipeline_tests.remedies import follows, refused

HADOOP = "spark.hadoop."
LAKE = "fs.s3a.bucket.lake."
DEFAULT_CHAIN = ["Temporary", "Simple", "EnvironmentVariable", "IAMInstance"]


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(f"[tool.pipeline]\nroot = 's3a://lake/tables'\n{text}", encoding="utf-8")
    return folder


def settings(folder: Path, text: str = "", **environ: str) -> SparkSettings:
    return load_settings({"HOME": str(folder), **environ}, project(folder, text)).spark


def derived(folder: Path, text: str = "", **environ: str) -> dict[str, str]:
    confs = account_confs(settings(folder, text, **environ), {"HOME": str(folder), **environ})
    return {name.removeprefix(HADOOP): value for name, value in confs.items()}


def profiles(folder: Path) -> None:
    (folder / ".aws").mkdir()
    (folder / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = d\n[work]\naws_access_key_id = W\n"
        "aws_secret_access_key = 100%w\naws_session_token = t\n[role]\nrole_arn = arn\n",
        encoding="utf-8",
    )
    (folder / ".aws" / "config").write_text("[profile work]\nregion = eu-west-1\n", encoding="utf-8")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The process environment without an account, and confs that end with the test."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pipeline.delta.storage.options._CONFS", {})
    monkeypatch.setattr("pipeline.delta.storage.options._LOG_REQUESTS", {})
    return monkeypatch


def keys_of(options: dict[str, Any]) -> tuple[Any, ...]:
    account = options["credential_provider"]()
    return account["access_key_id"], account["secret_access_key"], account["token"]


# --- one description, two sides ---------------------------------------------------------------------------------------


def test_keys_of_a_bucket_reach_spark_and_the_client_alike(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = """[tool.pipeline.storage."s3://lake"]
        endpoint = "http://127.0.0.1:9000"
        region = "eu-central-1"
        access_key_id = "K"
        secret_access_key = { env = "LAKE_SECRET" }
        session_token = "T"
        """
    found = derived(tmp_path, text, LAKE_SECRET="S", AWS_REGION="us-west-2")
    assert {name.removeprefix(LAKE): value for name, value in found.items() if name.startswith(LAKE)} == {
        "endpoint": "http://127.0.0.1:9000", "endpoint.region": "eu-central-1", "path.style.access": "true",
        "access.key": "K", "secret.key": "S", "session.token": "T",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }  # fmt: skip
    assert found["fs.s3a.endpoint.region"] == "us-west-2"
    use_accounts(settings(tmp_path, text, LAKE_SECRET="S"))
    options = s3_options("lake")
    assert keys_of(options) == ("K", "S", "T")
    assert (options["region"], options["endpoint"]) == ("eu-central-1", "http://127.0.0.1:9000")
    assert options["skip_signature"] is False


def test_the_confs_of_a_session_hold_the_account_and_a_conf_of_the_settings_wins(tmp_path: Path) -> None:
    text = f"""[tool.pipeline.storage."s3://lake"]
        access_key_id = "K"
        secret_access_key = "S"
        [tool.pipeline.spark_conf]
        "spark.hadoop.{LAKE}access.key" = "theirs"
        """
    found = confs(settings(tmp_path, text), [])
    assert found[f"{HADOOP}{LAKE}access.key"] == "theirs"
    assert found[f"{HADOOP}{LAKE}secret.key"] == "S"
    assert account_confs(settings(tmp_path, text), {})[f"{HADOOP}{LAKE}access.key"] == "theirs"


def test_a_conf_of_hadoop_without_sparks_prefix_is_for_both_sides_too(
    variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = '[tool.pipeline.spark_conf]\n"fs.s3a.access.key" = "K"\n"fs.s3a.secret.key" = "S"'
    found = confs(settings(tmp_path, text), [])
    assert found[f"{HADOOP}fs.s3a.secret.key"] == "S"
    assert not [name for name in found if name.startswith("fs.")]
    use_accounts(settings(tmp_path, text))
    assert keys_of(s3_options("lake")) == ("K", "S", None)


def test_spark_hides_each_conf_of_an_account(tmp_path: Path) -> None:
    tables = [
        '"s3://lake"]\naccess_key_id = "hush"\nsecret_access_key = "hush"\nsession_token = "hush"',
        f'"{AZURE}"]\naccount_key = "hush"',
        f'"{AZURE}"]\nsas_token = "hush"',
        f'"{AZURE}"]\nclient_id = "c"\nclient_secret = "hush"\ntenant_id = "t"',
    ]
    theirs = {
        "spark.hadoop.fs.s3a.server-side-encryption.key": "hush", "spark.hadoop.fs.s3a.endpoint": "https://me:hush@h",
        "spark.hadoop.fs.gs.auth.service.account.private.key": "hush", "spark.my.url": "jdbc:x://u:hush@h/db",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "hush", "spark.hadoop.my.credential": "hush",
        "spark.my.address": "https://h/x?sv=1&sig=hush",
    }  # fmt: skip
    for table in tables:
        found = confs(settings(tmp_path, f"[tool.pipeline.storage.{table}"), []) | theirs
        pattern = re.compile(found["spark.redaction.regex"])
        shown = {n: t for n, t in found.items() if not (pattern.search(n) or pattern.search(t))}
        assert not [name for name, text in shown.items() if "hush" in text]
        assert {"spark.driver.memory", "spark.sql.session.timeZone", "spark.delta.logStore.s3a.impl"} <= {*shown}


def test_a_profile_has_the_same_keys_on_both_sides(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiles(tmp_path)
    text = '[tool.pipeline.storage."s3://lake"]\nprofile = "work"'
    found = derived(tmp_path, text)
    assert found[f"{LAKE}auth.profile.name"] == "work"
    assert found[f"{LAKE}auth.profile.file"] == str(tmp_path / ".aws" / "credentials")
    assert found[f"{LAKE}aws.credentials.provider"].endswith("ProfileAWSCredentialsProvider")
    use_confs({f"{HADOOP}{name}": value for name, value in found.items()})
    assert keys_of(s3_options("lake")) == ("W", "100%w", "t")


def test_a_profile_without_keys_is_named(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiles(tmp_path)
    for name in ("role", "nobody"):
        text = f'[tool.pipeline.storage."s3://lake"]\nprofile = "{name}"'
        use_confs({f"{HADOOP}{n}": value for n, value in derived(tmp_path, text).items()})
        with pytest.raises(AccountError, match=f"the profile '{name}' has no aws_access_key_id"):
            list_files("s3a://lake/tables")


def test_hadoop_gets_what_it_does_not_read_from_the_environment(tmp_path: Path) -> None:
    assert derived(tmp_path) == {"fs.s3a.endpoint.region": "us-east-1"}
    assert derived(tmp_path, AWS_ENDPOINT_URL="http://h:1", AWS_DEFAULT_REGION="r") == {
        "fs.s3a.endpoint.region": "r", "fs.s3a.endpoint": "http://h:1", "fs.s3a.path.style.access": "true",
    }  # fmt: skip
    chain = derived(tmp_path, AWS_WEB_IDENTITY_TOKEN_FILE="f")["fs.s3a.aws.credentials.provider"].split(",")
    assert [name.rpartition(".")[2] for name in chain][3] == "WebIdentityTokenFileCredentialsProvider"
    profiles(tmp_path)
    found = derived(tmp_path, AWS_PROFILE="work")
    assert (found["fs.s3a.auth.profile.name"], found["fs.s3a.endpoint.region"]) == ("work", "eu-west-1")
    assert derived(tmp_path)["fs.s3a.auth.profile.name"] == "default"


def test_keys_of_the_environment_win_over_a_profile(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiles(tmp_path)
    use_confs({f"{HADOOP}{name}": value for name, value in derived(tmp_path).items()})
    assert keys_of(s3_options("lake")) == ("D", "d", None)
    variables.setenv("AWS_ACCESS_KEY_ID", "E")
    assert "credential_provider" not in s3_options("lake")


def test_a_sink_that_a_program_starts_uses_the_account_of_its_settings(
    variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = '[tool.pipeline.storage."s3://lake"]\naccess_key_id = "K"\nsecret_access_key = "S"'
    loaded = load_settings({"HOME": str(tmp_path)}, project(tmp_path, text))
    schema = StructType([StructField("n", LongType(), False)])
    DeltaSink(Dataset(name="rows", schema=schema, write=Append()), "one", loaded)
    assert keys_of(s3_options("lake")) == ("K", "S", None)


def test_an_anonymous_bucket_is_not_signed(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '[tool.pipeline.storage."s3://lake"]\nanonymous = true'
    found = derived(tmp_path, text)
    assert found[f"{LAKE}aws.credentials.provider"].endswith("AnonymousAWSCredentialsProvider")
    use_confs({f"{HADOOP}{name}": value for name, value in found.items()})
    assert s3_options("lake")["skip_signature"] is True
    assert s3_options("other")["skip_signature"] is False


def test_a_bucket_in_the_host_name_has_it_on_both_sides(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '[tool.pipeline.storage."s3://lake"]\nendpoint = "https://store.example"\npath_style = false'
    found = derived(tmp_path, text)
    assert found[f"{LAKE}path.style.access"] == "false"
    use_confs({f"{HADOOP}{name}": value for name, value in found.items()})
    options = s3_options("lake")
    assert (options["endpoint"], options["virtual_hosted_style_request"]) == ("https://lake.store.example", True)


AZURE = "abfss://tables@account.dfs.core.windows.net"
HOST = "account.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("options", "hadoop", "client"),
    [
        ('account_key = "k"', {f"account.key.{HOST}": "k"}, {"account_key": "k"}),
        (
            'sas_token = "?sig=1"',
            {f"account.auth.type.{HOST}": "SAS", f"sas.fixed.token.{HOST}": "sig=1"},
            {"sas_key": "sig=1"},
        ),
        (
            'client_id = "c"\nclient_secret = "s"\ntenant_id = "t"',
            {
                f"account.auth.type.{HOST}": "OAuth",
                f"account.oauth.provider.type.{HOST}": (
                    "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
                ),
                f"account.oauth2.client.id.{HOST}": "c",
                f"account.oauth2.client.secret.{HOST}": "s",
                f"account.oauth2.client.endpoint.{HOST}": "https://login.microsoftonline.com/t/oauth2/token",
            },
            {"client_id": "c", "client_secret": "s", "tenant_id": "t"},
        ),
    ],
    ids=["key", "signature", "service"],
)
def test_each_kind_of_account_in_azure_reaches_both_sides(
    variables: pytest.MonkeyPatch, tmp_path: Path, options: str, hadoop: dict[str, str], client: dict[str, str]
) -> None:
    found = derived(tmp_path, f'[tool.pipeline.storage."{AZURE}"]\n{options}')
    assert {n.removeprefix("fs.azure."): v for n, v in found.items() if n.startswith("fs.azure.")} == hadoop
    use_confs({f"{HADOOP}{name}": value for name, value in found.items()})
    assert azure_options(AZURE.partition("://")[2]) == {"account_name": "account", **client}


def test_azures_variables_and_googles_file_reach_both_sides(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environ = {"PIPELINE_ROOT": f"{AZURE}/x", "AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "k"}
    text = '[tool.pipeline.storage."gs://lake"]\nservice_account_file = "/keys/file.json"'
    found = derived(tmp_path, text, **environ)
    assert found[f"fs.azure.account.key.{HOST}"] == "k"
    assert found["fs.gs.auth.service.account.json.keyfile"] == "/keys/file.json"
    assert gcs_options("lake") == {}
    use_confs({f"{HADOOP}{name}": value for name, value in found.items()})
    assert gcs_options("lake") == {"service_account_path": "/keys/file.json"}


# --- requests for logs ------------------------------------------------------------------------------------------------


def test_this_process_may_reach_a_bucket_by_another_address_than_spark_with_the_same_account(
    variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = """[tool.pipeline.storage."s3://lake"]
        endpoint = "http://inside:9000"
        access_key_id = "K"
        secret_access_key = "S"
        log = { endpoint = "https://outside.example", timeout_seconds = 60, retries = 0 }
        """
    found = derived(tmp_path, text)
    assert found[f"{LAKE}endpoint"] == "http://inside:9000"
    assert not [name for name in found if "outside" in found[name]]
    loaded = settings(tmp_path, text)
    assert loaded.storage[0].log == LogRequests(endpoint="https://outside.example", timeout_seconds=60, retries=0)
    use_accounts(loaded)
    assert s3_options("lake")["endpoint"] == "https://outside.example"
    assert keys_of(s3_options("lake")) == ("K", "S", None)
    assert log_requests("s3a", "other") == LogRequests()


def test_a_request_is_given_up_and_repeated_as_the_options_of_logs_say(
    variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with served_bucket() as served:
        text = f"""[tool.pipeline.storage."{served.uri}"]
            endpoint = "http://127.0.0.1:1"
            access_key_id = "K"
            secret_access_key = "S"
            log = {{ endpoint = "{served.endpoint}", timeout_seconds = 2, retries = 1 }}
            """
        use_accounts(settings(tmp_path, text))
        write_file(f"{served.uri}/file", b"1")
        served.requests.clear()
        served.faults[:] = [Fault(FaultKind.REFUSE, times=None)]
        for call in (read_file, lambda uri: create_file(uri, b"1")):
            with pytest.raises(StoreError):
                call(f"{served.uri}/file")
        assert [request.split()[0] for request in served.requests] == ["GET", "GET", "PUT", "PUT"]
        served.faults[:] = [Fault(FaultKind.DELAY, times=None, seconds=10)]
        started = time.monotonic()
        with pytest.raises(StoreError):
            read_file(f"{served.uri}/file")
        assert time.monotonic() - started < 10
        served.faults.clear()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('"s3://lake"]\nregoin = "x"', "Expected: region."),
        ('"s3://lake/tables"]', "it is not the URI of a bucket"),
        ('"ftp://lake"]', "it is not the URI of a bucket"),
        ('"s3://me:hush@lake"]', "it is not the URI of a bucket"),
        ('"s3://lake"]\naccess_key_id = "hush"', "it lacks secret_access_key"),
        ('"s3://lake"]\nsession_token = "hush"', "it lacks access_key_id"),
        ('"s3://lake"]\nprofile = "p"\nanonymous = true', "accounts of 2 kinds: profile; anonymous"),
        ('"s3://lake"]\nendpoint = "https://me:hush@host"', "it is not the address of a server"),
        ('"s3://lake"]\npath_style = "hush"', "it is neither true nor false"),
        ('"s3://lake"]\nregion = 1', "got a value of type int"),
        ('"s3://lake"]\nsecret_access_key = { env = "HUSH" }', "the variable HUSH is not set"),
        ('"s3://lake"]\n[tool.pipeline.storage."s3a://lake"]', "the bucket has two tables"),
        (f'"{AZURE}"]\naccess_key_id = "hush"', "it is not a known name"),
        ('"s3://hush@lake"]', "it is not the URI of a bucket"),
        ('"s3://me:hu?hush@lake"]', "it is not the URI of a bucket"),
        ('"abfss://me:hush@account"]', "it is not the URI of a bucket"),
        ('"abfss://container"]', "it is not the URI of a bucket"),
        ('"hush"]', "it is not the URI of a bucket"),
        ('"s3://lake"]\nlog = "hush"', "it is not a table"),
        ('"s3://lake".log]\nsecret_access_key = "hush"', "logs and data have one account"),
        ('"s3://lake".log]\nprofile = "hush"', "logs and data have one account"),
        ('"s3://lake".log]\nlog_store = "hush"', "one log store for all buckets of a scheme"),
        ('"s3://lake".log]\nretires = 1', "Expected: retries."),
        ('"s3://lake".log]\nretries = 11', "it is out of its bounds"),
        ('"s3://lake".log]\nretries = true', "it is out of its bounds"),
        ('"s3://lake".log]\ntimeout_seconds = 0', "it is out of its bounds"),
        ('"s3://lake".log]\ntimeout_seconds = "hush"', "it is out of its bounds"),
        ('"s3://lake".log]\nendpoint = "https://me:hush@host"', "it is not the address of a server"),
        (f'"{AZURE}".log]\nendpoint = "https://host"', "only a bucket in S3 has an endpoint for logs"),
    ],
)
def test_a_table_that_can_t_be_used_is_refused_and_no_value_is_shown(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, f"[tool.pipeline.storage.{table}")
    assert problem in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "[tool.pipeline.storage." in caught.value.setting


def test_no_repr_shows_a_value() -> None:
    one = StorageOptions(uri="s3://lake", options=(("access_key_id", "hush"), ("secret_access_key", "hush")))
    assert "hush" not in repr(SparkSettings(storage=(one,)))
    with pytest.raises(SettingsError, match="it lacks"):
        StorageOptions(uri="s3://lake", options=(("access_key_id", "k"),))
    no_text: Any = b"hush"
    with pytest.raises(SettingsError, match="it is of another type") as caught:
        StorageOptions(uri="s3://lake", options=(("access_key_id", "k"), ("secret_access_key", no_text)))
    assert "hush" not in str(caught.value)


# --- what a store answers ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with served_bucket() as served:
        use_confs(served.hadoop)
        yield served


ANSWERS = [
    (403, "InvalidAccessKeyId", AccessProblem.WRONG_KEY),
    (403, "SignatureDoesNotMatch", AccessProblem.WRONG_KEY),
    (400, "ExpiredToken", AccessProblem.EXPIRED),
    (403, "RequestTimeTooSkewed", AccessProblem.CLOCK),
    (404, "NoSuchBucket", AccessProblem.NO_BUCKET),
    (403, "AccessDenied", AccessProblem.NOT_ALLOWED),
    (301, "PermanentRedirect", AccessProblem.OTHER_REGION),
    (400, "AuthorizationHeaderMalformed", AccessProblem.OTHER_REGION),
    (403, "SomethingNew", AccessProblem.NOT_ALLOWED),
    (418, "SomethingNew", None),
]


@pytest.mark.parametrize(("status", "code", "problem"), ANSWERS)
def test_each_answer_of_a_store_is_a_named_problem(
    bucket: Bucket, status: int, code: str, problem: AccessProblem | None
) -> None:
    use_confs(bucket.hadoop)
    bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=status, code=code)]
    try:
        for call in (list_files, read_file, lambda uri: create_file(uri, b"1")):
            with pytest.raises(StoreError) as caught:
                call(f"{bucket.uri}/tables/file")
            assert caught.value.problem is problem
            assert "Debug source" not in str(caught.value)
    finally:
        bucket.faults.clear()


def echoed(bucket: Bucket, status: int, content: str) -> str:
    """All that is shown of an answer with this content: the error, and what a report of it has."""
    use_confs(bucket.hadoop)
    bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=status, content=content)]
    try:
        with pytest.raises(OSError, match="status code") as caught:
            read_file(f"{bucket.uri}/tables/file")
    finally:
        bucket.faults.clear()
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("status", [400, 403, 404, 418])
def test_of_an_answer_only_the_code_and_the_message_are_shown(bucket: Bucket, status: int) -> None:
    """S3 repeats a token that has expired, and the key's id, in its answer."""
    content = (
        "<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message><Token-0>hush</Token-0>"
        "<AWSAccessKeyId>hush</AWSAccessKeyId></Error>"
    )
    shown = echoed(bucket, status, content)
    assert "hush" not in shown
    assert "ExpiredToken: The token has expired." in shown
    of_google = echoed(bucket, status, '{"error": {"message": "No such object", "key": "hush"}}')
    assert "hush" not in of_google
    assert "No such object" in of_google
    assert "hush" not in echoed(bucket, status, "hush")


@pytest.mark.parametrize(
    ("uri", "confs"),
    [
        (AZURE, {f"fs.azure.account.key.{HOST}": "no base64: hush"}),
        ("gs://lake", {"fs.gs.auth.service.account.json.keyfile": "nowhere.json"}),
        ("gs://lake", {"fs.gs.auth.service.account.json.keyfile": "hush.json"}),
        ("gs://lake", {"fs.gs.auth.service.account.json.keyfile": "pem.json"}),
    ],
)
def test_a_key_of_the_wrong_form_is_a_wrong_key_and_not_shown(
    variables: pytest.MonkeyPatch, tmp_path: Path, uri: str, confs: dict[str, str]
) -> None:
    variables.chdir(tmp_path)
    (tmp_path / "hush.json").write_text("hush", encoding="utf-8")
    key = {"client_email": "a@b", "private_key": "-----BEGIN PRIVATE KEY-----\nhush\n", "private_key_id": "hush"}
    (tmp_path / "pem.json").write_text(json.dumps(key), encoding="utf-8")
    use_confs({f"{HADOOP}{name}": text for name, text in confs.items()})
    with pytest.raises(StoreError) as caught:
        read_file(f"{uri}/tables/file")
    assert caught.value.problem is AccessProblem.WRONG_KEY
    assert "hush" not in "".join(traceback.format_exception(caught.value)).replace("hush.json", "")


@follows(StorageAccessError)
def test_an_account_that_is_refused_is_an_error_of_the_table_and_passes_once_it_is_right(bucket: Bucket) -> None:
    location = f"{bucket.uri}/tables/rows"
    use_confs(bucket.hadoop)
    bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None, status=403, code="InvalidAccessKeyId")]
    error = refused(StorageAccessError, lambda: described_in_log("rows", location, None), "Correct the keys")
    assert (error.side, error.problem) == ("this process", AccessProblem.WRONG_KEY)
    bucket.faults.clear()
    described = described_in_log("rows", location, None)
    assert described is not None
    assert described.standing == "never written"


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.LOSE_ANSWER, FaultKind.REFUSE])
def test_a_fault_that_passes_is_met_by_a_retry(bucket: Bucket, kind: FaultKind) -> None:
    use_confs(bucket.hadoop)
    uri = f"{bucket.uri}/faults/{kind.name}"
    bucket.faults[:] = [Fault(kind, method, f"faults/{kind.name}", times=2) for method in ("PUT", "GET")]
    # A create whose answer is lost is repeated, and the store answers that the file exists.
    assert create_file(uri, b"rows") is (kind is not FaultKind.LOSE_ANSWER)
    assert read_file(uri) == b"rows"
    write_file(f"{uri}-again", b"rows")
    assert read_file(f"{uri}-again") == b"rows"
    assert [fault.met for fault in bucket.faults] == [2, 2]
    bucket.faults.clear()


def test_a_store_that_stays_busy_is_given_up_within_30_seconds(bucket: Bucket) -> None:
    use_confs(bucket.hadoop)
    bucket.faults[:] = [Fault(FaultKind.REFUSE, times=None)]
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        read_file(f"{bucket.uri}/file")
    assert (caught.value.problem, time.monotonic() - started < 30) == (AccessProblem.BUSY, True)
    bucket.faults.clear()


@pytest.mark.parametrize(
    ("message", "classes", "problem"),
    [
        ("s3a://b: (Service: S3, Status Code: 403, Request ID: 1):InvalidAccessKeyId", (), AccessProblem.WRONG_KEY),
        ("getFileStatus: (Service: S3, Status Code: 403, Request ID: 1):403 Forbidden", (), AccessProblem.NOT_ALLOWED),
        ("(Service: S3, Status Code: 503)", (), AccessProblem.BUSY),
        ("gone", ("org.apache.hadoop.fs.s3a.UnknownStoreException",), AccessProblem.NO_BUCKET),
        ("org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: none", (), AccessProblem.NO_ACCOUNT),
        (
            "Unable to execute HTTP request: Connection refused",
            ("java.net.ConnectException",),
            AccessProblem.UNREACHABLE,
        ),
    ],
)
def test_an_error_of_hadoop_is_a_named_problem(message: str, classes: tuple[str, ...], problem: AccessProblem) -> None:
    assert problem_in_java(message, classes) is problem
