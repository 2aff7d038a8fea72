"""The download of a published file: complete and verified under its name, or not present.

Here belong the request, its attempts, and the meaning of their failures. Certificates and proxies are Python's own.
`jars` chooses the files. An address may contain a user and a password: messages only have its `shown_url`.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import ssl
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, build_opener, getproxies, proxy_bypass

from pipeline.delta.storage.local_files import replaced_file
from pipeline.errors import CacheFolderError, JarRefusedError, JarsUnavailableError, WrongJarError

PART = ".part"
# The waits between attempts, and the longest silence of a server.
WAITS_SECONDS = (0.5, 1.0, 2.0)
SILENCE_SECONDS = 30.0
CHUNK_BYTES = 1 << 16
# Statuses that may change soon: a timeout, too early, too many requests. All from 500 on may change too.
_TRANSIENT = frozenset({408, 425, 429})
_SERVER_ERROR = 500
# http.client reports a proxy's answer to CONNECT only in the text of an OSError.
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")
_HOST = re.compile(r"([\w.-]+(?::\d+)?|\[[\da-fA-F:.]+\](?::\d+)?)/?")
_PROXY_WANTS_USER = http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED
_ELSEWHERE = "or name another repository by PIPELINE_MAVEN_REPOSITORY"
_CERTIFICATES = f"Set SSL_CERT_FILE to a file with the certificate authorities of this network, {_ELSEWHERE}."
_PROXY = f"Name a proxy that allows it, by HTTPS_PROXY=http://user:password@host:port or NO_PROXY, {_ELSEWHERE}."
_REPOSITORY = (
    "Name a repository that has it and allows access, by PIPELINE_MAVEN_REPOSITORY=https://user:password@host/path."
)


@dataclass(frozen=True)
class Published:
    """The size and digest of a file, as published."""

    size: int
    sha256: str

    def is_at(self, path: Path) -> bool:
        """Whether the file at this path is the published one. Reads the file."""
        if path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == self.sha256


def shown_url(url: str) -> str:
    """The address without its user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def fetch(url: str, target: Path, published: Published, ends: float, progress: Callable[[int], None]) -> None:
    """Download the file, verify it and then rename it to its name. Transient failures are retried.

    Args:
        ends: the moment of `time.monotonic` at which to give up.
        progress: called with the number of bytes received so far.

    Raises:
        JarsUnavailableError: no answer, a failing server, or an incomplete transfer, at each attempt.
        JarRefusedError: the repository, or a proxy before it, refuses the file.
        WrongJarError: the received file is not the published one.
        CacheFolderError: the folder can't be written, or is full.
    """
    for wait in WAITS_SECONDS:
        try:
            return _attempt(url, target, published, ends, progress)
        except JarsUnavailableError:
            if time.monotonic() + wait > ends:
                raise
        time.sleep(wait)
    return _attempt(url, target, published, ends, progress)


def _attempt(url: str, target: Path, published: Published, ends: float, progress: Callable[[int], None]) -> None:
    count, digest = 0, hashlib.sha256()
    try:
        with (
            replaced_file(target, temporary=_part_of(target)) as part,
            closing(_chunks(url, target, published.size, ends)) as chunks,
        ):
            for chunk in chunks:
                count += len(chunk)
                digest.update(chunk)
                if count > published.size:
                    break
                part.write(chunk)
                progress(count)
            if digest.hexdigest() != published.sha256:
                raise WrongJarError(
                    jar=target.name, url=shown_url(url), expected=published.sha256, found=digest.hexdigest()
                )
    except OSError as error:  # an error of the disk: `_chunks` has translated those of the network
        raise CacheFolderError(folder=str(target.parent), reason=error.strerror or str(error)) from error


def _part_of(target: Path) -> str:
    """A name for a part of the file that no other process uses."""
    return f"{target.name}.{uuid.uuid4().hex}{PART}"


