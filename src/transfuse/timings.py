"""Timings: how long each pass of a plan should take here, and how long it does; they print."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transfuse.plan import milliseconds

if TYPE_CHECKING:
    from rich.console import RenderableType

WITH_NEXT = "with the next"
"""What is shown of a pass whose work a kernel of the next one does on the way."""


@dataclass(frozen=True)
class PassTiming:
    """A pass of a plan, in seconds.

    Attributes:
        does: what it does, as the plan says
        predicted: what its products, bytes or special functions take at the ceilings measured here,
            whichever takes longest
        measured: what it took, the median of several calls; None where a kernel of the next pass
            does its work on the way
        kernels: on a GPU, the kernels launched for it, and what each took
    """

    does: str
    predicted: float
    measured: float | None
    kernels: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Timings:
    """The passes of a call, predicted and measured on one machine, in seconds.

    Attributes:
        passes: each pass of the plan, in order
        call: the call as it is made, which is timed by itself: clocks between passes are left out,
            what Python does around them is not
        floor: the least time for the passes of the chain at the ceilings measured here
        floor_of_definition: likewise for its products and every tensor moved once
        bandwidth: bytes per second of the fastest way to move some
        flops: per second, of a matrix product in the arithmetic of the call
        special: exponentials per second; None where that was not measured
    """

    passes: tuple[PassTiming, ...]
    call: float
    floor: float
    floor_of_definition: float
    bandwidth: float
    flops: float
    special: float | None

    def as_dict(self) -> dict[str, Any]:
        """Texts and numbers alone, as ``transfuse explain --measure --json`` prints them."""
        return {
            "passes": [
                {
                    "does": each.does,
                    "predicted_seconds": each.predicted,
                    "measured_seconds": each.measured,
                    "kernels": [{"kernel": name, "seconds": took} for name, took in each.kernels],
                }
                for each in self.passes
            ],
            "call_seconds": self.call,
            "floor_seconds": self.floor,
            "floor_of_definition_seconds": self.floor_of_definition,
            "bytes_per_second": self.bandwidth,
            "flops_per_second": self.flops,
            "special_per_second": self.special,
        }

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        predicted = sum(each.predicted for each in self.passes)
        measured = sum(each.measured or 0.0 for each in self.passes)
        title = "predicted and measured here"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, show_footer=True)
        table.add_column("pass", footer="total", ratio=1)
        for name, total in (("predicted ms", predicted), ("measured ms", measured)):
            footer = milliseconds(total)
            table.add_column(name, justify="right", footer=footer, no_wrap=True)
        for each in self.passes:
            took = WITH_NEXT if each.measured is None else milliseconds(each.measured)
            table.add_row(Text(each.does), milliseconds(each.predicted), took)
            for kernel, seconds in each.kernels:
                table.add_row(Text(f"  {kernel}", style="dim"), "", milliseconds(seconds))
        return Group(table, Text(self._call), Text(self._floors), Text(self._ceilings))

    @property
    def _call(self) -> str:
        return f"the call as it is made: {milliseconds(self.call)} ms"

    @property
    def _floors(self) -> str:
        return (
            f"floor here: {milliseconds(self.floor)} ms in passes, "
            f"{milliseconds(self.floor_of_definition)} ms by the definition"
        )

    @property
    def _ceilings(self) -> str:
        special = "not measured" if self.special is None else f"{self.special / 1e9:,.1f} G/s"
        return (
            f"ceilings: {self.flops / 1e9:,.0f} GFLOP/s, {self.bandwidth / 1e9:,.0f} GB/s, "
            f"special functions {special}"
        )
