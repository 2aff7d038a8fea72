"""Delta's jars come from a repository whole and checked, or not at all, and what was in the way is told by name."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from pipeline.cli import main
from pipeline.delta.spark import jars
from pipeline.delta.spark.jars import OWN_JAR, delta_jars, jar_path, jar_url, public_repository
from pipeline.delta.storage import download
from pipeline.delta.storage.download import Published
from pipeline.errors import (
    CacheFolderError,
    JarRefusedError,
    JarsUnavailableError,
    PipelineError,
    SettingsError,
    WrongJarError,
)
from pipeline.settings import SparkSettings, load_settings
from pipeline_tests.children import fetching
from pipeline_tests.conftest import free_port

SECRET = "s3cret-of-the-repository"
ONE, TWO = "io.delta:one:4.4.0", "io.unitycatalog:two:0.6.0"
CONTENT = {ONE: bytes(range(256)) * 1200, TWO: b"a small jar"}


@pytest.fixture(autouse=True)
def _made_up_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small jars in place of Delta's, no proxy, and no waiting between attempts."""
    made_up = {name: Published(len(text), hashlib.sha256(text).hexdigest()) for name, text in CONTENT.items()}
    monkeypatch.setattr(jars, "jars_for", lambda _: made_up)
    monkeypatch.setattr(download, "WAITS_SECONDS", (0.0, 0.0, 0.0))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as its server is told for the nth request; what it is not told, with the jar."""

    def do_GET(self) -> None:
        served: Served = self.server.served  # type: ignore[attr-defined]
        with served.lock:
            served.asked.append((self.path, dict(self.headers)))
            answer = served.answers.pop(0) if served.answers else served.otherwise
        answer(self)

    do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@dataclass
class Served:
    """A repository on loopback: what it answers, and what it was asked for with which headers."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    otherwise: Answer = field(default_factory=lambda: jar)
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]


def jar(handler: Handler, *, length: bool = True, cut: int | None = None, change: bytes = b"") -> None:
    """The jar that the path names; cut off after so many bytes, with something else behind it."""
    names = {jar_url(name, "").lstrip("/"): name for name in CONTENT}
    name = next(name for path, name in names.items() if handler.path.endswith(path))
    handler.send_response(200)
    if length:
        handler.send_header("Content-Length", str(len(CONTENT[name]) + len(change)))
    handler.end_headers()
    handler.wfile.write((CONTENT[name] + change)[:cut])


