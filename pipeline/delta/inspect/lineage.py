"""The origins of a frame's columns, from Spark's analyzed plan, never guessed from names.

Here belong the tables that a plan reads and the walk through it. If a column passes through a node that the plan does
not describe (a Python function over a full partition, a checkpoint, a subquery), its origin is unknown and left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from pipeline.dataset.schema import RESERVED_COLUMNS
from pipeline.delta.spark.failures import SPARK_ERRORS
from pipeline.delta.spark.own_classes import analyzed_plan
from pipeline.delta.storage.file_system import local_folder

# A column of a table: the table's location as from `plain_location`, and the column's name.
Origin = tuple[str, str]
_Origins = frozenset[Origin] | None  # None if they are unknown
_NO_ORIGINS: frozenset[Origin] = frozenset()
# Errors for a plan of an unknown form, for example with a node of an extension.
_UNREADABLE = (*SPARK_ERRORS, LookupError, TypeError, ValueError, StopIteration)
_SET_OPERATIONS = ("Except", "Intersect")
_LEFT_ONLY = ("LeftSemi$", "LeftAnti$")
# Leaves whose values are all in the query itself.
_LITERAL = frozenset({"OneRowRelation", "LocalRelation", "Range"})


@dataclass(frozen=True)
class Scan:
    """A Delta table that a plan reads, with its column names by Spark's ids. For a change feed `version` is None."""

    location: str
    version: int | None
    columns: Mapping[int, str]


def plain_location(uri: str) -> str:
    """A location in normal form, to compare a plan's location with a declared one."""
    folder = local_folder(uri)
    return uri.rstrip("/") if folder is None else str(folder)


def scans(frame: DataFrame) -> list[Scan]:
    """The Delta tables that a frame reads, one for each leaf of its plan. If the plan is unknown, empty."""
    facts = analyzed_plan(frame)
    return [] if facts is None else [scan for scan in _scans(facts) if scan is not None]


def column_lineage(frame: DataFrame) -> dict[str, frozenset[Origin]]:
    """The table columns from which the values of each column of a frame come. Columns of unknown origin are left out.

    A column that comes from no table has an empty set. On a server of others no origin is known. No Spark job.
    """
    try:
        facts = analyzed_plan(frame)
        if facts is None:
            return {}
        walk = _Walk(facts["plan"], _scans(facts))
    except _UNREADABLE:
        return {}
    by_column = {name: walk.origins.get(number) for name, number in zip(frame.columns, walk.output, strict=True)}
    return {name: origins for name, origins in by_column.items() if origins is not None}


def _scans(facts: Mapping[str, Any]) -> list[Scan | None]:
    """Each leaf of a plan, in order. If a leaf is not a Delta table, None."""
    return [None if scan is None else _scan(scan) for scan in facts["scans"]]


def _scan(scan: Mapping[str, Any]) -> Scan:
    columns = {int(number): name for number, name in scan["columns"].items()}
    return Scan(location=plain_location(scan["location"]), version=scan["version"], columns=columns)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


class _Walk:
    """One pass over a plan's nodes, parents first. `output` has the ids of the plan's columns."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], leaves: Sequence[Scan | None]) -> None:
        self._nodes = iter(nodes)
        self._leaves = iter(leaves)
        self._definitions: dict[int, list[int]] = {}
        self.origins: dict[int, _Origins] = {}
        self.output = self._visit()

    def _visit(self) -> list[int]:
        node = next(self._nodes)
        children = [self._visit() for _ in range(node["num-children"])]
        kind = _name(node["class"])
        if not children:
            return self._leaf(kind, node)
        output = self._output(kind, node, children)
        for number in output:
            self.origins.setdefault(number, None)
        return output

    def _leaf(self, kind: str, node: Mapping[str, Any]) -> list[int]:
        scan = next(self._leaves)
        output = [_id(attribute[0]) for attribute in node.get("output") or []]
        if kind == "CTERelationRef":
            defined = self._definitions.get(node["cteId"], [])
            self.origins.update(zip(output, map(self.origins.get, defined), strict=False))
        for number in output:
            column = None if scan is None else scan.columns.get(number)
            if scan is not None and column is not None:
                of_feed = column in RESERVED_COLUMNS
                self.origins[number] = _NO_ORIGINS if of_feed else frozenset({(scan.location, column)})
            else:
                self.origins.setdefault(number, _NO_ORIGINS if kind in _LITERAL else None)
        return output

    def _output(self, kind: str, node: Mapping[str, Any], children: Sequence[list[int]]) -> list[int]:
        first = children[0]
        if kind in ("Project", "Aggregate", "Window"):
            named = [self._named(expression) for expression in node[_EXPRESSIONS[kind]]]
            return [*first, *named] if kind == "Window" else named
        if kind in ("Generate", "Expand"):
            return self._generated(kind, node, first)
        if kind == "Union":
            for number, *others in zip(*children, strict=True):
                self.origins[number] = _union(map(self.origins.get, (number, *others)))
            return first
        if kind == "Join":
            left_only = str((node["joinType"] or {}).get("object", "")).endswith(_LEFT_ONLY)
            return first if left_only else [number for child in children for number in child]
        if kind == "CTERelationDef":
            self._definitions[node["id"]] = first
            return first
        if kind == "WithCTE":
            return children[-1]
        if "output" in node or (len(children) > 1 and kind not in _SET_OPERATIONS):
            # The plan does not show how this node computes its output.
            return [_id(attribute[0]) for attribute in node.get("output") or []]
        return first

    def _generated(self, kind: str, node: Mapping[str, Any], child: list[int]) -> list[int]:
        """The columns of a node that makes several rows from one."""
        generated = [_id(attribute[0]) for attribute in node["generatorOutput" if kind == "Generate" else "output"]]
        if kind == "Generate":
            self.origins.update(dict.fromkeys(generated, self._of(node["generator"])))
            return [number for position, number in enumerate(child) if position not in _dropped(node)] + generated
        projections = node["projections"]
        for number, *expressions in zip(generated, *projections, strict=True) if projections else ():
            self.origins[number] = _union(map(self._of, expressions))
        return generated

    def _named(self, expression: Sequence[Mapping[str, Any]]) -> int:
        number = _id(expression[0])
        if _name(expression[0]["class"]) != "AttributeReference":
            self.origins[number] = self._of(expression[1:])
        return number

    def _of(self, expression: Sequence[Mapping[str, Any]]) -> _Origins:
        if any("Subquery" in part["class"] or part["class"].endswith("Exists") for part in expression):
            return None
        read = (part for part in expression if _name(part["class"]) == "AttributeReference")
        return _union(self.origins.get(_id(part)) for part in read)


_EXPRESSIONS = {"Project": "projectList", "Aggregate": "aggregateExpressions", "Window": "windowExpressions"}


def _dropped(node: Mapping[str, Any]) -> frozenset[int]:
    """The positions of the columns that a generator leaves out. Spark gives them as a list, or as text."""
    positions = node.get("unrequiredChildIndex") or []
    return frozenset(int(number) for number in (positions if isinstance(positions, list) else json.loads(positions)))


def _id(attribute: Mapping[str, Any]) -> int:
    return int(attribute["exprId"]["id"])


def _union(origins: Iterator[_Origins] | Any) -> _Origins:
    """The union of these origins. If one is unknown, the union is unknown."""
    sets = list(origins)
    return None if None in sets else frozenset().union(*sets)
