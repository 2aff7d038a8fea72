"""The account of each bucket, for Spark and for the file systems of this process.

Here belongs the derivation of Hadoop's confs from the settings and the environment, and of the clients' options from
those confs, so that both sides use one account. Like environment variables, the confs hold for the whole process.

The precedence is: a conf of the settings, the table of a bucket, the environment, a profile, the machine's own account.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.settings import SCHEMES, LogRequests, Settings, SparkSettings, StorageOptions, load_settings

_HADOOP = "spark.hadoop."
_S3A, _AZURE, _GCS = "fs.s3a.", "fs.azure.", "fs.gs."
_DEFAULT_REGION = "us-east-1"
_DEFAULT_PROFILE = "default"
_LOGIN = "https://login.microsoftonline.com"
_SDK = "software.amazon.awssdk.auth.credentials."
_S3A_CLASSES = "org.apache.hadoop.fs.s3a."
_PROVIDERS = f"{_S3A}aws.credentials.provider"
_TEMPORARY, _SIMPLE = f"{_S3A_CLASSES}TemporaryAWSCredentialsProvider", f"{_S3A_CLASSES}SimpleAWSCredentialsProvider"
_ANONYMOUS = f"{_S3A_CLASSES}AnonymousAWSCredentialsProvider"
_PROFILE = f"{_S3A_CLASSES}auth.ProfileAWSCredentialsProvider"
_ENVIRONMENT = f"{_SDK}EnvironmentVariableCredentialsProvider"
_WEB_IDENTITY = f"{_SDK}WebIdentityTokenFileCredentialsProvider"
_MACHINE = f"{_S3A_CLASSES}auth.IAMInstanceCredentialsProvider"
# The fields of a key file of Google that the client requires.
_KEY_FIELDS = ("client_email", "private_key", "private_key_id")
# Our names of the options of a bucket in S3, and Hadoop's.
_S3_NAMES = {
    "endpoint": "endpoint", "region": "endpoint.region", "path_style": "path.style.access",
    "access_key_id": "access.key", "secret_access_key": "secret.key", "session_token": "session.token",
    "profile": "auth.profile.name",
}  # fmt: skip
# Confs of Hadoop by name, without Spark's prefix; and how this process reaches each bucket, by its extra and name.
_CONFS: dict[str, str] = {}
_LOG_REQUESTS: dict[tuple[str, str], LogRequests] = {}


class AccountError(OSError):
    """The account of a bucket can't be read on this machine."""


class AccountKind(Enum):
    """Where the account of a bucket comes from."""

    KEY = "key"
    TEMPORARY_KEY = "temporary key"
    SIGNATURE = "signature"
    SERVICE = "service principal"
    KEY_FILE = "key file"
    PROFILE = "profile"
    ENVIRONMENT = "key of the environment"
    WEB_IDENTITY = "web identity"
    MACHINE = "machine"
    ENVIRONMENT_OR_MACHINE = "environment or machine"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True)
class _Account:
    """A provider of credentials that do not expire."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)

    def __call__(self) -> dict[str, Any]:
        return {
            "access_key_id": self.access_key, "secret_access_key": self.secret_key, "token": self.token,
            "expires_at": None,
        }  # fmt: skip


# --- confs of Hadoop, from the settings and the environment -----------------------------------------------------------


def account_confs(settings: SparkSettings, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The Spark confs of all accounts and addresses. Those of the settings' `conf` are among them and win.

    Args:
        settings: the tables of the buckets, and the schemes that are in use.
        environ: the variables to read. If None, the process environment.
    """
    environ = os.environ if environ is None else environ
    extras = {one.extra for one in settings.storage} | {
        SCHEMES[scheme] for scheme in settings.schemes if scheme in SCHEMES
    }
    derived: dict[str, str] = {}
    if "s3" in extras:
        derived |= dict(_s3_environment(environ))
    if "azure" in extras:
        derived |= dict(_azure_environment(environ))
    for one in settings.storage:
        derived |= dict(_of_bucket(one, environ))
    ours = {f"{_HADOOP}{name}": text for name, text in derived.items()}
    return ours | {n: t for n, t in with_prefixes(settings.conf).items() if n.startswith(f"{_HADOOP}fs.")}


