"""A set of datasets: order, look-up, what can't stand together, and a user's own collection."""

import itertools
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.cli.registry import declaration
from pipeline.dataset import Dataset, FreshByCron, Registry, RowCount, load_datasets
from pipeline.errors import DeclarationError, RegistryError, SettingsError, UnknownDatasetError
from pipeline_tests.projects import collected

SCHEMA = StructType([StructField("id", LongType())])


def dataset(name: str, *reads: str) -> Dataset:
    return Dataset(name=name, schema=SCHEMA, reads=reads)


def problems_of(*datasets: Dataset) -> tuple[str, ...]:
    """The problems of the one RegistryError that this set raises."""
    with pytest.raises(RegistryError) as caught:
        Registry(datasets)
    return caught.value.problems


def one_problem(*datasets: Dataset) -> str:
    problems = problems_of(*datasets)
    assert len(problems) == 1, problems
    return problems[0]


DIAMOND = (dataset("d", "b", "c"), dataset("b", "a"), dataset("c", "a"), dataset("a"), dataset("alone"))


@pytest.mark.parametrize("declared", list(itertools.permutations(DIAMOND))[::11])
def test_sources_come_before_their_readers_whatever_the_order_of_declaration(declared: tuple[Dataset, ...]) -> None:
    registry = Registry(declared)
    place = {name: i for i, name in enumerate(registry.names)}
    assert sorted(place) == ["a", "alone", "b", "c", "d"]
    assert all(place[source] < place[d.name] for d in registry for source in d.reads)


def test_iteration_length_and_names_are_those_of_the_set() -> None:
    registry = Registry(DIAMOND)
    assert len(registry) == 5
    assert tuple(d.name for d in registry) == registry.names
    assert set(registry) == set(DIAMOND)


def test_datasets_without_lineage_keep_the_order_of_declaration() -> None:
    assert Registry([dataset("c"), dataset("a"), dataset("b")]).names == ("c", "a", "b")


def test_the_order_is_the_same_each_time() -> None:
    assert Registry(DIAMOND).names == Registry(DIAMOND).names


def test_an_empty_set_is_a_registry() -> None:
    registry = Registry([])
    assert (len(registry), registry.names, list(registry)) == (0, (), [])


def test_a_generator_of_datasets_is_read_once() -> None:
    assert Registry(dataset(name) for name in "ab").names == ("a", "b")


def test_a_name_is_in_the_registry_only_in_its_own_case() -> None:
    registry = Registry([dataset("a/b")])
    assert "a/b" in registry
    assert "A/b" not in registry
    assert 1 not in registry


def test_downstream_are_the_direct_readers_in_the_order_of_the_lineage() -> None:
    registry = Registry(DIAMOND)
    readers = {name: [d.name for d in registry.downstream(name)] for name in registry.names}
    assert {name: sorted(names) for name, names in readers.items()} == {
        "a": ["b", "c"],
        "b": ["d"],
        "c": ["d"],
        "d": [],
        "alone": [],
    }
    assert readers["a"] == [name for name in registry.names if name in ("b", "c")]


def test_a_cycle_is_refused_with_its_members() -> None:
    problem = one_problem(dataset("x"), dataset("a", "c"), dataset("b", "a"), dataset("c", "b"))
    ring = problem.rpartition(": ")[2].split(" -> ")
    assert ring[0] == ring[-1]
    assert set(ring) == {"a", "b", "c"}


def test_a_dataset_that_reads_itself_is_refused() -> None:
    assert "a -> a" in one_problem(dataset("a", "a"))


def test_every_source_that_nobody_declared_is_told() -> None:
    problems = problems_of(dataset("a", "gone", "lost"), dataset("b", "a", "A"))
    assert [problem.split(",")[0] for problem in problems] == ["a reads gone", "a reads lost", "b reads A"]