def status(number: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(number, f"phrase with {SECRET}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def page(handler: Handler) -> None:
    """What a login page or a mirror of other files answers."""
    handler.send_response(200)
    handler.send_header("Content-Length", "6")
    handler.end_headers()
    handler.wfile.write(b"<html>")


def silent(handler: Handler) -> None:
    """Half a jar, and then nothing for as long as the test runs."""
    jar(handler, cut=5)
    handler.server.served.begun.set()  # type: ignore[attr-defined]
    handler.server.served.over.wait(60)  # type: ignore[attr-defined]


def endless(handler: Handler) -> None:
    """A byte now and then, without an end."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.served.over.wait(0.02):  # type: ignore[attr-defined]
        handler.wfile.write(b"x")


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    handler.connection.close()


def nonsense(handler: Handler) -> None:
    handler.wfile.write(f"{SECRET}\r\n".encode())


class Quiet(ThreadingHTTPServer):
    """A client that goes away amid an answer is what some tests are about."""

    def handle_error(self, *_: Any) -> None:
        """Nothing."""


def served(context: ssl.SSLContext | None = None) -> Iterator[Served]:
    server = Quiet(("127.0.0.1", 0), Handler)
    scheme = "http"
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    found = Served(url=f"{scheme}://127.0.0.1:{server.server_port}")
    server.served = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def repository() -> Iterator[Served]:
    yield from served()


@pytest.fixture
def proxy() -> Iterator[Served]:
    yield from served()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def using(cache: Path, repository: Served | str) -> SparkSettings:
    url = repository if isinstance(repository, str) else repository.url
    return SparkSettings(cache=cache, maven_repository=url)


def is_complete(cache: Path) -> bool:
    """Whether all jars are there, and nothing beside them but the lock."""
    paths = {jar_path(name, cache): text for name, text in CONTENT.items()}
    others = {path.name for path in (cache / "jars").iterdir()} - {path.name for path in paths}
    return others == {"lock"} and all(path.read_bytes() == text for path, text in paths.items())


def nothing_came(cache: Path) -> bool:
    return {path.name for path in (cache / "jars").iterdir()} <= {"lock"}


def refused(kind: type[PipelineError], cache: Path, repository: Served | str) -> Any:
    """The error of that type; no half file and no secret is left behind, whatever the error is."""
    with pytest.raises(kind) as caught:
        delta_jars(using(cache, repository))
    assert type(caught.value) is kind
    assert nothing_came(cache)
    assert SECRET not in f"{caught.value}{caught.value!r}"
    return caught.value


# --- what goes well ---------------------------------------------------------------------------------------------------


def test_the_jars_are_fetched_once_by_their_coordinates_told_in_the_log_and_used_with_no_network(
    cache: Path, repository: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=jars.__name__):
        found = delta_jars(using(cache, repository))
    assert found == [*(jar_path(name, cache) for name in CONTENT), OWN_JAR]
    assert is_complete(cache)
    assert [path for path, _ in repository.asked] == [
        "/io/delta/one/4.4.0/one-4.4.0.jar", "/io/unitycatalog/two/0.6.0/two-0.6.0.jar",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in caplog.messages] == [
        "Fetching 2 jars of Delta, 0.3 MB, from http", found[0].name, found[1].name,
    ]  # fmt: skip
    assert found[0].stat().st_mode & 0o777 == 0o644
    (cache / "jars" / "lock").unlink()
    assert delta_jars(using(cache, f"http://127.0.0.1:{free_port()}")) == found
    assert not (cache / "jars" / "lock").exists(), "a good cache is not written"


def test_a_slow_download_says_how_far_it_is(
    cache: Path, repository: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "LOG_EVERY_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, logger=jars.__name__):
        delta_jars(using(cache, repository))
    said = [line.partition(": ")[2] for line in caplog.messages if line.startswith(jar_path(ONE, cache).name)]
    assert len(said) > 2
    assert said[-2:] == ["307 of 307 kB", "307 kB, checked"]


def test_a_command_shows_what_is_fetched_and_what_is_in_the_way_and_starts_no_server(
    tmp_path: Path, repository: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIPELINE_MAVEN_REPOSITORY", f"http://me:{SECRET}@{repository.address}")
    repository.answers = [jar]
    repository.otherwise = status(404)
    result = CliRunner().invoke(main, ["spark", "start", "--port", str(free_port())])
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == f"Fetching 2 jars of Delta, 0.3 MB, from {repository.url}"
    assert lines[1].endswith("one-4.4.0.jar: 307 kB, checked")
    assert "HTTP 404 (Not Found)" in lines[2]
    assert SECRET not in result.output
    assert {path.name for path in (tmp_path / ".pipeline" / "spark").iterdir()} == {"lock"}
    assert logging.getLogger(jars.__name__).handlers == []


def test_a_damaged_jar_is_fetched_again_and_a_good_one_is_kept(cache: Path, repository: Served) -> None:
    for name, text in CONTENT.items():
        path = jar_path(name, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    (cache / "jars" / "lock").touch()
    for damage in (CONTENT[ONE][:-1], CONTENT[ONE][:-1] + b"!", b""):
        jar_path(ONE, cache).write_bytes(damage)
        delta_jars(using(cache, repository))
        assert is_complete(cache)
    assert [path.rpartition("/")[2] for path, _ in repository.asked] == ["one-4.4.0.jar"] * 3


@pytest.mark.parametrize("answer", [
    status(500), status(503), status(429), reset, nonsense, lambda handler: jar(handler, cut=70_000),
    lambda handler: jar(handler, cut=70_000, length=False),
], ids=["500", "503", "429", "reset", "no http", "cut off", "cut off without a length"])  # fmt: skip
def test_what_fails_for_a_moment_is_asked_for_again(cache: Path, repository: Served, answer: Answer) -> None:
    repository.answers = [answer, answer]
    delta_jars(using(cache, repository))
    assert is_complete(cache)
    assert len(repository.asked) == 4


def test_a_folder_is_a_repository_too(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a repository"
    for name, text in CONTENT.items():
        path = Path(jar_url(name, str(folder)))
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
    delta_jars(using(cache, folder.as_uri()))
    assert is_complete(cache)
    shutil.rmtree(cache)
    Path(jar_url(ONE, str(folder))).unlink()
    assert refused(JarRefusedError, cache, folder.as_uri()).reason == "No such file or directory"


def test_without_a_setting_the_repository_is_the_one_that_spark_asks() -> None:
    assert public_repository().startswith("https://")
    assert public_repository().endswith("/maven2/")


# --- what does not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    status(500), status(503), reset, nonsense, lambda handler: jar(handler, cut=70_000), silent,
], ids=["500", "503", "reset", "no http", "cut off", "silent"])  # fmt: skip
def test_what_fails_again_and_again_is_told_after_the_attempts_that_there_are(
    cache: Path, repository: Served, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.2 if answer is silent else 5.0)
    repository.otherwise = answer
    error = refused(JarsUnavailableError, cache, repository)
    assert (error.jar, error.cache) == (jar_path(ONE, cache).name, str(cache / "jars"))
    assert error.url == jar_url(ONE, repository.url)
    assert error.reason
    assert error.retryable
    assert len(repository.asked) == 4
    assert "PIPELINE_MAVEN_REPOSITORY" in error.remedy()
    repository.otherwise = jar
    delta_jars(using(cache, repository))
    assert is_complete(cache)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://host.invalid", "https://host.invalid/maven"])
def test_a_host_that_is_not_there_is_told(cache: Path, url: str) -> None:
    error = refused(JarsUnavailableError, cache, url.format(port=free_port()))
    assert error.reason not in ("", "the connection failed")


def test_a_server_that_never_ends_is_left_at_the_end_of_the_time(
    cache: Path, repository: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "FETCH_SECONDS", 0.3)
    repository.otherwise = endless
    assert "too long" in refused(JarsUnavailableError, cache, repository).reason


@pytest.mark.parametrize("answer", [
    page, lambda handler: jar(handler, change=b"!"), lambda handler: jar(handler, change=b"!", length=False),
], ids=["a page", "more", "more without a length"])  # fmt: skip
def test_another_file_under_the_same_name_is_removed_and_never_used(
    cache: Path, repository: Served, answer: Answer
) -> None:
    repository.otherwise = answer
    error = refused(WrongJarError, cache, repository)
    assert error.expected == hashlib.sha256(CONTENT[ONE]).hexdigest()
    assert len(error.found) == 64
    assert not error.retryable
    assert len(repository.asked) == 1


@pytest.mark.parametrize("number", [401, 403, 404, 410])
def test_a_repository_that_refuses_is_asked_once_and_told(cache: Path, repository: Served, number: int) -> None:
    repository.otherwise = status(number)
    error = refused(JarRefusedError, cache, repository)
    assert error.reason.startswith(f"HTTP {number} (")
    assert "PIPELINE_MAVEN_REPOSITORY" in error.remedy()
    assert not error.retryable
    assert len(repository.asked) == 1


def test_a_user_and_a_password_go_to_the_repository_alone_and_are_told_nobody(
    cache: Path, repository: Served, proxy: Served, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = proxy  # another server, to which the repository points

    def moved(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"{elsewhere.url}{handler.path}")
        handler.end_headers()

    repository.otherwise = moved
    url = f"http://a%40b:{SECRET}@{repository.address}"
    with caplog.at_level(logging.DEBUG):
        delta_jars(using(cache, url))
    assert is_complete(cache)
    expected = "Basic " + b64encode(f"a@b:{SECRET}".encode()).decode()
    assert {headers["Authorization"] for _, headers in repository.asked} == {expected}
    assert [headers for _, headers in elsewhere.asked if "Authorization" in headers] == []
    assert SECRET not in caplog.text
    shutil.rmtree(cache)
    repository.otherwise = status(401)
    error = refused(JarRefusedError, cache, url)
    assert error.url == jar_url(ONE, repository.url)
    repository.otherwise = status(500)
    refused(JarsUnavailableError, cache, url)
    repository.otherwise = page
    refused(WrongJarError, cache, url)
    assert SECRET not in repr(using(cache, url))


@pytest.mark.parametrize("value", [
    "/srv/maven", "host/maven", "ftp://{}@host/maven", "https:///maven", "https://me:{}@host:port/maven",
    "https://me:{}@host:0/maven", "https://host/{} maven", "https://host/maven?token={}", "https://host/maven#{}",
    "https://[{}/maven", "file://host/{}", "https://hôst/{}",
])  # fmt: skip
def test_an_address_that_is_none_of_a_repository_is_refused_and_not_repeated(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"HOME": str(tmp_path), "PIPELINE_MAVEN_REPOSITORY": value.format(SECRET)}, tmp_path)
    assert caught.value.setting == "PIPELINE_MAVEN_REPOSITORY"
    assert SECRET not in str(caught.value)


# --- proxies and certificates -----------------------------------------------------------------------------------------


# Python 3.10 leaves the socket of a tunnel that a proxy refuses to its garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("number", "kind"), [
    (407, JarRefusedError), (403, JarRefusedError), (502, JarsUnavailableError),
])  # fmt: skip
def test_a_proxy_that_does_not_let_through_is_named_without_its_user(
    cache: Path, proxy: Served, scheme: str, number: int, kind: type[PipelineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", f"http://me:{SECRET}@{proxy.address}")
    proxy.otherwise = status(number)
    error = refused(kind, cache, f"{scheme}://repository.invalid/maven")
    assert f"HTTP {number} (" in error.reason
    assert f"through the proxy {proxy.address}" in error.reason
    assert "HTTPS_PROXY" in error.remedy()
    assert len(proxy.asked) == (1 if kind is JarRefusedError else 4)
    sent = {name.lower(): value for name, value in proxy.asked[0][1].items()}
    assert sent["proxy-authorization"] == "Basic " + b64encode(f"me:{SECRET}".encode()).decode()
    gc.collect()


@pytest.mark.parametrize(
    "value", [f"http://me:{SECRET}/x@host:80", f"http:me:{SECRET}", f"http://me:{SECRET}@host:p", "http://"]
)
def test_an_address_of_a_proxy_that_is_none_is_told_without_it(
    cache: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", value)
    with pytest.raises((JarRefusedError, JarsUnavailableError)) as caught:
        delta_jars(using(cache, f"http://127.0.0.1:{free_port()}"))
    assert SECRET not in f"{caught.value}{caught.value!r}"


def test_a_proxy_is_used_and_left_aside_as_the_environment_says(
    cache: Path, proxy: Served, repository: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    delta_jars(using(cache, repository))
    assert is_complete(cache)
    assert (len(proxy.asked), len(repository.asked)) == (2, 0)
    shutil.rmtree(cache)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    delta_jars(using(cache, repository))
    assert is_complete(cache)
    assert (len(proxy.asked), len(repository.asked)) == (2, 2)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here that makes a certificate")
def test_a_certificate_is_trusted_that_the_environment_names_and_no_other(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=a repository", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for repository in served(context):
        error = refused(JarRefusedError, cache, repository)
        assert "certificate" in error.reason
        assert "SSL_CERT_FILE" in error.remedy()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        delta_jars(using(cache, repository))
        assert is_complete(cache)


# --- the folder, and several processes --------------------------------------------------------------------------------


def test_a_folder_that_can_t_be_made_is_told(tmp_path: Path, repository: Served) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheFolderError) as caught:
        delta_jars(using(tmp_path / "file", repository))
    assert caught.value.folder == str(tmp_path / "file" / "jars")
    assert caught.value.reason == "Not a directory"
    assert "PIPELINE_CACHE" in caught.value.remedy()
    assert repository.asked == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_can_t_be_written_is_told(cache: Path, repository: Served) -> None:
    (cache / "jars").mkdir(parents=True)
    (cache / "jars").chmod(0o500)
    with pytest.raises(CacheFolderError) as caught:
        delta_jars(using(cache, repository))
    assert caught.value.reason == "Permission denied"


def test_a_folder_in_the_place_of_a_jar_is_told(cache: Path, repository: Served) -> None:
    jar_path(ONE, cache).mkdir(parents=True)
    with pytest.raises(CacheFolderError):
        delta_jars(using(cache, repository))
    assert {path.name for path in (cache / "jars").iterdir()} == {"lock", jar_path(ONE, cache).name}


def test_a_disk_that_takes_no_more_is_told_and_keeps_no_half_file(cache: Path, repository: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        error = refused(CacheFolderError, cache, repository)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.reason == "File too large"
    assert "20 MB" in error.remedy()


def child(cache: Path, repository: Served) -> subprocess.Popen[str]:
    """Another process that fetches the same jars."""
    published = json.dumps({name: (jar.size, jar.sha256) for name, jar in jars.jars_for(()).items()})
    command = [sys.executable, "-m", fetching.__name__, str(cache), repository.url, published]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for_both_to_open(path: Path, pids: set[int]) -> None:
    """Until all of the processes hold the file open, which means that one waits for the other."""
    ends = time.monotonic() + 60
    while not all(str(path) in {file.path for file in psutil.Process(pid).open_files()} for pid in pids):
        assert time.monotonic() < ends


@pytest.mark.exhaustive
def test_two_processes_at_once_both_have_the_jars_of_one_download(cache: Path, repository: Served) -> None:
    both_wait = threading.Event()

    def late(handler: Handler) -> None:
        handler.server.served.begun.set()  # type: ignore[attr-defined]
        assert both_wait.wait(60)
        jar(handler)

    repository.answers = [late]
    with child(cache, repository) as one, child(cache, repository) as other:
        assert repository.begun.wait(60)
        wait_for_both_to_open(cache / "jars" / "lock", {one.pid, other.pid})
        both_wait.set()
        printed = [json.loads(process.communicate(timeout=60)[0]) for process in (one, other)]
    assert printed == [[*(jar_path(name, cache).name for name in CONTENT), OWN_JAR.name]] * 2
    assert is_complete(cache)
    assert len(repository.asked) == 2


@pytest.mark.exhaustive
def test_what_a_killed_process_has_begun_is_cleared_by_the_next_one(cache: Path, repository: Served) -> None:
    repository.answers = [silent]
    with child(cache, repository) as one:
        assert repository.begun.wait(60)
        one.kill()
    assert len(list(cache.glob(f"jars/*{download.PART}"))) == 1
    delta_jars(using(cache, repository))
    assert is_complete(cache)


def test_a_process_that_holds_the_folder_without_end_is_waited_for_no_longer_than_a_download(
    cache: Path, repository: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "FETCH_SECONDS", 0.2)
    (cache / "jars").mkdir(parents=True)
    with (cache / "jars" / "lock").open("w") as lock:
        jars.fcntl.flock(lock, jars.fcntl.LOCK_EX)
        error = refused(JarsUnavailableError, cache, repository)
    assert "another process" in error.reason
    assert repository.asked == []
