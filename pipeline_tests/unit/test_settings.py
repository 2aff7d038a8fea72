"""Names, defaults, precedence and validation of what an operator may set."""

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SettingsError
from pipeline.settings import Settings, SparkSettings, find_project, load_settings, setting_names, shown_remote
from pipeline_tests.children import loading


def write_project(folder: Path, table: str = "", raw: str | None = None) -> Path:
    """A project folder whose [tool.pipeline] holds `table`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"[tool.pipeline]\n{table}\n" if raw is None else raw
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def read(home: Path, start: Path, **environ: str) -> Settings:
    return load_settings({"HOME": str(home)} | environ, start)


def refused(home: Path, start: Path, **environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read(home, start, **environ)
    return caught.value


def value_of(settings: Settings, name: str) -> object:
    """A setting by its name, wherever it stands."""
    return getattr(settings if hasattr(settings, name) else settings.spark, name)


# --- the project ------------------------------------------------------------------------------------------------------


def test_the_project_is_the_nearest_folder_above_with_a_pyproject(tmp_path: Path) -> None:
    write_project(tmp_path / "outer")
    inner = write_project(tmp_path / "outer" / "inner")
    deep = inner / "a" / "b"
    deep.mkdir(parents=True)
    assert find_project(deep) == inner
    assert find_project(inner) == inner
    assert find_project(tmp_path / "outer") == tmp_path / "outer"


def test_without_a_pyproject_the_project_is_where_the_search_began(tmp_path: Path, home: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()  # a folder of that name is no project file
    start = tmp_path / "bare"
    start.mkdir()
    assert find_project(start) == start
    assert read(home, start).project == start


# --- defaults ---------------------------------------------------------------------------------------------------------


def test_every_default_is_the_documented_one(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project")
    assert read(home, project) == Settings(
        project=project,
        root=str(project / ".pipeline" / "tables"),
        landing=str(project / ".pipeline" / "landing"),
        datasets=None,
        catalog=None,
        vacuum="dry",
        running=(),
        local_frame_max_bytes=1_073_741_824,
        spark=SparkSettings(
            master="local[*]",
            remote=None,
            driver_memory="2g",
            cache=home / ".cache" / "delta-first-pipeline",
            maven_repository=None,
            conf=(),
        ),
    )


def test_a_pyproject_without_our_table_gives_the_defaults(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", raw='[project]\nname = "other"\n[tool.other]\nroot = "x"\n')
    assert read(home, project) == read(home, write_project(project))


def test_settings_can_not_be_changed_afterwards(tmp_path: Path, home: Path) -> None:
    settings = read(home, tmp_path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.root = "x"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.spark.master = "x"  # type: ignore[misc]


# --- precedence -------------------------------------------------------------------------------------------------------

SIMPLE = {
    "root": ("s3a://project/root", "s3a://environment/root"),
    "landing": ("s3a://project/landing", "s3a://environment/landing"),
    "warm": ("never", "require"),
    "datasets": ("project.tables:datasets", "environment.tables:datasets"),
    "catalog": ("project", "environment.schema"),
    "vacuum": ("dry", "apply"),
    "master": ("local[3]", "spark://127.0.0.1:7077"),
    "driver_memory": ("3g", "512m"),
    "maven_repository": ("https://project/maven", "https://environment/maven"),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_the_environment_wins_over_the_project_and_the_project_over_the_default(
    tmp_path: Path, home: Path, name: str
) -> None:
    of_project, of_environment = SIMPLE[name]
    variable = {f"PIPELINE_{name.upper()}": of_environment}
    project = write_project(tmp_path / "project", f'{name} = "{of_project}"')
    assert value_of(read(home, project), name) == of_project
    assert value_of(read(home, project, **variable), name) == of_environment
    assert value_of(read(home, tmp_path, **variable), name) == of_environment


@pytest.mark.parametrize(
    "variable", [{"CI": "true"}, {"SPARK_REMOTE": "sc://127.0.0.1"}, {"PIPELINE_MASTER": "local[*]"}], ids=str
)
def test_where_spark_is_given_or_in_ci_no_warm_server_is_started_unless_it_is_required(
    tmp_path: Path, home: Path, variable: dict[str, str]
) -> None:
    assert read(home, tmp_path, PIPELINE_WARM="auto").spark.warm == "auto"
    assert read(home, tmp_path, PIPELINE_WARM="auto", CI="false").spark.warm == "auto"
    assert read(home, tmp_path, PIPELINE_WARM="auto", **variable).spark.warm == "never"
    assert read(home, tmp_path, PIPELINE_WARM="require", **variable).spark.warm == "require"


def test_a_cache_folder_of_the_environment_wins_over_one_of_the_project(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", f'cache = "{tmp_path / "one"}"')
    assert read(home, project).spark.cache == tmp_path / "one"
    assert read(home, project, PIPELINE_CACHE=str(tmp_path / "two")).spark.cache == tmp_path / "two"


def test_one_setting_of_the_environment_leaves_the_others_to_the_project(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", 'root = "s3a://a"\nvacuum = "apply"')
    settings = read(home, project, PIPELINE_ROOT="s3a://b")
    assert (settings.root, settings.vacuum) == ("s3a://b", "apply")


def test_what_runs_is_a_list_in_the_project_and_names_with_commas_in_the_environment(
    tmp_path: Path, home: Path
) -> None:
    project = write_project(tmp_path / "project", 'running = ["checkpoint_daily", "table_versions"]')
    assert read(home, project).running == ("checkpoint_daily", "table_versions")
    assert read(home, project, PIPELINE_RUNNING="a, b,a").running == ("a", "b")
    assert read(home, write_project(tmp_path / "none", "running = []")).running == ()


def test_the_size_of_a_local_frame_is_a_number_in_both(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", "local_frame_max_bytes = 4_000")
    assert read(home, project).local_frame_max_bytes == 4000
    assert read(home, project, PIPELINE_LOCAL_FRAME_MAX_BYTES="5000").local_frame_max_bytes == 5000


def test_an_empty_variable_counts_as_not_set(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", 'vacuum = "apply"')
    settings = read(home, project, PIPELINE_VACUUM="", PIPELINE_ROOT="", SPARK_REMOTE="", XDG_CACHE_HOME="")
    assert settings == read(home, project)
    assert settings.vacuum == "apply"


def test_variables_of_others_are_not_looked_at(tmp_path: Path, home: Path) -> None:
    assert read(home, tmp_path, ROOT="x", PIPELINES_ROOT="x", SPARK_HOME="x") == read(home, tmp_path)


def test_spaces_around_a_value_do_not_count(tmp_path: Path, home: Path) -> None:
    assert read(home, tmp_path, PIPELINE_ROOT=" s3a://a \n").root == "s3a://a"


# --- unknown names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", ""])
def test_a_misspelt_variable_is_refused_with_the_near_one(tmp_path: Path, home: Path, value: str) -> None:
    error = refused(home, tmp_path, PIPELINE_ROOTS=value)
    assert error.setting == "PIPELINE_ROOTS"
    assert "PIPELINE_ROOT" in error.expected.split()
    assert "PIPELINE_VACUUM" not in error.expected


def test_a_misspelt_key_of_the_project_is_refused_with_the_near_one(tmp_path: Path, home: Path) -> None:
    error = refused(home, write_project(tmp_path / "project", 'vaccum = "dry"'))
    assert error.setting == "[tool.pipeline] vaccum"
    assert "vacuum" in error.expected.split()


def test_a_name_near_to_none_is_refused_with_all_the_known_ones(tmp_path: Path, home: Path) -> None:
    error = refused(home, write_project(tmp_path / "project", "zzz = 1"))
    known = [*SIMPLE, "cache", "spark_conf"]
    assert [name for name in known if name in error.expected] == known


def test_a_question_in_the_remedy_ends_as_a_question(tmp_path: Path, home: Path) -> None:
    error = refused(home, tmp_path, PIPELINE_ROOTS="x")
    assert ("did you mean" in error.remedy().lower()) == error.remedy().endswith("?")


def test_spark_confs_can_not_be_set_by_a_variable(tmp_path: Path, home: Path) -> None:
    assert refused(home, tmp_path, PIPELINE_SPARK_CONF="a=b").setting == "PIPELINE_SPARK_CONF"


def test_every_variable_that_is_listed_is_read(tmp_path: Path, home: Path) -> None:
    values = {"PIPELINE_" + name.upper(): environment for name, (_, environment) in SIMPLE.items()}
    values |= {"PIPELINE_CACHE": str(tmp_path / "cache"), "SPARK_REMOTE": "sc://127.0.0.1"}
    values |= {"PIPELINE_RUNNING": "a_schedule", "PIPELINE_LOCAL_FRAME_MAX_BYTES": "1"}
    assert sorted(setting_names()) == sorted(values)
    default = read(home, tmp_path)
    assert [name for name, value in values.items() if read(home, tmp_path, **{name: value}) == default] == []


# --- bad values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root", " "),
        ("catalog", " "),
        ("landing", "\t"),
        ("master", "  "),
        ("cache", " "),
        ("maven_repository", " "),
        ("vacuum", "yes"),
        ("vacuum", "Dry"),
        ("driver_memory", "2"),
        ("driver_memory", "g"),
        ("driver_memory", "2gb"),
        ("driver_memory", "1.5g"),
        ("driver_memory", "-1g"),
        ("driver_memory", "2 g"),
        ("driver_memory", "0g"),
        ("datasets", "package.module"),
        ("datasets", "package.module:"),
        ("datasets", ":datasets"),
        ("datasets", ".module:datasets"),
        ("datasets", "package/module.py:datasets"),
        ("datasets", "package.module:a:b"),
        ("datasets", "package.module:a.b"),
        ("running", " "),
        ("running", "a,,b"),
        ("local_frame_max_bytes", "0"),
        ("local_frame_max_bytes", "-1"),
        ("local_frame_max_bytes", "1g"),
    ],
)
def test_a_bad_value_of_a_variable_is_refused_with_the_variables_name(
    tmp_path: Path, home: Path, name: str, value: str
) -> None:
    error = refused(home, tmp_path, **{f"PIPELINE_{name.upper()}": value})
    assert error.setting == f"PIPELINE_{name.upper()}"
    assert repr(value) in error.problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root", "3"),
        ("catalog", "true"),
        ("root", '""'),
        ("root", '["a"]'),
        ("master", "true"),
        ("driver_memory", "2"),
        ("datasets", '["a.b:c"]'),
        ("vacuum", "true"),
        ("vacuum", '["dry"]'),
        ("running", "true"),
        ("running", "[1]"),
        ("running", '[""]'),
        ("local_frame_max_bytes", "0"),
        ("local_frame_max_bytes", "1.5"),
        ("local_frame_max_bytes", "true"),
        ("spark_conf", '"a=b"'),
        ("spark_conf", '["a"]'),
        ("spark_conf", '{"a" = ["b"]}'),
        ("spark_conf", "{spark.sql.shuffle = 1}"),
    ],
)
def test_a_bad_value_of_the_project_is_refused_with_the_keys_name(
    tmp_path: Path, home: Path, name: str, value: str
) -> None:
    error = refused(home, write_project(tmp_path / "project", f"{name} = {value}"))
    assert error.setting == f"[tool.pipeline] {name}"
    assert error.expected


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('{"spark.a" = "hush", "spark.b" = ["hush"]}', "spark.b has a value of type list"),
        ('{"spark.a" = "hush", spark.b.key = "hush"}', "spark has a value of type dict, as from a name with dots"),
        ('["hush"]', "got a value of type list"),
        ('"spark.a=hush"', "got a value of type str"),
    ],
)
def test_a_table_of_confs_that_is_refused_repeats_none_of_them(
    tmp_path: Path, home: Path, value: str, told: str
) -> None:
    error = refused(home, write_project(tmp_path / "project", f"spark_conf = {value}"))
    assert error.problem.startswith(told)
    assert "hush" not in str(error)


@pytest.mark.parametrize("name", ["root", "landing", "master", "cache", "maven_repository", "driver_memory"])
def test_what_is_no_text_is_not_repeated(tmp_path: Path, home: Path, name: str) -> None:
    error = refused(home, write_project(tmp_path / "project", f'{name} = ["https://me:hush@host"]'))
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    "arguments", [{"conf": {"spark.a": "hush"}}, {"remote": ["hush"]}, {"maven_repository": b"hush"}], ids=str
)
def test_settings_of_spark_tell_nothing_that_may_be_a_secret(arguments: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        SparkSettings(**arguments)
    assert "hush" not in str(caught.value)
    secret = SparkSettings(conf=(("spark.a", "hush"),), remote="sc://h/;token=hush", maven_repository="http://u:hush@h")
    assert "hush" not in repr(secret)


def test_a_bad_value_of_the_project_is_refused_though_the_environment_has_a_good_one(
    tmp_path: Path, home: Path
) -> None:
    project = write_project(tmp_path / "project", 'vacuum = "yes"')
    assert refused(home, project, PIPELINE_VACUUM="dry").setting == "[tool.pipeline] vacuum"


@pytest.mark.parametrize(("given", "stored"), [("2G", "2g"), ("512M", "512m"), ("1t", "1t")])
def test_memory_is_a_whole_number_and_a_unit_in_any_case(tmp_path: Path, home: Path, given: str, stored: str) -> None:
    assert read(home, tmp_path, PIPELINE_DRIVER_MEMORY=given).spark.driver_memory == stored


def test_spark_confs_are_texts_in_the_order_of_their_names(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "p", 'spark_conf = {"b.flag" = true, "c.no" = false, "a.n" = 4, "d" = "Text"}')
    expected = (("a.n", "4"), ("b.flag", "true"), ("c.no", "false"), ("d", "Text"))
    assert read(home, project).spark.conf == expected


def test_a_repository_of_sparks_that_holds_a_password_is_refused_without_it(tmp_path: Path, home: Path) -> None:
    value = '{"spark.jars.repositories" = "https://a.invalid,https://me:s3cret@b.invalid"}'
    error = refused(home, write_project(tmp_path / "project", f"spark_conf = {value}"))
    assert "spark.jars.repositories" in str(error)
    assert "s3cret" not in str(error)
    assert "spark.jars.ivySettings" in str(error)


def test_a_spark_conf_may_be_a_number_with_a_fraction(tmp_path: Path, home: Path) -> None:
    """As `spark.memory.fraction` is; the error's own text promises that numbers are taken."""
    project = write_project(tmp_path / "project", 'spark_conf = {"spark.memory.fraction" = 0.5}')
    assert read(home, project).spark.conf == (("spark.memory.fraction", "0.5"),)