def test_two_datasets_of_one_name_are_refused() -> None:
    assert "a/b and a/b" in one_problem(dataset("a/b"), dataset("a/b"))


def test_names_that_differ_by_case_only_are_refused_since_some_file_systems_give_them_one_folder() -> None:
    assert "a/Flights and a/flights and A/flights" in one_problem(
        dataset("a/Flights"), dataset("a/flights"), dataset("b"), dataset("A/flights")
    )


@pytest.mark.parametrize("inner", ["a/b", "a/b/c", "A/b"])
def test_a_table_inside_the_folder_of_another_is_refused_in_any_case(inner: str) -> None:
    problem = one_problem(dataset(inner), dataset("a"))
    assert inner in problem
    assert "inside the table of a" in problem


def test_a_name_that_only_begins_like_another_stands_beside_it() -> None:
    assert Registry([dataset("a/b"), dataset("a/bc"), dataset("a/b.c"), dataset("ab")]).names == (
        "a/b",
        "a/bc",
        "a/b.c",
        "ab",
    )


def test_all_problems_are_told_at_once() -> None:
    problems = problems_of(dataset("a"), dataset("A"), dataset("a/b"), dataset("c", "gone"), dataset("d", "d"))
    keys = ("share one table", "inside the table", "gone", "d -> d")
    assert [key in problem for key, problem in zip(keys, problems, strict=True)] == [True] * 4


def test_a_dataset_is_found_by_name_and_by_asset_key() -> None:
    wanted = dataset("aviation/flights")
    registry = Registry([wanted, dataset("aviation/planes")])
    assert registry.get("aviation/flights") is wanted
    assert registry.by_asset_key(("aviation", "flights")) is wanted
    assert registry.by_asset_key(["aviation", "flights"]) is wanted


def test_a_misspelt_name_is_refused_with_the_near_ones() -> None:
    registry = Registry([dataset("aviation/flights"), dataset("portfolio/positions")])
    with pytest.raises(UnknownDatasetError) as caught:
        registry.get("aviation/flihgts")
    assert caught.value.name == "aviation/flihgts"
    assert caught.value.near == ("aviation/flights",)
    assert "'aviation/flights'" in caught.value.remedy()


def test_a_name_near_to_none_is_refused_with_all_the_known_ones() -> None:
    registry = Registry([dataset("b"), dataset("a", "b")])
    with pytest.raises(UnknownDatasetError) as caught:
        registry.by_asset_key(["quite", "other"])
    assert (caught.value.name, caught.value.near, caught.value.known) == ("quite/other", (), ("b", "a"))
    assert "b, a" in caught.value.remedy()


def test_a_name_in_an_empty_registry_is_refused() -> None:
    with pytest.raises(UnknownDatasetError) as caught:
        Registry([]).get("a")
    assert (caught.value.near, caught.value.known) == ((), ())
    assert "PIPELINE_DATASETS" in caught.value.remedy()


MODULE = Path(collected.__file__).read_text(encoding="utf-8")


WriteModule = Callable[[str, str], None]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Writes a module into a folder on the import path, and forgets it when the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    yield write
    for name in [name for name in sys.modules if name.startswith("registry_case")]:
        del sys.modules[name]


@pytest.mark.parametrize("attribute", ["in_tuple", "in_list"])
def test_a_users_collection_is_loaded_in_its_own_order(write_module: WriteModule, attribute: str) -> None:
    write_module("registry_case", MODULE)
    loaded = load_datasets(f"registry_case:{attribute}")
    assert [(d.name, d.reads) for d in loaded] == [("a", ()), ("b", ("a",))]


def test_a_users_collection_may_lie_in_a_package(write_module: WriteModule) -> None:
    write_module("registry_case_package.inner.tables", MODULE)
    assert [d.name for d in load_datasets("registry_case_package.inner.tables:in_tuple")] == ["a", "b"]


