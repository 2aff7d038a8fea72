"""Servers on loopback for S3, Azure and GCS, with their buckets, the requests that they get, and faults on demand.

The server for S3 is a Python package. That for Azure is `azurite`, of npm, and that for GCS `fake-gcs-server`, of Go:
they are on the PATH or are installed once into the cache folder.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import json
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from pipeline.delta.storage.file_system import file_system, list_files, missing_files, read_file, write_file
from pipeline.delta.storage.object_stores import in_parallel
from pipeline.delta.storage.options import use_confs
from pipeline_tests.conftest import free_port
from pipeline_tests.relay import Relay, for_fake_gcs, relayed

KEY, SECRET = "test-key", "test-secret"
# Names of files that a client could change. Azurite does not list the last under its own name.
NAMES = ("plain", "a b", "a%20b", "a#b", "a?b", "a+b", "a&b=c", "äö", "x~y'\"*", "100%", "a\\b")
STORES = ("local", "s3", "azure", "gcs")
# The path of a request for the entry of a log.
LOG_ENTRY = r"_delta_log/\d{20}\.json"
AZURITE = "azurite@3.35.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
# The account of azurite, which its documentation publishes.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-12-02"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05


class Requests(list[str]):
    """Requests in the order of their answers, and when these were given, in seconds of `time.monotonic`."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []

    def append(self, request: str) -> None:
        self.moments.append(time.monotonic())
        super().append(request)

    def clear(self) -> None:
        self.moments.clear()
        super().clear()


@dataclass
class Store:
    """A place for tables: a folder, or a bucket or container of a server.

    `hadoop` are the confs with which Spark, and the file systems of this process, reach it. `relay` is the relay before
    its server.
    """

    uri: str
    hadoop: Mapping[str, str]
    requests: Requests = field(default_factory=Requests)
    relay: Relay | None = None


class FaultKind(Enum):
    """What a server does with a request."""

    REFUSE = "it answers with a status and a code, and does nothing"
    RESET = "it resets the connection, and does nothing"
    LOSE_ANSWER = "it does what is asked, and resets the connection before its answer"
    DELAY = "it waits, and then does what is asked"


@dataclass
class Fault:
    """What happens to the next requests of a method whose path matches: to each n-th with `every` n.

    `times` None: to all of them. `met` counts those to which it has happened. A refusal has this content, or else one
    with the code.
    """

    kind: FaultKind
    method: str = ""
    path: str = ""
    times: int | None = 1
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    every: int = 1
    content: str | None = None
    met: int = 0
    _matched: int = 0

    def takes(self, method: str, path: str) -> bool:
        """Whether it takes the request. It counts those that it has taken."""
        is_left = self.times is None or self.met < self.times
        matches = self.method in ("", method) and re.search(self.path, path) is not None
        self._matched += matches
        taken = is_left and matches and self._matched % self.every == 0
        self.met += taken
        return taken