# --- a broken pyproject.toml ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ["[tool.pipeline\n", "root = \n", "[tool.pipeline]\nroot = 'a'\nroot = 'b'\n"])
def test_broken_toml_is_refused_with_the_files_name(tmp_path: Path, home: Path, raw: str) -> None:
    project = write_project(tmp_path / "project", raw=raw)
    error = refused(home, project)
    assert error.setting == str(project / "pyproject.toml")
    assert error.problem
    assert isinstance(error.__cause__, ValueError)


def test_a_pyproject_that_is_not_utf8_is_refused_with_the_files_name(tmp_path: Path, home: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes('[tool.pipeline]\nroot = "größe"\n'.encode("latin-1"))
    assert refused(home, tmp_path).setting == str(tmp_path / "pyproject.toml")


@pytest.mark.parametrize("raw", ["tool = 3\n", "[tool]\npipeline = 3\n", '[[tool.pipeline]]\nroot = "a"\n'])
def test_a_tool_pipeline_that_is_no_table_is_refused(tmp_path: Path, home: Path, raw: str) -> None:
    assert refused(home, write_project(tmp_path / "project", raw=raw)).expected


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["root", "landing"])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3a://bucket/lake", "s3a://bucket/lake"),
        ("s3a://bucket/", "s3a://bucket"),
        ("abfss://c@account.dfs.core.windows.net/x/", "abfss://c@account.dfs.core.windows.net/x"),
        ("file:///lake/tables", "file:///lake/tables"),
        ("file:/lake/tables/", "file:/lake/tables"),
    ],
)
def test_a_uri_is_kept_but_for_a_slash_at_its_end(tmp_path: Path, home: Path, name: str, given: str, kept: str) -> None:
    settings = read(home, tmp_path, **{f"PIPELINE_{name.upper()}": given})
    assert value_of(settings, name) == kept


