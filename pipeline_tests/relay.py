"""A relay before a server on loopback, which notes each request and may change its method and path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlencode

# A function from a method, a path and the headers to the method and path that the server gets.
Change = Callable[[str, str, Mapping[str, str]], tuple[str, str]]
_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})
_SECONDS = 60


def unchanged(method: str, path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """The request as it is."""
    return method, path


def for_fake_gcs(method: str, path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """What fake-gcs-server lacks of Google's interfaces, by what it has.

    A PUT of the XML interface becomes a simple upload, with its condition. A resumable upload begins at another path.
    """
    path = path.removeprefix("/resumable")
    if method != "PUT" or path.startswith(("/upload/", "/storage/")):
        return method, path
    bucket, _, key = path.partition("?")[0].lstrip("/").partition("/")
    query = {"uploadType": "media", "name": unquote(key)}
    generation = headers.get("x-goog-if-generation-match")
    if generation is not None:
        query["ifGenerationMatch"] = generation
    return "POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"


class Relay(ThreadingHTTPServer):
    """The relay; it answers once `target`, the port of its server, is set. It notes `METHOD path status`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, requests: list[str], change: Change) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests, self.change, self.target = requests, change, 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Relay

    def relay(self) -> None:
        method, path = self.server.change(self.command, self.path, self.headers)
        answer, content = self._asked(method, path, self._body())
        self.server.requests.append(f"{self.command} {self.path} {answer.status}")
        self.send_response_only(answer.status, answer.reason)
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if self.command == "PUT" and method != "PUT":
            headers.setdefault("etag", '"unknown"')  # the client requires one
        length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(content))
        for name, value in headers.items():
            if name not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _asked(self, method: str, path: str, body: bytes) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.target, timeout=_SECONDS)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_ONE_CONNECTION:
                    connection.putheader(name, value)
            if body or method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer, answer.read()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_PATCH = relay  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are noted."""


@contextlib.contextmanager
def relayed(requests: list[str], change: Change = unchanged) -> Iterator[Relay]:
    """A relay that runs for as long as the block does."""
    relay = Relay(requests, change)
    thread = Thread(target=relay.serve_forever, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        thread.join()
        relay.server_close()