def with_prefixes(conf: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Confs by name. Names of Hadoop's file systems get the prefix with which Spark passes them on."""
    return {f"{_HADOOP}{name}" if name.startswith("fs.") else name: text for name, text in conf}


def project_settings(start: Path | None = None) -> Settings:
    """The settings of a project, with their accounts in use for the file systems of this process.

    Args:
        start: the folder in which, or above which, the project is. If None, the current one.

    Raises:
        SettingsError: as `load_settings` and `account_confs` do.
    """
    settings = load_settings(start=start)
    use_accounts(settings.spark)
    return settings


def use_accounts(settings: SparkSettings) -> None:
    """Use the accounts of these settings for the file systems of this process that are opened from now on."""
    use_confs(account_confs(settings))
    _LOG_REQUESTS.update({(one.extra, one.bucket): one.log for one in settings.storage})


def use_confs(confs: Mapping[str, str]) -> None:
    """Use the accounts in these Spark confs for the file systems of this process that are opened from now on."""
    named = {name.removeprefix(_HADOOP): text for name, text in confs.items() if name.startswith(_HADOOP)}
    _CONFS.update({name: text for name, text in named.items() if name.startswith((_S3A, _AZURE, _GCS))})


def _s3_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What holds for each bucket in S3. Hadoop reads neither the profile, nor the region, nor a web identity."""
    profile = environ.get("AWS_PROFILE") or _DEFAULT_PROFILE
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _profile_region(profile, environ)
    yield f"{_S3A}endpoint.region", region or _DEFAULT_REGION
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        yield f"{_S3A}endpoint", endpoint
        yield f"{_S3A}path.style.access", "true"
    web_identity = [_WEB_IDENTITY] if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") else []
    has_profile = bool(environ.get("AWS_PROFILE")) or _has_default_profile(environ)
    if has_profile:
        yield f"{_S3A}auth.profile.name", profile
        yield f"{_S3A}auth.profile.file", str(_credentials_file(environ))
    if web_identity or has_profile:
        profiles = [_PROFILE] if has_profile else []
        yield _PROVIDERS, ",".join([_TEMPORARY, _SIMPLE, _ENVIRONMENT, *web_identity, *profiles, _MACHINE])


def _of_bucket(storage: StorageOptions, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if storage.extra == "s3":
        return _s3_bucket(storage, environ)
    return _azure_container(storage) if storage.extra == "azure" else _gcs_bucket(storage)


def _s3_bucket(storage: StorageOptions, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    given = dict(storage.options)
    ours = f"{_S3A}bucket.{storage.bucket}."
    yield from ((f"{ours}{_S3_NAMES[name]}", text) for name, text in given.items() if name in _S3_NAMES)
    if "endpoint" in given and "path_style" not in given:
        yield f"{ours}path.style.access", "true"
    provider = None
    if given.get("anonymous") == "true":
        provider = _ANONYMOUS
    elif "profile" in given:
        provider = _PROFILE
        yield f"{ours}auth.profile.file", str(_credentials_file(environ))
    elif "access_key_id" in given:
        provider = _TEMPORARY if "session_token" in given else _SIMPLE
    if provider is not None:
        yield f"{ours}aws.credentials.provider", provider


def _azure_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The account that Azure's variables name. Hadoop reads none of them."""
    account, key = environ.get("AZURE_STORAGE_ACCOUNT_NAME"), environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    if account and key:
        yield f"{_AZURE}account.key.{account}.dfs.core.windows.net", key


def _azure_container(storage: StorageOptions) -> Iterator[tuple[str, str]]:
    given = dict(storage.options)
    host = storage.bucket.partition("@")[2]
    if "account_key" in given:
        yield f"{_AZURE}account.key.{host}", given["account_key"]
    elif "sas_token" in given:
        yield f"{_AZURE}account.auth.type.{host}", "SAS"
        yield f"{_AZURE}sas.fixed.token.{host}", given["sas_token"].removeprefix("?")
    elif "client_id" in given:
        provider = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
        oauth = f"{_AZURE}account.oauth"
        yield f"{_AZURE}account.auth.type.{host}", "OAuth"
        yield f"{oauth}.provider.type.{host}", provider
        yield f"{oauth}2.client.id.{host}", given["client_id"]
        yield f"{oauth}2.client.secret.{host}", given["client_secret"]
        yield f"{oauth}2.client.endpoint.{host}", f"{_LOGIN}/{given['tenant_id']}/oauth2/token"
    if "endpoint" in given:
        yield from _azure_emulator(given["endpoint"])


def _azure_emulator(endpoint: str) -> Iterator[tuple[str, str]]:
    """An endpoint other than Azure's own: that of an emulator, which has the Blob interface only."""
    scheme, _, address = endpoint.partition("://")
    yield f"{_AZURE}abfs.endpoint", address.rstrip("/")
    yield f"{_AZURE}always.use.https", str(scheme == "https").lower()
    yield f"{_AZURE}fns.account.service.type", "BLOB"
    yield f"{_AZURE}account.hns.enabled", "false"
    yield f"{_AZURE}networking.library", "JDK_HTTP_URL_CONNECTION"


def _gcs_bucket(storage: StorageOptions) -> Iterator[tuple[str, str]]:
    file = dict(storage.options).get("service_account_file")
    if file is not None:
        yield f"{_GCS}auth.type", "SERVICE_ACCOUNT_JSON_KEYFILE"
        yield f"{_GCS}auth.service.account.json.keyfile", str(Path(file).expanduser())


# --- profiles of the shared files -------------------------------------------------------------------------------------


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _credentials_file(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or _home(environ) / ".aws" / "credentials")


def _has_default_profile(environ: Mapping[str, str]) -> bool:
    return bool(_section(_credentials_file(environ), _DEFAULT_PROFILE).get("aws_access_key_id"))


def _profile_region(profile: str, environ: Mapping[str, str]) -> str | None:
    file = Path(environ.get("AWS_CONFIG_FILE") or _home(environ) / ".aws" / "config")
    section = profile if profile == _DEFAULT_PROFILE else f"profile {profile}"
    return _section(file, section).get("region")


def _section(file: Path, name: str) -> Mapping[str, str]:
    """A section of a file of profiles. If the file or the section is missing or can't be read, empty."""
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, Error):
        return {}
    return dict(parser[name]) if parser.has_section(name) else {}


