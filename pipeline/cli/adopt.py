"""`pipeline adopt`: the declaration of an existing table, as Python that can be pasted."""

from __future__ import annotations

import click

from pipeline.cli.output import print_json
from pipeline.cli.tables import Tables, dataset_name
from pipeline.delta.migrate.adopt import adopt as do_adopt
from pipeline.delta.storage.options import project_settings
from pipeline.delta.table.open_table import state_at_location, state_from_log
from pipeline.errors import TableNotFoundError


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--as", "dataset", metavar="NAME", help="The name of the dataset; by default from the path.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def adopt(name: str, dataset: str | None, as_json: bool) -> None:
    """Print the declaration of a Delta table of any writer, as Python. The table is not changed.

    TABLE is a path or a URI, or the path of a table below the root. Lines that begin with `#` name what of the table
    the declaration does not keep. Spark is started only if the files of the log do not suffice.
    """
    tables = Tables(project_settings())
    table = tables.find(name)
    state = state_from_log(table.location) or state_at_location(tables.session, table.name, table.location)
    if state is None:
        raise TableNotFoundError(dataset=table.name, location=table.location)
    adopted = do_adopt(dataset or dataset_name(table.name), state)
    if as_json:
        print_json(
            {
                "location": adopted.location, "version": adopted.version, "declaration": adopted.text,
                "not_kept": list(adopted.not_kept),
            }
        )  # fmt: skip
        return
    for message in adopted.not_kept:
        click.echo(f"# {' '.join(message.split())}")
    click.echo(adopted.text, nl=False)
