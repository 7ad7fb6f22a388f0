"""What became of a model's transposed convolutions, and why, as an object that prints."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from transfuse import dispatch
from transfuse.fusing.calling import positional
from transfuse.fusing.forwards import Forward, Version
from transfuse.fusing.fused_call import FusedCall
from transfuse.fusing.module_kinds import seems, transposed
from transfuse.fusing.rewriting import Site
from transfuse.fusing.stopping import FIRST_CALL, LEFT, Untraceable
from transfuse.plan import Plan, machine, staged

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = 80
SECONDS = 0.05
"""For how long a site is measured, fused and as torch's operations."""


@dataclass(frozen=True)
class Figures:
    """What a site costs for the inputs that were given.

    Attributes:
        problem: sizes, options, element type, layout and device
        backend: the name of the backend that runs it
        megabytes: that its plan moves
        torch_megabytes: that torch's operations move, each from memory to memory
        predicted: milliseconds that its plan takes at the rates by which plans are made
        torch_predicted: milliseconds that torch's operations take at these
        milliseconds: measured here
        torch_milliseconds: of torch's operations, measured here
    """

    problem: str
    backend: str
    megabytes: float
    torch_megabytes: float
    predicted: float
    torch_predicted: float
    milliseconds: float
    torch_milliseconds: float


@dataclass(frozen=True)
class ConvolutionRow:
    """A transposed convolution.

    Attributes:
        name: the module that computes it, by its qualified name
        operations: torch's operations that became one call, in order
        chain: that call; None where nothing was fused
        why: why it ends where it ends, or is not fused
        figures: what it costs, where inputs were given
    """

    name: str
    operations: tuple[str, ...]
    chain: str | None
    why: str
    figures: Figures | None = None

    @property
    def fused(self) -> bool:
        return self.chain is not None

    @property
    def pending(self) -> bool:
        """Whether only a call will tell."""
        return FIRST_CALL in self.why

    @property
    def left(self) -> bool:
        """Whether it could be fused, and torch is faster."""
        return self.why.startswith(LEFT)


@dataclass(frozen=True, repr=False)
class FusedModel:
    """What became of a model; prints as a table of 80 columns.

    Attributes:
        model: the name of its class
        rows: its transposed convolutions
    """

    model: str
    rows: tuple[ConvolutionRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """Texts and numbers alone, as ``transfuse fuse --json`` prints them."""
        return asdict(self)

    @property
    def _count(self) -> str:
        fused = sum(row.fused for row in self.rows)
        return f"{fused} of {len(self.rows)} transposed convolutions fused"

    def __repr__(self) -> str:
        return f"<{self.model}: {self._count}>"

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        Console(file=text, width=COLUMNS, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).rstrip()

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        measured = any(row.figures for row in self.rows)
        title = f"{self.model}: {self._count}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, show_lines=True)
        table.add_column("module", overflow="fold", max_width=20)
        table.add_column("became", ratio=1, overflow="fold")
        if measured:
            table.add_column("", no_wrap=True)
            table.add_column("predicted\nms", justify="right", no_wrap=True)
            table.add_column("measured\nms", justify="right", no_wrap=True)
        for row in self.rows:
            lines = [Text(row.chain if row.chain is not None else "not fused", style="bold")]
            lines += [Text(f"from {', '.join(row.operations)}")] if row.fused else []
            lines += [Text(row.why, style="dim")] if row.why else []
            cells = [Text(row.name or "(the model)"), Text("\n").join(lines)]
            if row.figures is not None:
                of = row.figures
                cells += [
                    Text("torch\nfused"),
                    Text(f"{of.torch_predicted:.3f}\n{of.predicted:.3f}"),
                    Text(f"{of.torch_milliseconds:.3f}\n{of.milliseconds:.3f}"),
                ]
            table.add_row(*cells)
        return table


class Explain:
    """The method ``explain`` of a fused model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, example_inputs: Any = None) -> FusedModel:
        return explain(self.model, example_inputs)


def explain(model: nn.Module, example_inputs: Any = None) -> FusedModel:
    """Says what became of each transposed convolution of a fused model, in its present mode.

    Args:
        model: a module that :func:`transfuse.fuse` gave
        example_inputs: what to call it with, as for :func:`transfuse.fuse`: it is called, without
            gradients, and each convolution measured, fused and as the operations that it
            replaced; running statistics stay as they are. Default: ``None``, which calls nothing

    Returns:
        FusedModel: prints as a table; ``rows`` and ``as_dict()`` are for programs

    Example::

        >>> fused = transfuse.fuse(torch.nn.Sequential(torch.nn.ConvTranspose1d(4, 2, 3)))
        >>> [row.chain for row in fused.explain().rows]
        ['conv_transpose1d(+ bias)']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"explain takes a torch.nn.Module, not {type(model).__name__}")
    figures = {} if example_inputs is None else _measured(model, example_inputs)
    rows: list[ConvolutionRow] = []
    covered: list[str] = []
    for path, module in model.named_modules():
        forward = vars(module).get("forward")
        if any(_within(path, each) for each in covered):
            continue
        version = _present(forward) if isinstance(forward, Forward) else None
        if isinstance(forward, Forward) and version is None and not _called_below(module):
            rows += _pending(path, forward)
            covered.append(path)
            continue
        if version is None or "" in version.whole:  # what is below may be fused
            if transposed(module):
                why = "is no part of a fused forward" if version is None else version.whole[""]
                rows.append(ConvolutionRow(path, (), None, why))
            continue
        assert isinstance(forward, Forward)
        for site in version.sites:
            rows.append(_row(path, forward, site, figures.get(id(site.call))))
        covered += _covered(path, module, version)
    return FusedModel(type(model).__name__, tuple(rows))


