"""Confs reach the JVM by a file that nobody else can read, and rank as they would on its command line."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.spark import launch
from pipeline.delta.spark.launch import as_properties, environment, java_options, start_jvm, with_properties

SECRET = "s3cret-of-a-conf"
FILE = Path("/private/spark.properties")
OURS = ["--properties-file", str(FILE)]


class Java:
    """In the place of pyspark's context: what there is to see when a JVM is started."""

    _gateway = None

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.text = ""
        self.modes: list[int] = []
        self.options: list[str] = []
        self.fails = False

    def _ensure_initialized(self) -> None:
        self.arguments = launch.shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        file = Path(self.arguments[1])
        self.text = file.read_text(encoding="ascii")
        files = sorted(path for path in file.parent.iterdir() if path != file)
        self.modes = [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file, *files)]
        self.options = [path.read_text(encoding="utf-8") for path in files]
        if self.fails:
            raise RuntimeError


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Java:
    found = Java()
    monkeypatch.setattr(launch, "SparkContext", found)
    monkeypatch.setattr(launch, "_GIVEN", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return found


def read(text: str) -> dict[str, str]:
    """What Java reads from a properties file of ours: one entry a line, by the rules of `Properties.load`."""
    found = {}
    for line in text.splitlines():
        name, value = re.fullmatch(r"((?:[^\\=]|\\.)*)=(.*)", line).groups()  # type: ignore[union-attr]
        found[unescaped(name)] = unescaped(value)
    return found


def unescaped(text: str) -> str:
    controls = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}

    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else controls.get(match[2], match[2])

    units = re.sub(r"\\(?:u([0-9a-f]{4})|(.))", character, text)
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_every_name_and_value_comes_back_from_the_properties_file(confs: dict[str, str]) -> None:
    assert read(as_properties(confs).decode("ascii")) == confs


def test_confs_stand_in_no_argument_and_no_variable_and_the_file_is_its_users_alone_and_gone_afterwards(
    java: Java, tmp_path: Path
) -> None:
    start_jvm({"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.driver.memory": "1g"})
    assert [re.sub(r".*\.properties", "FILE", argument) for argument in java.arguments] == [
        "--properties-file", "FILE", "--load-spark-defaults", "pyspark-shell",
    ]  # fmt: skip
    assert read(java.text) == {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.driver.memory": "1g"}
    assert java.modes == [0o700, 0o600]
    assert list(tmp_path.iterdir()) == []
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_options_of_the_jvm_are_in_a_file_of_their_own_which_is_named_in_their_place(java: Java) -> None:
    start_jvm({"spark.driver.extraJavaOptions": f"-Da={SECRET} '-Db=c d'"})
    (named,) = read(java.text).values()
    assert re.fullmatch(r'"@.*/pipeline-spark-[^/]*/java\.options"', named)
    assert java.options == [f'"-Da={SECRET}"\n"-Db=c d"\n']
    assert java.modes == [0o700, 0o600, 0o600]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        (" -a  -b\t-c ", ["-a", "-b", "-c"]),
        ("""-a='b c'"d e"f""", ["-a=b cd ef"]),
        (r"""-a=\"b\ c '\' "\\" """, ['-a="b c', "\\", "\\"]),
        ("''", [""]),
        ("-Xmx1g -a", []),
        ("-a 'b", []),
        ('-a "b', []),
        ("-a \\", []),
    ],
)
def test_options_are_split_as_by_sparks_launcher_and_those_that_it_refuses_are_left_to_it(
    text: str, options: list[str]
) -> None:
    assert java_options(text) == options


