"""The two tiers, the one JVM of the test process, sessions over it, folders, and the rule that `unit/` starts none.

Every test belongs to the tier `full`. The tier `quick`, which runs unless another is asked for, leaves out what is
marked `exhaustive`, and the Connect half of a test that is not marked `both_modes`.

The driver also serves Spark Connect on a loopback port, so that both modes share one JVM and its warmth. A test that
asks for `spark` has a variant for each mode; the mode is a parameter of the whole session, so that pytest runs all
tests of one mode before the first of the other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_settings
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.delta.server.serve import PLUGIN
from pipeline.delta.spark.confs import confs
from pipeline.delta.spark.own_classes import RELATION_PLUGINS, REQUESTS
from pipeline.delta.spark.session import is_connect, open_session
from pipeline.settings import Settings, SparkSettings, load_settings

TESTS = Path(__file__).parent
# A test that wants a warm server says so.
os.environ["PIPELINE_WARM"] = "never"
# How long an example takes says how busy the machine is; no property is one of time.
property_settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
property_settings.load_profile("untimed")
MODES = ("classic", "connect")
# A JVM that lives for a test or two compiles once and lightly; that of the whole process pays for more, and is quicker
# from its fifth minute.
# With one compiler, Java reserves 48 MB for compiled code, which Spark fills: from then on nothing is compiled.
BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
# A heap that need not grow first, and that is collected half as often: a merge takes a twelfth less.
LASTING_JVM = "-XX:+UseSerialGC -Xms1g -Xmn512m"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak N` makes the long tests of the tier full N times as long."""
    parser.addoption(
        "--soak", type=int, default=1, metavar="N", help="make the long tests of the tier full N times as long"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `soak_seed` runs once for each of its `soaked` seeds."""
    marker = metafunc.definition.get_closest_marker("soaked")
    if marker is not None:
        metafunc.parametrize("soak_seed", range(marker.args[0] * metafunc.config.getoption("--soak")))


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> int:
    """How many times as long a long test is to be."""
    return int(request.config.getoption("--soak"))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder what needs Spark, and by its own marks which tier a test belongs to."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in ("unit", "test_architecture.py"):
            item.add_marker(pytest.mark.jvm)
        item.add_marker(pytest.mark.full)
        if is_quick(item):
            item.add_marker(pytest.mark.quick)


def is_quick(item: pytest.Item) -> bool:
    """Whether a test runs in the quick tier."""
    if item.get_closest_marker("exhaustive") is not None:
        return False
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    over_connect = "connect" in (parameters.get("spark"), parameters.get("spark_resource"))
    return not over_connect or item.get_closest_marker("both_modes") is not None


@pytest.fixture(autouse=True)
def _no_jvm_in_unit(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test that starts a JVM fails, even if it would pass."""
    before = SparkContext._gateway
    yield
    if "unit" in request.node.path.relative_to(TESTS).parts:
        assert SparkContext._gateway is before, "a test under unit/ started a JVM"


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> SparkSettings:
    """Settings of the test process's driver, which also serves Connect on a loopback port."""
    port = free_port()
    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = replace(load_settings(start=TESTS.parent).spark, master="local[2]", remote=None)
    own = confs(settings, [])
    conf = (
        ("spark.connect.grpc.binding.address", "127.0.0.1"),
        ("spark.connect.grpc.binding.port", str(port)),
        ("spark.driver.extraJavaOptions", f"{own['spark.driver.extraJavaOptions']} {LASTING_JVM}"),
        ("spark.plugins", PLUGIN),
        (RELATION_PLUGINS, REQUESTS),
        ("spark.sql.warehouse.dir", str(warehouse)),
    )
    return replace(settings, conf=conf)


@pytest.fixture(scope="session")
def classic(spark_settings: SparkSettings) -> Iterator[SparkSession]:
    """The process's classic session."""
    session = open_session(spark_settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def remote_url(classic: SparkSession, spark_settings: SparkSettings) -> str:
    """Where the driver serves Connect."""
    return f"sc://127.0.0.1:{dict(spark_settings.conf)['spark.connect.grpc.binding.port']}"


def brief_conf(settings: SparkSettings) -> tuple[tuple[str, str], ...]:
    """The confs of a JVM that a test starts for a child of its own."""
    name = "spark.driver.extraJavaOptions"
    return ((name, f"{dict(settings.conf)[name]} {BRIEF_JVM}"),)


def connect(remote_url: str) -> SparkSession:
    """A further Connect session."""
    with connect_mode():
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        session: Any = ConnectSession.builder.remote(remote_url).create()
    return session


def close(session: Any) -> None:
    """Give a Connect session's state on the server back and close its channel."""
    if not session.client.is_closed:
        session.client.release_session()
        session.client.close()


class connect_mode:  # noqa: N801  used like a function
    """`pyspark.sql.functions` makes Connect columns inside this block."""

    def __enter__(self) -> None:
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"

    def __exit__(self, *_: object) -> None:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


@pytest.fixture(scope="session", params=MODES)
def spark(request: pytest.FixtureRequest, classic: SparkSession) -> Iterator[SparkSession]:
    """A session of each mode in turn; the same test must hold in both.

    A Connect session lives until the mode changes: a test of `open_session` may have been handed it, and ended it.
    """
    if request.param == "classic":
        yield classic
        return
    session = connect(request.getfixturevalue("remote_url"))
    yield session
    close(session)


@pytest.fixture(autouse=True)
def _functions_follow_the_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a test of a Connect session `pyspark.sql.functions` makes Connect columns, in any other classic ones.

    And the session of the test is the active one, as a user's only one is: a test before may have made a clone active,
    or ended the one that was. A test that leaves a view in the classic session fails: all tests share that session.
    """
    name = next((name for name in ("spark", "classic") if name in request.fixturenames), None)
    session: Any = request.getfixturevalue(name) if name is not None else None
    if session is None:
        yield
    elif is_connect(session):
        with connect_mode():
            from pyspark.sql.connect.session import SparkSession as ConnectSession

            ConnectSession._active_session.session = session
            yield
    else:
        SparkSession._activeSession = session
        SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        yield
        names = session._jsparkSession.sessionState().catalog().getTempViewNames()
        assert names.isEmpty(), f"the test left views in the session: {names.mkString(', ')}"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root of this test's own."""
    return str(tmp_path / "tables")


@pytest.fixture
def settings(tmp_path: Path, root: str, spark_settings: SparkSettings) -> Settings:
    """Settings for a root and a landing folder of this test's own."""
    return Settings(project=tmp_path, root=root, landing=str(tmp_path / "landing"), spark=spark_settings)