def _row(path: str, forward: Forward, site: Site, figures: Figures | None) -> ConvolutionRow:
    name = ".".join(filter(None, (path, site.path)))
    chain = None if site.chain is None else _briefly(str(site.chain))
    why = "; ".join(filter(None, (site.why, forward.why)))
    return ConvolutionRow(name, site.operations, chain, why, figures)


def _briefly(chain: str) -> str:
    """A chain without the names of tensors that are called what they are: all norms have those."""
    return re.sub(r", (?:(\w+)=(\w+\.)?\1|\w+\.(?:weight|bias))(?=[,)])", "", chain)


def _pending(path: str, forward: Forward) -> Iterator[ConvolutionRow]:
    """Rows of a forward that has no version for the present state."""
    for name, module in forward.module.named_modules():
        if seems(module):
            yield ConvolutionRow(".".join(filter(None, (path, name))), (), None, forward.pending)


def _called_below(module: nn.Module) -> bool:
    """Whether parts of a module were called by themselves."""
    parts = (vars(each).get("forward") for each in module.modules() if each is not module)
    return any(isinstance(each, Forward) and each.versions for each in parts)


def _within(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")


def _covered(path: str, module: nn.Module, version: Version) -> list[str]:
    """The modules of which a version tells all: those that it does not call whole."""
    whole = [".".join(filter(None, (path, each))) for each in version.whole]
    names = (".".join(filter(None, (path, name))) for name, _ in module.named_modules())
    if not whole:
        return [path]
    return [
        name
        for name in names
        if not any(_within(name, each) or _within(each, name) for each in whole)
    ]


def _present(forward: Forward) -> Version | None:
    """The version for the present state: one that was made with arguments, if there is one."""
    here = [each for each in forward.versions if each.state.holds()]
    if not here:
        try:
            return forward.prepare(None)
        except Untraceable:
            return None
    return min(here, key=lambda each: each.provisional)


def _measured(model: nn.Module, inputs: Any) -> dict[int, Figures]:
    """What each fused call costs, by its identity, with the values that it has in a call."""
    args, kwargs = positional(inputs)
    with torch.no_grad(), _statistics_kept(model):
        model(*args, **kwargs)  # captured, for these arguments
        with _recorded(model) as calls:
            model(*args, **kwargs)
        return {id(call): _figures(call, given) for call, given in calls}


def _figures(call: FusedCall, given: tuple[Any, ...]) -> Figures:
    reached = dispatch.reached(lambda: call(*given))
    chain, problem, backend, torch_only = reached.args
    chosen = dispatch.decide(chain, problem, backend, torch_only).backend
    plan = chosen.plan(chain, problem)
    torchs = staged(chain, problem, given[0].element_size())

    threads = torch.get_num_threads()

    def time(function: Any) -> float:
        timer = Timer("f(*a)", globals={"f": function, "a": given}, num_threads=threads)
        return float(timer.blocked_autorange(min_run_time=SECONDS).median) * 1e3

    return Figures(
        str(problem), chosen.name, plan.bytes / 1e6, torchs.bytes / 1e6,
        _predicted(plan), _predicted(torchs), time(call), time(call.original),
    )  # fmt: skip


def _predicted(plan: Plan) -> float:
    """Milliseconds, by the rates of the plan's machine."""
    of = plan.problem
    return machine(of.device).seconds(of.arithmetic, plan.flops, plan.bytes) * 1e3


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[tuple[FusedCall, tuple[Any, ...]]]]:
    """The fused calls that are made, with copies of what each is given."""
    calls: list[tuple[FusedCall, tuple[Any, ...]]] = []

    def recording(call: FusedCall) -> Any:
        def record(*given: Any) -> Tensor:
            copies = (v.detach().clone() if isinstance(v, Tensor) else v for v in given)
            calls.append((call, tuple(copies)))
            return call(*given)

        return record

    spaces = [
        version.function.__globals__
        for module in model.modules()
        if isinstance(forward := vars(module).get("forward"), Forward)
        for version in forward.versions
        if version.function is not None
    ]
    kept = [dict(space) for space in spaces]
    try:
        for space in spaces:
            space |= {k: recording(v) for k, v in space.items() if isinstance(v, FusedCall)}
        yield calls
    finally:
        for space, before in zip(spaces, kept, strict=True):
            space |= before


@contextmanager
def _statistics_kept(model: nn.Module) -> Iterator[None]:
    """Buffers have their values again afterwards."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, values in before:
            buffer.copy_(values)