@dataclass
class Bucket:
    """A bucket of a server."""

    name: str
    endpoint: str
    requests: Requests = field(default_factory=Requests)
    faults: list[Fault] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault for a request, if any."""
        with self.lock:
            return next((fault for fault in self.faults if fault.takes(method, path)), None)

    @property
    def uri(self) -> str:
        return f"s3a://{self.name}"

    def upload(self, folder: Path, name: str) -> str:
        """Copy a folder into the bucket, and return the URI of the copy. Its requests are not counted."""
        uri = f"{self.uri}/{name}"
        files = [path for path in folder.rglob("*") if path.is_file()]
        in_parallel(lambda path: write_file(f"{uri}/{path.relative_to(folder)}", path.read_bytes()), files)
        self.requests.clear()
        return uri

    def delete(self, uri: str) -> None:
        """Delete one file."""
        system, path = file_system(uri)
        system.delete_file(path)

    def kinds(self) -> dict[str, int]:
        """The number of requests by kind."""
        return dict(Counter("LIST" if "list-type" in each else each.split()[0] for each in self.requests))

    @property
    def hadoop(self) -> dict[str, str]:
        """The confs with which Spark, and the file systems of this process, reach the bucket."""
        ours = f"spark.hadoop.fs.s3a.bucket.{self.name}"
        return {
            f"{ours}.access.key": KEY, f"{ours}.secret.key": SECRET, f"{ours}.endpoint": self.endpoint,
            f"{ours}.endpoint.region": "us-east-1", f"{ours}.path.style.access": "true",
        }  # fmt: skip

    @property
    def delta_rs(self) -> Mapping[str, str]:
        """The options of delta-rs for the bucket."""
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip


AnyStore = Store | Bucket


def require_exact_name(store: AnyStore, name: str) -> None:
    """Assert that a file with this name is written, listed and read under it, byte by byte."""
    folder = f"{store.uri}/names/{NAMES.index(name)}"
    write_file(f"{folder}/{name}", name.encode())
    assert read_file(f"{folder}/{name}") == name.encode()
    assert [(file.name, file.size) for file in list_files(folder)] == [(name, len(name.encode()))]
    assert missing_files(folder, [name, "other"]) == ("other",)


def require_single_requests(store: AnyStore) -> None:
    """Assert that writing, reading and listing a small file are one request each."""
    store.requests.clear()
    write_file(f"{store.uri}/small/file", b"1")
    assert read_file(f"{store.uri}/small/file") == b"1"
    assert [file.name for file in list_files(f"{store.uri}/small")] == ["file"]
    assert [request.split()[0] for request in store.requests] == ["PUT", "GET", "GET"]


def require_parts_of_a_file(store: AnyStore) -> None:
    """Assert that a large file is opened by one request whose bytes are used, and each other part read by one."""
    content = bytes(range(256)) * 12_000
    system, path = file_system(f"{store.uri}/parts/large")
    write_file(f"{store.uri}/parts/large", content)
    store.requests.clear()
    with system.open_input_file(path) as file:
        assert (file.size(), file.read(4)) == (len(content), content[:4])
        assert [request.split()[0] for request in store.requests] == ["GET"]
        file.seek(len(content) - 4)
        assert file.read(4) == content[-4:]
        file.seek(len(content) - 70_000)
        assert file.read() == content[-70_000:]
        file.seek(2**20 - 10)
        assert file.read(20) == content[2**20 - 10 : 2**20 + 10]
    assert [request.split()[0] for request in store.requests] == ["GET"] * 3
    for size in (0, 1, 2**20):
        write_file(f"{store.uri}/parts/{size}", b"x" * size)
        store.requests.clear()
        with system.open_input_file(path.replace("large", str(size))) as file:
            assert file.read() == b"x" * size
        assert [request.split()[0] for request in store.requests] == ["GET"] * (1 if size else 2)


def unreachable_bucket() -> str:
    """The URI of a bucket whose endpoint does not answer."""
    conf = "spark.hadoop.fs.s3a.bucket.away."
    use_confs({f"{conf}endpoint": "http://127.0.0.1:1", f"{conf}access.key": KEY, f"{conf}secret.key": SECRET})
    return "s3a://away"


class _Handler(MotoRequestHandler):
    """Counts the requests, and lets the faults of its bucket happen."""

    bucket: Bucket
    ignores_conditions = False

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.bucket.requests.append(f"{self.command} {self.path} {code}")

    def run_wsgi(self) -> None:
        fault = self.bucket.fault(self.command, self.path)
        if fault is None:
            super().run_wsgi()
        elif fault.kind is FaultKind.DELAY:
            time.sleep(fault.seconds)
            super().run_wsgi()
        else:
            self._fail(fault)

    def _fail(self, fault: Fault) -> None:
        answer, self.wfile = self.wfile, io.BytesIO()
        if fault.kind is FaultKind.LOSE_ANSWER:
            super().run_wsgi()
        self.wfile = answer
        if fault.kind is FaultKind.REFUSE:
            self._refuse(fault)
        else:
            self.log_request(fault.kind.name)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
        self.close_connection = True

    def _refuse(self, fault: Fault) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        refused = f"<Error><Code>{fault.code}</Code><Message>refused</Message></Error>"
        body = (refused if fault.content is None else fault.content).encode()
        self.send_response(fault.status)
        self.send_header("content-type", "application/xml")
        self.send_header("connection", "close")  # or the client's next request may fail on a connection that is gone
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def make_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().make_environ()
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        return environ


@contextlib.contextmanager
def served_bucket(*, ignores_conditions: bool = False) -> Iterator[Bucket]:
    """A new bucket on a server of its own."""
    bucket = Bucket(f"bucket-{uuid.uuid4().hex[:8]}", "")

    handler = type("Handler", (_Handler,), {"bucket": bucket, "ignores_conditions": ignores_conditions})
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    bucket.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        urlopen(Request(f"{bucket.endpoint}/{bucket.name}", method="PUT"), timeout=30).close()
        bucket.requests.clear()
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def served_store(kind: str, folder: Path, cache: Path) -> Iterator[AnyStore]:
    """A new and empty store of a kind, with its account in use. If its server can't be had, the test is skipped.

    Args:
        folder: of the test, for the local store.
        cache: in which servers are installed.
    """
    if kind == "local":
        yield Store(str(folder / "store"), {})
        return
    served = {"s3": served_bucket, "azure": lambda: served_container(cache), "gcs": lambda: served_gcs_bucket(cache)}
    with served[kind]() as store:
        use_confs(store.hadoop)
        yield store


@contextlib.contextmanager
def served_container(cache: Path) -> Iterator[Store]:
    """A new container of Azure, with a flat namespace, on a server of its own."""
    program, requests, port = azurite(cache), Requests(), free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry", "--skipApiVersionCheck"]
    with relayed(requests) as relay, _running([program, *options, "--inMemoryPersistence"], port):
        relay.target, public = port, relay.server_port
        container, host = f"container-{uuid.uuid4().hex[:8]}", f"{_ACCOUNT}.dfs.core.windows.net"
        confs = {
            "abfs.endpoint": f"127.0.0.1:{public}", f"account.key.{host}": _ACCOUNT_KEY,
            "fns.account.service.type": "BLOB", "account.hns.enabled": "false", "always.use.https": "false",
            "networking.library": "JDK_HTTP_URL_CONNECTION",
        }  # fmt: skip
        hadoop = {f"spark.hadoop.fs.azure.{name}": text for name, text in confs.items()}
        _make_container(public, container)
        requests.clear()
        yield Store(f"abfs://{container}@{host}", hadoop, requests, relay)


def _make_container(port: int, name: str) -> None:
    """Create a container, with a request that is signed by the account's key."""
    date = formatdate(usegmt=True)
    signed = f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + signed
    digest = hmac.new(base64.b64decode(_ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date, "x-ms-version": _VERSION, "Content-Length": "0",
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
    }  # fmt: skip
    url = f"http://127.0.0.1:{port}/{_ACCOUNT}/{name}?restype=container"
    urlopen(Request(url, method="PUT", headers=headers), timeout=30).close()


@contextlib.contextmanager
def served_gcs_bucket(cache: Path) -> Iterator[Store]:
    """A new bucket of GCS on a server of its own."""
    program, requests, port = fake_gcs_server(cache), Requests(), free_port()
    with relayed(requests, for_fake_gcs) as relay:
        relay.target, address = port, f"127.0.0.1:{relay.server_port}"
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        with _running([program, *options, "-public-host", address, "-external-url", f"http://{address}"], port):
            name = f"bucket-{uuid.uuid4().hex[:8]}"
            body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
            urlopen(Request(f"http://{address}/storage/v1/b?project=test", body, headers), timeout=30).close()
            requests.clear()
            # The server can't move an object; without this conf an object is copied and deleted.
            confs = {
                "storage.root.url": f"http://{address}/", "auth.type": "UNAUTHENTICATED", "project.id": "test",
                "operation.move.enable": "false",
            }  # fmt: skip
            hadoop = {f"spark.hadoop.fs.gs.{conf}": text for conf, text in confs.items()}
            yield Store(f"gs://{name}", hadoop, requests, relay)


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[None]:
    """A server that accepts connections on a port for as long as the block runs."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + _START_SECONDS
        while not _accepts(port):
            assert process.poll() is None, f"{command[0]} has ended with {process.returncode}"
            assert time.monotonic() < ends, f"{command[0]} does not answer"
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def azurite(cache: Path) -> str:
    """The program of the server for Azure. If it is not installed and can't be, the test is skipped."""
    folder = cache / "servers" / "azurite"
    target = folder / "node_modules" / ".bin" / "azurite-blob"
    return _program("azurite-blob", target, ["npm", "install", "--no-save", "--prefix", str(folder), AZURITE], {})


def fake_gcs_server(cache: Path) -> str:
    """The program of the server for GCS. If it is not installed and can't be, the test is skipped."""
    folder = cache / "servers" / "gcs"
    return _program("fake-gcs-server", folder / "fake-gcs-server", ["go", "install", FAKE_GCS], {"GOBIN": str(folder)})


def _program(name: str, target: Path, install: Sequence[str], environment: Mapping[str, str]) -> str:
    """A program of the PATH, or of the cache folder, into which it is installed if it is not there."""
    on_path = shutil.which(name)
    if on_path is not None:
        return on_path
    if not target.is_file():
        if shutil.which(install[0]) is None:
            pytest.skip(f"neither {name} nor {install[0]}, which installs it, is on the PATH")
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(install, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{name} can't be installed: {done.stderr[-400:]}")
    return str(target)