@pytest.mark.parametrize(
    ("attribute", "kind"),
    [
        ("absent", "has nothing of the name 'absent'"),
        ("empty", "tuple"),
        ("mixed", "tuple"),
        ("by_name", "dict"),
        ("one", "Dataset"),
        ("text", "str"),
        ("number", "int"),
    ],
)
def test_an_attribute_that_is_no_collection_of_datasets_is_refused(
    write_module: WriteModule, attribute: str, kind: str
) -> None:
    write_module("registry_case", MODULE)
    with pytest.raises(SettingsError) as caught:
        load_datasets(f"registry_case:{attribute}")
    assert caught.value.setting == "datasets"
    assert "registry_case" in caught.value.problem
    assert kind in caught.value.problem


def test_a_reference_without_an_attribute_is_refused(write_module: WriteModule) -> None:
    write_module("registry_case", MODULE)
    with pytest.raises(SettingsError) as caught:
        load_datasets("registry_case")
    assert caught.value.setting == "datasets"


@pytest.mark.parametrize(
    ("reference", "missing"),
    [
        ("registry_case_absent:datasets", "registry_case_absent"),
        ("registry_case_absent.tables:datasets", "registry_case_absent"),
        ("registry_case_package.absent:datasets", "registry_case_package.absent"),
        ("registry_case_package.tables.absent:datasets", "registry_case_package.tables.absent"),
    ],
)
def test_a_module_that_is_not_there_is_refused_by_its_name(
    write_module: WriteModule, reference: str, missing: str
) -> None:
    write_module("registry_case_package.tables", MODULE)
    with pytest.raises(SettingsError) as caught:
        load_datasets(reference)
    assert caught.value.setting == "datasets"
    assert repr(missing) in caught.value.problem
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import registry_case_library_that_is_absent", ModuleNotFoundError),
        ("from pipeline.dataset import NoSuchThing", ImportError),
        ("1 / 0", ZeroDivisionError),
        ("def broken(:", SyntaxError),
    ],
)
def test_a_module_that_itself_fails_shows_its_own_error(
    write_module: WriteModule, text: str, error: type[Exception]
) -> None:
    """The operator has to see what is wrong in the module, not that there is none."""
    write_module("registry_case_failing", text)
    with pytest.raises(error) as caught:
        load_datasets("registry_case_failing:datasets")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "library", ["registry_case_fail", "registry_case_failing_more", "registry_case_failing.deeper"]
)
def test_a_missing_import_whose_name_begins_like_the_module_shows_its_own_error(
    write_module: WriteModule, library: str
) -> None:
    write_module("registry_case_failing", f"import {library}")
    with pytest.raises(ModuleNotFoundError) as caught:
        load_datasets("registry_case_failing:datasets")
    assert caught.value.name == library


def test_a_declaration_error_in_a_users_module_shows_itself(write_module: WriteModule) -> None:
    write_module("registry_case_failing", MODULE + '\nDataset(name="_bad", schema=SCHEMA)\n')
    with pytest.raises(DeclarationError) as caught:
        load_datasets("registry_case_failing:in_tuple")
    assert caught.value.dataset == "_bad"


# --- as a document ----------------------------------------------------------------------------------------------------


def test_a_declaration_as_a_document_says_its_times_in_seconds_and_its_checks_in_full() -> None:
    declared = Dataset(
        name="a",
        schema=SCHEMA,
        freshness=FreshByCron(cron="0 4 * * *", window=timedelta(hours=2)),
        row_count=RowCount(minimum=1, severity="warn"),
        code_version="3",
    )
    document = declaration(declared, "/lake")
    assert document["freshness"] == {"cron": "0 4 * * *", "window_seconds": 7200.0, "timezone": "UTC"}
    assert document["row_count"] == {"minimum": 1, "maximum": None, "severity": "warn", "blocking": False}
    assert document["schema_check"] == {"severity": "error", "blocking": False}
    assert (document["code_version"], document["starts_on_change"]) == ("3", False)
