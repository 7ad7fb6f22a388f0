"""The results of a bench on a terminal: under each case its variants, in 80 columns."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from transfuse.bench.record import OURS, Row, Spread
from transfuse.bench.statistics import outcome
from transfuse.operators import short
from transfuse.plan import milliseconds
from transfuse.tables import columns

NARROW = ("ms", "ratio", "of floor", "definition", "MB")
WIDE = ("ms", "p20 to p80", "ratio", "of floor", "definition", "MB")
ROOM = 100
"""Columns of a terminal from which on the spread is shown; the file has it anyway."""
NOISE = "~"
CAPTION = (
    f"ratio: its time over {OURS}'s in the same rounds; above 1 {OURS} is faster\n"
    f"{NOISE}: within the noise: p20 to p80 of both times overlap, or the ratio's holds 1\n"
    "of floor: the least time this machine's rates allow the passes, over the time\n"
    "definition: the same for the definition's products and each tensor moved once"
)


def results(rows: list[Row], width: int) -> Iterator[RenderableType]:
    """What to print, one after the other."""
    shown = WIDE if width >= ROOM else NARROW
    names = max((len(row.variant) for row in rows), default=0)
    for key, of_case in groupby(rows, key=lambda row: (row.run, row.key, row.name, row.at)):
        group = list(of_case)
        first, (_, (slug, _, setting), name, _) = group[0], key
        label = f"{first.axis} {first.at}" if first.axis else name
        yield Text.assemble((short(slug), "bold"), f"  {label}  {setting}")
        timed = [row for row in group if row.time]
        if timed:
            yield _table(timed, names, shown)
        for row in group:
            if row.time is None:
                why = Text(f"{row.variant}: {row.status}, {row.reason}", style="yellow")
                yield Padding(why, (0, 0, 0, 1))
    yield Text(f"\n{CAPTION}", style="italic")


def _table(rows: list[Row], names: int, shown: tuple[str, ...]) -> RenderableType:
    table = columns("variant", numbers=shown)
    table.columns[0].min_width = names
    for column, least in zip(table.columns[1:], map(_widest, shown), strict=True):
        column.min_width = least
    ours = next((row for row in rows if row.variant == OURS), None)
    for row in rows:
        assert row.time
        figures = _figures(row, row.time, ours)
        style = "bold" if row.variant == OURS else ""
        table.add_row(Text(row.variant, style=style), *(figures[name] for name in shown))
    return table


def _widest(name: str) -> int:
    """So much room that the tables of all cases lie one under the other."""
    return {"p20 to p80": 14, "of floor": 10, "definition": 10}.get(name, 7)


def _figures(row: Row, time: Spread, ours: Row | None) -> dict[str, Text]:
    return {
        "ms": Text(milliseconds(time.median)),
        "p20 to p80": Text(f"{milliseconds(time.p20)} to {milliseconds(time.p80)}"),
        "ratio": _ratio(row, time, ours),
        "of floor": Text("impossible", style="bold red")
        if row.impossible
        else _share(row.of_floor),
        "definition": _share(row.of_definition),
        "MB": Text("-" if row.memory is None else f"{row.memory / 1e6:.1f}"),
    }


def _share(of: float | None) -> Text:
    return Text("" if of is None else f"{100 * of:.0f} %")


def _ratio(row: Row, time: Spread, ours: Row | None) -> Text:
    if row.ratio is None or ours is None or ours.time is None:
        return Text("")
    found = outcome(time, ours.time, row.ratio)
    style = {"faster": "green", "slower": "red"}.get(found, "")
    return Text(f"{row.ratio.median:.2f}x{'' if style else NOISE}", style=style)