def _chunks(url: str, target: Path, size: int, ends: float) -> Generator[bytes, None, None]:
    """The bytes in pieces. Each read waits for one piece only, so that `ends` is kept on a slow connection."""
    received = 0
    try:
        with _opened(url) as answer:
            promised = _promised(answer.headers, size)
            while chunk := answer.read1(CHUNK_BYTES):
                received += len(chunk)
                yield chunk
                if time.monotonic() > ends:
                    raise TimeoutError
            if received < promised:
                raise _unavailable(url, target, f"it broke off after {received} of {promised} bytes")
    except HTTPError as error:
        error.close()
        raise _answered(url, target, error.code) from error
    except URLError as error:
        raise _not_reached(url, target, error.reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise _not_reached(url, target, error) from error


def _promised(headers: Message, size: int) -> int:
    """The least number of bytes to expect. An answer without a length ends with its connection, also if that fails."""
    length = headers.get("Content-Length", "").strip()
    if length.isdecimal():
        return int(length)
    return 0 if "Transfer-Encoding" in headers else size


def _opened(url: str) -> Any:
    """The answer of the server. The address's user and password go to that server alone, not after a redirect."""
    parts = urlsplit(url)
    request = Request(shown_url(url), headers={"User-Agent": "delta-first-pipeline"})  # noqa: S310  checked as a setting
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user).decode('ascii')}")
    try:
        return build_opener().open(request, timeout=SILENCE_SECONDS)
    except ValueError:  # the error's text repeats the address, which may contain a password
        raise http.client.InvalidURL from None


def _answered(url: str, target: Path, status: int) -> JarsUnavailableError | JarRefusedError:
    """The error of a status that is not a success."""
    phrase = http.client.responses.get(status, "unknown status")
    proxy = _proxy(url)
    through = f" through the proxy {proxy}" if proxy is not None else ""
    reason = f"HTTP {status} ({phrase}){through}"
    if status in _TRANSIENT or status >= _SERVER_ERROR:
        return _unavailable(url, target, reason)
    is_proxys = status == _PROXY_WANTS_USER or (status == http.HTTPStatus.FORBIDDEN and proxy is not None)
    advice = _PROXY if is_proxys else _REPOSITORY
    return JarRefusedError(jar=target.name, url=shown_url(url), reason=reason, advice=advice)


def _not_reached(url: str, target: Path, error: Any) -> JarsUnavailableError | JarRefusedError:
    """The error of a request without a complete answer. Its message repeats no text of a library or a server."""
    tunnel = _TUNNEL.search(str(error)) if isinstance(error, OSError) else None
    if tunnel is not None:
        return _answered(url, target, int(tunnel[1]))
    refused = None
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = (f"its certificate is not trusted ({error.verify_message})", _CERTIFICATES)
    elif isinstance(error, http.client.InvalidURL):
        refused = ("its address, or that of the proxy, can't be read", _PROXY)
    elif url.startswith("file:") and isinstance(error, OSError):
        refused = (error.strerror or "it can't be read", _REPOSITORY)
    if refused is not None:
        return JarRefusedError(jar=target.name, url=shown_url(url), reason=refused[0], advice=refused[1])
    proxy = _proxy(url)
    through = f", through the proxy {proxy}" if proxy is not None else ""
    return _unavailable(url, target, f"{_words(error)}{through}")


def _words(error: Any) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long to answer"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "it broke off, or its answer is not HTTP"
    return str(getattr(error, "strerror", None) or "the connection failed")


def _unavailable(url: str, target: Path, reason: str) -> JarsUnavailableError:
    return JarsUnavailableError(jar=target.name, cache=str(target.parent), url=shown_url(url), reason=reason)


def _proxy(url: str) -> str | None:
    """The host of the proxy for an address. If it is reached directly, None."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or (parts.hostname and proxy_bypass(parts.netloc.rpartition("@")[2])):
        return None
    host = _HOST.fullmatch(proxy.partition("://")[2].rpartition("@")[2])
    return host[1] if host is not None else "that is set"
