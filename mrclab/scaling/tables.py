"""Print the tables of a scale study in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mrclab.scale.study import Table

_STYLES = {"reproduced": "green", "contradicted": "bold red", "on a condition": "yellow"}
_WORDS = ("claim", "quantity", "traffic", "outcome")


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print each table with its title. Print the table's long cells and its note below the table."""
    for table in tables:
        console.print(Text(f"\n{table.title}", style="bold"))
        console.print(rendered(table))
        for line in sentences(table):
            console.print(line)
        if table.note:
            console.print(Text(table.note, style="dim"))


def rendered(table: Table) -> RichTable:
    """Return a table for a terminal of 80 columns, without the long cells."""
    shown = RichTable(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    places = [place for place, name in enumerate(table.columns) if name not in (*table.long, "source")]
    for place in places:
        words = place == 0 or table.columns[place] in _WORDS
        shown.add_column(table.columns[place], justify="left" if words else "right")
    for row in table.rows:
        shown.add_row(*(Text(row[place], style=_STYLES.get(row[place], "")) for place in places))
    return shown


def sentences(table: Table) -> Iterator[Text]:
    """Yield a line for each cell that is a sentence: the name of the row, then the sentence."""
    for place, name in enumerate(table.columns):
        if name not in table.long:
            continue
        names = 1 if table.columns[0] == "figure" else 0
        for row in table.rows:
            if row[place]:
                yield Text.assemble("  - ", (f"{row[names]}: ", "bold"), row[place])
