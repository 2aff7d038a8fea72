"""SQL text: quoting and literals, the slice that a run addresses, constraints as conditions.

Only this package turns values into SQL.
"""

from pipeline.delta.sql.quoting import (
    bare_type,
    column,
    column_definition,
    comment,
    create_table,
    helper_name,
    identifier,
    literal,
    names,
    names_path,
    path_pattern,
    path_table,
    string,
    tokens,
    type_name,
)

__all__ = [
    "bare_type",
    "column",
    "column_definition",
    "comment",
    "constraints",
    "create_table",
    "exact",
    "expectations",
    "helper_name",
    "identifier",
    "literal",
    "names",
    "names_path",
    "path_pattern",
    "path_table",
    "slices",
    "state",
    "string",
    "tokens",
    "type_name",
]