# --- options of the clients, from the confs ---------------------------------------------------------------------------


def log_requests(scheme: str, authority: str) -> LogRequests:
    """How this process reaches a bucket."""
    return _LOG_REQUESTS.get((SCHEMES[scheme], authority)) or LogRequests()


def s3_options(bucket: str) -> dict[str, Any]:
    """The client's options for a bucket: its own confs before the general ones, as Hadoop reads them.

    Raises:
        AccountError: the profile has no keys.
    """
    conf, kind = partial(_s3_conf, bucket), _s3_account(bucket)
    # Without this option, a variable of the client's own would switch the signature off.
    options: dict[str, Any] = {"region": _s3_region(bucket), "skip_signature": kind is AccountKind.ANONYMOUS}
    endpoint = log_requests("s3", bucket).endpoint or conf("endpoint")
    options |= _s3_endpoint(bucket, endpoint, conf("connection.ssl.enabled"), conf("path.style.access"))
    # As single options, the client would join the keys with a session token of the environment.
    if kind in (AccountKind.KEY, AccountKind.TEMPORARY_KEY):
        key, secret = conf("access.key") or "", conf("secret.key") or ""
        options["credential_provider"] = _Account(key, secret, conf("session.token"))
    elif kind is AccountKind.PROFILE:
        options["credential_provider"] = _profile_account(conf("auth.profile.file"), conf("auth.profile.name"))
    return options


def _s3_conf(bucket: str, name: str) -> str | None:
    return _CONFS.get(f"{_S3A}bucket.{bucket}.{name}") or _CONFS.get(f"{_S3A}{name}") or None


def _s3_region(bucket: str) -> str:
    environ = os.environ.get
    found = _s3_conf(bucket, "endpoint.region") or environ("AWS_REGION") or environ("AWS_DEFAULT_REGION")
    return found or _DEFAULT_REGION


def _s3_account(bucket: str) -> AccountKind:
    conf = partial(_s3_conf, bucket)
    providers = (conf("aws.credentials.provider") or "").replace(" ", "").split(",")
    if providers == [_ANONYMOUS]:
        return AccountKind.ANONYMOUS
    if conf("access.key") is not None:
        return AccountKind.KEY if conf("session.token") is None else AccountKind.TEMPORARY_KEY
    has_key = bool(os.environ.get("AWS_ACCESS_KEY_ID"))
    if _PROFILE in providers and not (_ENVIRONMENT in providers and has_key):
        return AccountKind.PROFILE
    if has_key:
        return AccountKind.ENVIRONMENT
    return AccountKind.WEB_IDENTITY if os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") else AccountKind.MACHINE