@pytest.mark.parametrize(
    ("given", "inside"), [("lake", "lake"), ("./lake/", "lake"), ("a/../lake/x", "lake/x"), ("sp ace", "sp ace")]
)
def test_a_relative_path_lies_in_the_project_wherever_the_command_is_started(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, given: str, inside: str
) -> None:
    project = write_project(tmp_path / "project", f'root = "{given}"\nlanding = "{given}"')
    below = project / "below"
    below.mkdir()
    monkeypatch.chdir(tmp_path)
    settings = read(home, below)
    assert (settings.root, settings.landing) == (str(project / inside), str(project / inside))


@pytest.mark.parametrize("name", ["root", "landing"])
@pytest.mark.parametrize(
    "uri",
    [
        "s3a://key:hush-hush@bucket/lake",
        "s3a://key:hush/hush-hush@bucket/lake",
        "s3a://hush-hush@bucket/lake",
        "abfss://user:hush-hush@account.dfs.core.windows.net/lake",
        "abfss://container@account.dfs.core.windows.net/lake?sv=1&sig=hush-hush",
        "https://account.blob.core.windows.net/lake?sig=hush-hush",
        "gs://bucket/lake#hush-hush",
    ],
)
def test_a_uri_with_a_secret_is_refused_and_the_secret_is_not_repeated(
    tmp_path: Path, home: Path, name: str, uri: str
) -> None:
    error = refused(home, tmp_path, **{f"PIPELINE_{name.upper()}": uri})
    assert name in error.setting.lower()
    assert "hush-hush" not in str(error)


