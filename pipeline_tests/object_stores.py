"""An S3 server on loopback for tests, with its buckets, a count of the requests that it gets, and faults on demand."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock, Thread
from typing import Any
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from pipeline.delta.storage.options import use_confs

KEY, SECRET = "test-key", "test-secret"


class FaultKind(Enum):
    """What a server does with a request."""

    REFUSE = "it answers with a status and a code, and does nothing"
    RESET = "it resets the connection, and does nothing"
    LOSE_ANSWER = "it does what is asked, and resets the connection before its answer"
    DELAY = "it waits, and then does what is asked"


@dataclass
class Fault:
    """What happens to the next requests of a method whose path matches; `times` None: to all of them."""

    kind: FaultKind
    method: str = ""
    path: str = ""
    times: int | None = 1
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    met: int = 0

    def takes(self, method: str, path: str) -> bool:
        """Whether it takes the request. It counts those that it has taken."""
        is_left = self.times is None or self.met < self.times
        taken = is_left and self.method in ("", method) and re.search(self.path, path) is not None
        self.met += taken
        return taken


@dataclass
class Bucket:
    """A bucket of a server."""

    name: str
    endpoint: str
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault for a request, if any."""
        with self.lock:
            return next((fault for fault in self.faults if fault.takes(method, path)), None)

    @property
    def uri(self) -> str:
        return f"s3a://{self.name}"

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
        body = f"<Error><Code>{fault.code}</Code><Message>refused</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("content-type", "application/xml")
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