def _s3_endpoint(bucket: str, endpoint: str | None, has_tls: str | None, path_style: str | None) -> dict[str, Any]:
    if endpoint is None:
        return {}
    if "://" not in endpoint:
        endpoint = f"{'http' if has_tls == 'false' else 'https'}://{endpoint}"
    if path_style != "false":
        return {"endpoint": endpoint}
    scheme, _, host = endpoint.partition("://")
    return {"endpoint": f"{scheme}://{bucket}.{host}", "virtual_hosted_style_request": True}


def _profile_account(file: str | None, name: str | None) -> _Account:
    path = _credentials_file(os.environ) if file is None else Path(file)
    profile = name or _DEFAULT_PROFILE
    section = _section(path, profile)
    key, secret = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
    if not key or not secret:
        raise AccountError(
            f"the profile {profile!r} has no aws_access_key_id and aws_secret_access_key in {path}; for a role or "
            "single sign-on, export temporary keys to the environment"
        )
    return _Account(key, secret, section.get("aws_session_token"))


def azure_options(authority: str) -> dict[str, Any]:
    """The client's options for a container, from an authority as `container@account.dfs.core.windows.net`."""
    host = authority.partition("@")[2]
    account = host.partition(".")[0]
    options = {"account_name": account, "account_key": _CONFS.get(f"{_AZURE}account.key.{host}")}
    options |= {
        "sas_key": _CONFS.get(f"{_AZURE}sas.fixed.token.{host}"),
        "client_id": _CONFS.get(f"{_AZURE}account.oauth2.client.id.{host}"),
        "client_secret": _CONFS.get(f"{_AZURE}account.oauth2.client.secret.{host}"),
        "tenant_id": _tenant(_CONFS.get(f"{_AZURE}account.oauth2.client.endpoint.{host}")),
    }
    emulator = _CONFS.get(f"{_AZURE}abfs.endpoint")
    if emulator is not None:
        scheme = "http" if _CONFS.get(f"{_AZURE}always.use.https") == "false" else "https"
        options["endpoint"] = f"{scheme}://{emulator}/{account}"
    return {name: value for name, value in options.items() if value}


def _tenant(endpoint: str | None) -> str | None:
    return None if endpoint is None else endpoint.removeprefix(f"{_LOGIN}/").partition("/")[0]


def gcs_options(bucket: str) -> dict[str, Any]:  # noqa: ARG001  same signature as the others
    """The client's options for a bucket. Without a key file, the account comes from the environment or the machine."""
    endpoint = _CONFS.get(f"{_GCS}storage.root.url")
    if endpoint is not None and _CONFS.get(f"{_GCS}auth.type") == "UNAUTHENTICATED":
        # The client takes an endpoint only as part of a key. This one has no account.
        key = {"gcs_base_url": endpoint.rstrip("/"), "disable_oauth": True}
        return {"service_account_key": json.dumps(key | dict.fromkeys(_KEY_FIELDS, ""))}
    file = _CONFS.get(f"{_GCS}auth.service.account.json.keyfile")
    return {} if file is None else {"service_account_path": file}


# --- what may be shown ------------------------------------------------------------------------------------------------


def account_kind(scheme: str, authority: str) -> AccountKind:
    """Where the account of a bucket comes from. Its keys are not tried."""
    if SCHEMES[scheme] == "s3":
        return _s3_account(authority)
    options = azure_options(authority) if SCHEMES[scheme] == "azure" else gcs_options(authority)
    kinds = {
        "account_key": AccountKind.KEY, "sas_key": AccountKind.SIGNATURE, "client_secret": AccountKind.SERVICE,
        "service_account_path": AccountKind.KEY_FILE, "service_account_key": AccountKind.ANONYMOUS,
    }  # fmt: skip
    return next((kind for name, kind in kinds.items() if name in options), AccountKind.ENVIRONMENT_OR_MACHINE)


def endpoint_of(scheme: str, authority: str) -> str | None:
    """The address that Spark uses for a bucket, as its conf has it. If it is the provider's own, None."""
    if SCHEMES[scheme] == "s3":
        return _s3_conf(authority, "endpoint")
    return _CONFS.get(f"{_AZURE}abfs.endpoint" if SCHEMES[scheme] == "azure" else f"{_GCS}storage.root.url")


def region_of(scheme: str, authority: str) -> str | None:
    """The region of a bucket in S3. For any other store, None."""
    return _s3_region(authority) if SCHEMES[scheme] == "s3" else None