def test_the_container_of_azure_s_storage_is_no_user(tmp_path: Path, home: Path) -> None:
    uri = "abfss://container@account.dfs.core.windows.net/lake"
    assert read(home, tmp_path, PIPELINE_ROOT=uri).root == uri


def test_a_uri_that_can_not_be_parsed_is_refused(tmp_path: Path, home: Path) -> None:
    assert "root" in refused(home, tmp_path, PIPELINE_ROOT="s3a://[bucket/lake").setting.lower()


def test_an_absolute_path_is_kept(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project")
    assert read(home, project, PIPELINE_ROOT=str(tmp_path / "lake")).root == str(tmp_path / "lake")


def test_a_tilde_is_the_home_of_the_environment_that_was_handed_in(tmp_path: Path, home: Path) -> None:
    settings = read(home, tmp_path, PIPELINE_ROOT="~/lake", PIPELINE_CACHE="~/cache")
    assert (settings.root, settings.spark.cache) == (str(home / "lake"), home / "cache")


def test_a_relative_cache_lies_in_the_project_as_every_other_relative_path(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", 'cache = "jars"')
    monkeypatch.chdir(tmp_path)
    assert read(home, project).spark.cache == project / "jars"


def test_the_cache_follows_xdg_cache_home(tmp_path: Path, home: Path) -> None:
    settings = read(home, tmp_path, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert settings.spark.cache == tmp_path / "xdg" / "delta-first-pipeline"


def test_a_cache_that_is_set_wins_over_xdg_cache_home(tmp_path: Path, home: Path) -> None:
    settings = read(home, tmp_path, XDG_CACHE_HOME=str(tmp_path / "xdg"), PIPELINE_CACHE=str(tmp_path / "mine"))
    assert settings.spark.cache == tmp_path / "mine"


def test_the_remote_comes_from_spark_remote_and_leaves_the_master_as_it_is(tmp_path: Path, home: Path) -> None:
    spark = read(home, tmp_path, SPARK_REMOTE="sc://127.0.0.1:15002/;token=x", PIPELINE_MASTER="local[2]").spark
    assert (spark.remote, spark.master) == ("sc://127.0.0.1:15002/;token=x", "local[2]")


def test_the_remote_can_not_be_set_in_the_project(tmp_path: Path, home: Path) -> None:
    error = refused(home, write_project(tmp_path / "project", 'remote = "sc://127.0.0.1"'))
    assert error.setting == "[tool.pipeline] remote"


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("sc://h:15002", "sc://h:15002"),
        ("sc://[::1]:15002/;token=hush@hush", "sc://[::1]:15002"),
        ("sc://h.example;token=hush", "sc://h.example"),
        ("sc://h/?token=hush", "sc://h"),
        ("h:1/;token=hush", "h:1"),
        ("http://h;token=hush", "http://h"),
        ("sc://me:hush@h:1", "sc://h:1"),
        ("sc://hush@h", "sc://h"),
        ("sc://me:hush", "sc://***"),
        ("sc://me:hush/x@h", "sc://***"),
        ("sc:///;token=hush", "sc://***"),
        ("me:hush", "***"),
    ],
)
def test_the_address_of_a_server_is_shown_without_what_may_be_a_secret(remote: str, shown: str) -> None:
    assert shown_remote(remote) == shown


@pytest.mark.parametrize("remote", ["sc://me:hush@spark.example:15002", "sc://hush@spark.example"])
def test_a_local_root_is_refused_for_another_machine_without_its_user(tmp_path: Path, home: Path, remote: str) -> None:
    error = refused(home, tmp_path, SPARK_REMOTE=remote)
    assert "spark.example" in error.problem
    assert "hush" not in str(error)


# --- when it is read --------------------------------------------------------------------------------------------------


def test_importing_the_module_reads_nothing(tmp_path: Path) -> None:
    """A misspelt variable and a broken project must not break `import`, only `load_settings`."""
    write_project(tmp_path, raw="[broken")
    done = subprocess.run(
        [sys.executable, "-m", loading.__name__, "settings"],
        cwd=tmp_path,
        env={"PIPELINE_NOBODY_KNOWS": "x", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, '"SettingsError"'), done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"conf": {"spark.a": "b"}}, "conf"),
        ({"conf": (("spark.a", 1),)}, "conf[0][1]"),
        ({"cache": "/cache"}, "cache"),
        ({"master": None}, "master"),
    ],
)
def test_settings_of_spark_that_are_made_by_hand_are_held_to_their_types(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SparkSettings(**arguments)
    assert caught.value.setting == f"SparkSettings.{named}"


@pytest.mark.parametrize(("name", "value"), [("root", Path("/tables")), ("running", "a"), ("spark", SparkSettings)])
def test_settings_that_are_made_by_hand_are_held_to_their_types(tmp_path: Path, name: str, value: object) -> None:
    arguments: dict[str, Any] = {"project": tmp_path, "root": "r", "landing": "l", name: value}
    with pytest.raises(SettingsError) as caught:
        Settings(**arguments)
    assert caught.value.setting == f"Settings.{name}"


def test_what_changes_after_the_read_changes_no_settings(tmp_path: Path, home: Path) -> None:
    project = write_project(tmp_path / "project", 'vacuum = "apply"')
    environ = {"HOME": str(home), "PIPELINE_ROOT": "s3a://a"}
    settings = load_settings(environ, project)
    environ["PIPELINE_ROOT"] = "s3a://b"
    write_project(project, 'vacuum = "dry"')
    assert (settings.root, settings.vacuum) == ("s3a://a", "apply")
    assert load_settings(environ, project).root == "s3a://b"


def test_the_process_environment_and_the_working_directory_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        monkeypatch.delenv(name)
    project = write_project(tmp_path / "project", 'vacuum = "apply"')
    monkeypatch.chdir(project)
    monkeypatch.setenv("PIPELINE_ROOT", "s3a://from-the-process")
    settings = load_settings()
    assert (settings.project, settings.root, settings.vacuum) == (project, "s3a://from-the-process", "apply")


@pytest.mark.parametrize("remote", ["sc://spark.example:15002", "sc://10.1.2.3", "sc://h:1/;token=secret"])
def test_a_local_root_for_a_spark_on_another_machine_is_refused_without_its_token(
    tmp_path: Path, home: Path, remote: str
) -> None:
    error = refused(home, tmp_path, SPARK_REMOTE=remote)
    assert error.setting == "PIPELINE_ROOT"
    assert "secret" not in str(error)
    assert read(home, tmp_path, SPARK_REMOTE=remote, PIPELINE_ROOT="s3a://bucket/x").root == "s3a://bucket/x"


NAME = socket.gethostname()


@pytest.mark.parametrize(
    "remote",
    ["sc://127.0.0.1:15002", "sc://localhost", "sc://[::1]:15002/;use_ssl=false", f"sc://{NAME}:15002"],
)
def test_a_local_root_for_a_spark_on_this_machine_is_accepted(tmp_path: Path, home: Path, remote: str) -> None:
    assert read(home, tmp_path, SPARK_REMOTE=remote).spark.remote == remote


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("spark://spark.example:7077", "spark.example"),
        ("spark://127.0.0.1:7077,10.1.2.3:7077", "10.1.2.3"),
        ("spark://[2001:db8::1]:7077", "2001:db8::1"),
        ("k8s://https://cluster.example:443/path", "cluster.example"),
        ("k8s://cluster.example:443", "cluster.example"),
        ("yarn", "yarn"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_root_for_a_cluster_on_other_machines_is_refused(
    tmp_path: Path, home: Path, master: str, host: str, form: str
) -> None:
    root = form.format(tmp_path / "lake")
    error = refused(home, tmp_path, PIPELINE_MASTER=master, PIPELINE_ROOT=root)
    assert error.setting == "PIPELINE_ROOT"
    assert error.problem == f"{root} lies on this machine, and PIPELINE_MASTER runs Spark on {host}"
    assert read(home, tmp_path, PIPELINE_MASTER=master, PIPELINE_ROOT="s3a://bucket/x").spark.is_cluster
    served = read(home, tmp_path, PIPELINE_MASTER=master, PIPELINE_ROOT=root, SPARK_REMOTE="sc://127.0.0.1")
    assert served.root == root, "the master is not used"


@pytest.mark.parametrize(
    "master",
    ["spark://127.0.0.1:7077", "spark://localhost:7077,[::1]:7078", f"spark://{NAME.upper()}:7077",
     f"spark://{NAME}.example:7077", "k8s://https://127.0.0.1:6443", "local-cluster[2,1,1024]"],
)  # fmt: skip
def test_a_local_root_for_a_cluster_on_this_machine_is_accepted(tmp_path: Path, home: Path, master: str) -> None:
    assert read(home, tmp_path, PIPELINE_MASTER=master).spark.is_cluster


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[4, 2]"])
def test_a_master_in_this_process_is_no_cluster(tmp_path: Path, home: Path, master: str) -> None:
    assert not read(home, tmp_path, PIPELINE_MASTER=master).spark.is_cluster
