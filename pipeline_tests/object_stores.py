"""An S3 server on loopback for tests, with its buckets and a count of the requests that it gets."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from pipeline.delta.storage.file_system import file_system, write_file
from pipeline.delta.storage.object_stores import in_parallel
from pipeline.delta.storage.options import use_confs

KEY, SECRET = "test-key", "test-secret"


@dataclass
class Bucket:
    """A bucket of a server."""

    name: str
    endpoint: str
    requests: list[str] = field(default_factory=list)

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


def unreachable_bucket() -> str:
    """The URI of a bucket whose endpoint does not answer."""
    conf = "spark.hadoop.fs.s3a.bucket.away."
    use_confs({f"{conf}endpoint": "http://127.0.0.1:1", f"{conf}access.key": KEY, f"{conf}secret.key": SECRET})
    return "s3a://away"


@contextlib.contextmanager
def served_bucket(*, ignores_conditions: bool = False) -> Iterator[Bucket]:
    """A new bucket on a server of its own."""
    bucket = Bucket(f"bucket-{uuid.uuid4().hex[:8]}", "")

    class Counting(MotoRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            bucket.requests.append(f"{self.command} {self.path} {code}")

        def make_environ(self) -> dict[str, Any]:
            environ: dict[str, Any] = super().make_environ()
            if ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            return environ

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Counting)
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
