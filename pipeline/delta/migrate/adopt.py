"""The declaration of an existing table as Python, and what of the table no declaration keeps. No Spark.

Here belongs the text. The table may be of any writer: nothing in it is changed.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pipeline.dataset import Append, Check, Dataset, Features, StoragePolicy
from pipeline.dataset.features import (
    KNOWN_FEATURES,
    MAPPING_MODE,
    SWITCHES,
    brought_by,
    features_of,
    property_problems,
    with_required,
)
from pipeline.dataset.policy import CODEC, DICTIONARY, TARGET_FILE_BYTES, storage_properties
from pipeline.delta.log.mark import MIGRATION
from pipeline.delta.log.snapshot import TableState
from pipeline.delta.table.plan import CHANGE_FEED, DEFAULT, GENERATION, observed_shape, plan
from pipeline.delta.write.transaction import INCARNATION
from pipeline.errors import DeclarationError

# Properties that Delta or this package keeps by itself.
_OWN = {MIGRATION.lower(), INCARNATION.lower(), "delta.columnmapping.maxcolumnid"}
# Features that follow from other parts of a declaration, or from an old writer version.
_FOLLOWING = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
     "allowColumnDefaults", "clustering"}
)  # fmt: skip
_KNOWN_METADATA = ("comment", GENERATION, DEFAULT, "EXISTS_DEFAULT")
_MAPPING_METADATA = "delta.columnMapping."
_HOURS = re.compile(r"interval (\d+) hours")
# By property: the field of the storage policy that declares it.
_BY_STORAGE = {
    CODEC: "codec",
    DICTIONARY: "dictionary_encoding",
    TARGET_FILE_BYTES: "target_file_bytes",
    "delta.dataSkippingStatsColumns": "statistics_columns",
    "delta.autoOptimize.autoCompact": "auto_compact",
    "delta.autoOptimize.optimizeWrite": "optimized_write",
    "delta.deletedFileRetentionDuration": "deleted_file_retention_hours",
    "delta.logRetentionDuration": "log_retention_hours",
    "delta.setTransactionRetentionDuration": "transaction_retention_hours",
    "delta.checkpointInterval": "checkpoint_interval_commits",
}


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The declaration of a table. `not_kept` are messages about parts of the table that it does not have.

    If no valid declaration describes the table, `dataset` is None and `text` is empty.
    """

    location: str
    version: int
    dataset: Dataset | None
    text: str
    not_kept: tuple[str, ...]


def adopt(name: str, state: TableState) -> Adoption:
    """The declaration of a table in the mode Append, under this name."""
    not_kept = list(_lost_metadata(state.schema))
    properties = dict(_properties(state, not_kept))
    storage, properties = _storage(properties)
    shape = observed_shape(state)
    others = _other_features(state, not_kept)
    try:
        dataset = Dataset(
            name=name,
            schema=StructType([_plain_field(field) for field in shape.schema.fields]),
            partition_by=state.partition_by,
            write=Append(),
            checks=tuple(Check(check, condition) for check, condition in shape.checks.items()),
            properties=tuple(properties.items()),
            change_feed=(shape.property(CHANGE_FEED) or "").lower() == "true",
            features=Features(
                **_switches(state), cluster_by=state.cluster_by or None, generated=tuple(shape.generated.items()),
                defaults=tuple(shape.defaults.items()), others=others,
            ),
            storage=StoragePolicy(**storage),
        )  # fmt: skip
    except DeclarationError as error:
        return Adoption(
            location=state.location, version=state.version, dataset=None, text="", not_kept=(*not_kept, *error.problems)
        )  # fmt: skip
    difference = plan(dataset, state)
    not_kept += [f"pipeline conform would change it: {step}" for step in difference.steps]
    not_kept += list(difference.problems)
    return Adoption(
        location=state.location, version=state.version, dataset=dataset, text=declaration(dataset),
        not_kept=tuple(not_kept),
    )  # fmt: skip


def _lost_metadata(schema: StructType) -> Iterator[str]:
    for field in schema.fields:
        for key in field.metadata or {}:
            if key not in _KNOWN_METADATA and not key.startswith(_MAPPING_METADATA):
                yield f"column {field.name}: its metadata {key} is not declared; the table keeps it"


def _plain_field(field: StructField) -> StructField:
    """A field without metadata but its comment."""
    comment = (field.metadata or {}).get("comment")
    metadata = {} if comment is None else {"comment": comment}
    return StructField(field.name, _plain_type(field.dataType), field.nullable, metadata)