@pytest.mark.parametrize("how", ["the JVM fails", "a file that is not there"])
def test_a_start_that_fails_leaves_no_file(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    java.fails = True
    if how != "the JVM fails":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--properties-file nowhere pyspark-shell")
    with pytest.raises(RuntimeError if how == "the JVM fails" else FileNotFoundError):
        start_jvm({"spark.a": SECRET})
    assert list(tmp_path.iterdir()) == []


def test_a_jvm_that_is_there_is_not_started_again(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    start_jvm({"spark.a": SECRET})
    assert java.arguments == []


def test_a_conf_that_the_jvm_has_from_the_file_need_not_be_set_by_a_call(
    java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "--conf spark.a=theirs -c spark.b=theirs --conf=spark.c=theirs --name x pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", named)
    confs = {"spark.a": "1", "spark.b": "1", "spark.c": "1", "spark.key": SECRET, "fs.without.prefix": SECRET}
    assert start_jvm(confs) == {"spark.key"}
    monkeypatch.setattr(java, "_gateway", object())  # it runs
    assert start_jvm(confs) == {"spark.key"}
    assert start_jvm(confs | {"spark.key": "another"}) == set()


def test_calls_into_the_jvm_are_not_logged_with_their_values_unless_the_user_has_said_so(java: Java) -> None:
    calls = logging.getLogger("py4j")
    before = calls.level
    try:
        calls.setLevel(logging.NOTSET)
        start_jvm({})
        assert not logging.getLogger("py4j.clientserver").isEnabledFor(logging.DEBUG)
        calls.setLevel(logging.DEBUG)
        start_jvm({})
        assert logging.getLogger("py4j.clientserver").isEnabledFor(logging.DEBUG)
    finally:
        calls.setLevel(before)


def test_a_properties_file_of_the_users_comes_before_our_confs_in_the_one_that_is_handed_over(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "mine.conf"
    theirs.write_text("spark.a theirs\nspark.b theirs\\", encoding="utf-8")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--name x --properties-file {theirs} --conf spark.a=named pyspark-shell")
    start_jvm({"spark.a": "ours"})
    assert java.text == "spark.a theirs\nspark.b theirs\\\n\nspark\\.a=ours\n"
    assert java.arguments[2:] == ["--name", "x", "--conf", "spark.a=named", "pyspark-shell"]


@pytest.mark.parametrize(
    ("given_arguments", "arguments", "theirs"),
    [
        (["pyspark-shell"], ["--load-spark-defaults", "pyspark-shell"], None),
        (["--load-spark-defaults", "pyspark-shell"], ["--load-spark-defaults", "pyspark-shell"], None),
        (["--properties-file", "a b", "pyspark-shell"], ["pyspark-shell"], "a b"),
        (["--properties-file=a", "--master", "local", "pyspark-shell"], ["--master", "local", "pyspark-shell"], "a"),
        (["--properties-file", "a", "--properties-file=b", "pyspark-shell"], ["pyspark-shell"], "b"),
        (
            ["--load-spark-defaults", "--properties-file", "a", "pyspark-shell"],
            ["--load-spark-defaults", "pyspark-shell"],
            "a",
        ),
    ],
)
def test_the_users_own_arguments_stay_and_of_properties_files_there_is_one(
    given_arguments: list[str], arguments: list[str], theirs: str | None
) -> None:
    assert with_properties(given_arguments, FILE) == (OURS + arguments, theirs)


def test_what_a_killed_process_left_goes_with_the_next_start_and_what_another_holds_stays(
    java: Java, tmp_path: Path
) -> None:
    left, held, others = (tmp_path / name for name in ("pipeline-spark-left", "pipeline-spark-held", "others"))
    for folder in (left, held, others):
        folder.mkdir(mode=0o700)
        (folder / "spark.properties").write_text(SECRET, encoding="ascii")
    (tmp_path / "pipeline-spark-link").symlink_to(others)
    holder = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        start_jvm({"spark.a": "b"})
    finally:
        os.close(holder)
    assert {path.name for path in tmp_path.iterdir()} == {"pipeline-spark-held", "others", "pipeline-spark-link"}
    assert (others / "spark.properties").exists()
    start_jvm({"spark.a": "b"})
    assert {path.name for path in tmp_path.iterdir()} == {"others", "pipeline-spark-link"}


def test_the_environment_is_as_it_was_when_the_block_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NAME", "before")
    monkeypatch.delenv("OTHER_NAME", raising=False)
    with pytest.raises(ValueError), environment(SOME_NAME=None, OTHER_NAME="in"):  # noqa: PT011, PT012
        assert ("SOME_NAME" in os.environ, os.environ["OTHER_NAME"]) == (False, "in")
        raise ValueError
    assert (os.environ["SOME_NAME"], "OTHER_NAME" in os.environ) == ("before", False)