def _plain_type(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        return StructType([_plain_field(field) for field in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(_plain_type(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        key, value = _plain_type(data_type.keyType), _plain_type(data_type.valueType)
        return MapType(key, value, data_type.valueContainsNull)
    return data_type


def _properties(state: TableState, not_kept: list[str]) -> Iterator[tuple[str, str]]:
    """The properties that a declaration names itself, without those that other fields of it mean."""
    meant = {CHANGE_FEED.lower(), MAPPING_MODE.lower(), *(switch.property.lower() for switch in SWITCHES.values())}
    for name, value in observed_shape(state).properties.items():
        if name.lower() in _OWN or name.lower() in meant:
            continue
        problems = list(property_problems([(name, value)], {}))
        not_kept += [f"{problem}; the table keeps it" for problem in problems]
        if not problems:
            yield name, value


def _storage(properties: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of the storage policy, and the properties that it does not mean."""
    policy: dict[str, Any] = {}
    rest: dict[str, str] = {}
    for name, value in properties.items():
        field = _BY_STORAGE.get(name)
        parsed = None if field is None else _storage_value(field, value)
        if field is not None and storage_properties(StoragePolicy(**{field: parsed})).get(name) == value:
            policy[field] = parsed
        else:
            rest[name] = value
    return policy, rest


def _storage_value(field: str, value: str) -> Any:
    if field == "codec":
        return value
    if field == "statistics_columns":
        return tuple(value.split(","))
    if value in ("true", "false"):
        return value == "true"
    hours = _HOURS.fullmatch(value)
    number = hours[1] if hours else value
    return int(number) if number.isascii() and number.isdigit() else None


def _switches(state: TableState) -> dict[str, Any]:
    """The fields of `Features` that properties of the table switch."""
    values = {name.lower(): value.lower() for name, value in state.properties.items()}
    known: dict[str, Any] = {}
    for field, switch in SWITCHES.items():
        value = values.get(switch.property.lower())
        if value in (switch.on, switch.off):
            known[field] = value == switch.on
    mode = values.get(MAPPING_MODE.lower())
    return known | ({} if mode is None else {"column_mapping": mode})


def _other_features(state: TableState, not_kept: list[str]) -> tuple[str, ...]:
    """The features that a declaration names itself."""
    following = {*_FOLLOWING, *with_required(_FOLLOWING), *features_of(state.schema.fields)}
    for name, value in state.properties.items():
        following.update(brought_by(name, value))
    rest = [feature for feature in state.features if feature not in following]
    not_kept += [
        f"feature {feature}: Delta 4.4.0 does not have it, so that Spark can't use the table"
        for feature in rest if feature not in KNOWN_FEATURES
    ]  # fmt: skip
    return tuple(feature for feature in rest if feature in KNOWN_FEATURES)


# --- the text ---------------------------------------------------------------------------------------------------------


def declaration(dataset: Dataset) -> str:
    """The declaration as a Python module; its fields with their default are left out."""
    lines = []
    for field in fields(Dataset):
        value = getattr(dataset, field.name)
        if field.name == "schema":
            lines += ["    schema=StructType(", "        [", *_schema_lines(dataset.schema), "        ]", "    ),"]
        elif field.name == "write" or value != field.default:
            lines.append(f"    {field.name}={_value(value)},")
    body = "\n".join([f"{_variable(dataset.name)} = Dataset(", *lines, ")"])
    return f"{_imports(body)}\n\n{body}\n"


def _schema_lines(schema: StructType) -> list[str]:
    return [f"            {_field(field)}," for field in schema.fields]


def _field(field: StructField) -> str:
    comment = (field.metadata or {}).get("comment")
    rest = "" if field.nullable else ", False"
    if comment is not None:
        rest = f", {field.nullable}, {{'comment': {comment!r}}}"
    return f"StructField({field.name!r}, {_type(field.dataType)}{rest})"


def _type(data_type: DataType) -> str:
    if isinstance(data_type, StructType):
        return f"StructType([{', '.join(map(_field, data_type.fields))}])"
    if isinstance(data_type, ArrayType):
        return f"ArrayType({_type(data_type.elementType)}, {data_type.containsNull})"
    if isinstance(data_type, MapType):
        return f"MapType({_type(data_type.keyType)}, {_type(data_type.valueType)}, {data_type.valueContainsNull})"
    return repr(data_type)


def _value(value: Any) -> str:
    """A value of a declaration. Of a dataclass only the fields that are not as by default."""
    if isinstance(value, Features | StoragePolicy):
        changed = [f for f in fields(value) if getattr(value, f.name) != f.default]
        return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in changed)})"
    if isinstance(value, tuple) and value and isinstance(value[0], Check):
        return f"({', '.join(f'Check({check.name!r}, {check.condition!r})' for check in value)},)"
    return repr(value)


def _variable(name: str) -> str:
    text = re.sub(r"\W", "_", name.rpartition("/")[2]).lower()
    return f"{text}_" if keyword.iskeyword(text) else f"_{text}" if text[:1].isdigit() else text


def _imports(body: str) -> str:
    """The imports of the names that the text calls."""
    called = sorted(set(re.findall(r"\b([A-Z]\w*)\(", re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", body))))
    ours = [name for name in called if name in ("Append", "Check", "Dataset", "Features", "StoragePolicy")]
    types = [name for name in called if name not in ours]
    return f"from pyspark.sql.types import {', '.join(types)}\n\nfrom pipeline.dataset import {', '.join(ours)}\n"
