"""Which stage runs where, as a page in Markdown: every cell is what a backend's route says.

``python -m transfuse.report.support FILE`` writes it.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from transfuse.backends.cpu import Cpu
from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.problem import Problem, Shape, arithmetics
from transfuse.route import NoRoute
from transfuse.stages import Stage, conv_transpose
from transfuse.stages.text import KNOWN, parse

BACKENDS: tuple[tuple[Cpu | Triton, str], ...] = ((Cpu(), "cpu"), (Triton(), "cuda:sm90"))
"""The backends that fuse, each with a device it is for, which need not be here."""
SIZES = "n2 ci16 co16 i6x8 k4 s2 p1"
CONVOLUTION = conv_transpose(2)

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "adaptive_avg_pool": ("adaptive_avg_pool(1)", "adaptive_avg_pool(5)"),
    "adaptive_max_pool": ("adaptive_max_pool(5)",),
    "add": ("add(1)", "add(channel)", "add(full)", "add(gate)"),
    "amax": ("amax(space)", "amax(space, keepdim=True)"),
    "amin": ("amin(all)", "amin(-1, keepdim=True)"),
    "avg_pool": (
        "avg_pool(2)",
        "avg_pool(3, stride=1, padding=1)",
        "avg_pool(3, stride=2, padding=1, count_include_pad=False)",
        "avg_pool(3, ceil_mode=True)",
        "avg_pool(2, divisor_override=3)",
    ),
    "batch_norm": ("batch_norm(channel, channel)", "batch_norm(training=True)"),
    "cat": ("cat(full)", "cat(full, first=True)"),
    "conv_transpose": (),  # every chain has it
    "div": ("div(2)", "div(full)"),
    "gelu": ("gelu", "gelu(tanh)"),
    "gelu_erf": (),  # gelu's two forms
    "gelu_tanh": (),
    "group_norm": ("group_norm(8)", "group_norm(8, channel, channel)"),
    "layer_norm": ("layer_norm(channels)", "layer_norm(channels, channel, channel)"),
    "log_softmax": ("log_softmax(channels)", "log_softmax(-1)"),
    "logsumexp": ("logsumexp(channels)", "logsumexp(space, keepdim=True)"),
    "lp_pool": ("lp_pool(2, 2)",),
    "max_pool": (
        "max_pool(2)",
        "max_pool(3, stride=1)",
        "max_pool(3, stride=2, padding=1)",
        "max_pool(2, dilation=2)",
        "max_pool(3, ceil_mode=True)",
    ),
    "maximum": ("maximum(0)", "maximum(full)"),
    "mean": ("mean(channels)", "mean(space, keepdim=True)"),
    "minimum": ("minimum(0)", "minimum(full)"),
    "pixel_shuffle": ("pixel_shuffle(2)",),
    "pow": ("pow(3)",),
    "prelu": ("prelu(channel)",),
    "rms_norm": ("rms_norm(channels)", "rms_norm(channels, channel)"),
    "scale": ("scale(2)", "scale(channel)", "scale(full)", "scale(gate)"),
    "softmax": ("softmax(channels)", "softmax(space)", "softmax(-1)"),
    "squeeze": ("squeeze(-1)",),
    "sub": ("sub(1)", "sub(full)"),
    "sum": ("sum(channels)", "sum(channels, keepdim=True)", "sum(space, keepdim=True)"),
    "threshold": ("threshold(0.1, 20)",),
}
"""How stages are written that stand here otherwise than by their bare name."""

FAMILIES = {
    "pointwise": "elements",
    "window": "windows",
    "reduce": "axes",
    "norm": "norms",
    "shape": "form",
}
"""The modules that hold stages, in the order of the page, and what they are called there."""

HEAD = f"""# Which stage runs where

<!-- Written by `make docs`; a test compares it with what the backends say. -->

A backend puts as many stages as it can into the kernels of the convolution, and walks over stored
values for the others ([how a call travels](call.md)). Each cell is the answer of the backend's
own route for a chain of the convolution and this one stage, on `{SIZES}`:

- **kernel**: in the convolution's own kernels. A statistic over more than a tile, such as a
  norm's, adds a pass to them.
- **1 sweep**, **2 sweeps**: in so many walks over stored values. Neighbouring element stages are
  part of a walk, and cost none of their own.
- **torch**: in plain torch, with every stage that follows it; before the convolution, the whole
  chain.
- **—**: no such chain. The stage gives other channels than the weight takes, or axes are missing
  that the convolution needs.

Among the arguments `channel` is a tensor with one value per channel, `full` one as large as the
values (a residual, say), `gate` one with a value per sample and position. `cpu` is the C++ core,
`triton` the kernels for NVIDIA GPUs, here on Hopper; `tf32` is float32 multiplied as tf32. Longer
chains and other sizes may fall otherwise: `transfuse explain` says how, and why.
"""


def page() -> str:
    """The page: one table for what follows the convolution, one for what comes before it."""
    columns = [(backend, line) for backend, device in BACKENDS for line in _problems(device)]
    parts = [HEAD]
    for title, before in (("After the convolution", False), ("Before the convolution", True)):
        examples = _examples()
        answers: dict[tuple[str, ...], list[str]] = {}  # element types whose columns are alike
        for backend, problem in columns:
            column = [_cell(backend, problem, stage, before) for _, stage in examples]
            answers.setdefault((backend.name, *column), []).append(problem.arithmetic)
        heads = [f"{name}: {', '.join(types)}" for (name, *_), types in answers.items()]
        lines = [
            f"## {title}\n",
            f"| kind | stage | {' | '.join(heads)} |",
            "|---" * (len(heads) + 2) + "|",
        ]
        alike: dict[tuple[str, ...], list[str]] = {}  # stages of a family with the same answers
        for (text, stage), *given in zip(examples, *(c[1:] for c in answers), strict=True):
            alike.setdefault((_family(stage), *given), []).append(f"`{text}`")
        for (family, *cells), names in sorted(alike.items(), key=_place):
            lines.append(f"| {FAMILIES[family]} | {', '.join(names)} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _problems(device: str) -> list[Problem]:
    words = (f"fp32 {name}" if name == "tf32" else name for name in arithmetics(device))
    return [Problem.parse(f"{SIZES} {word} {device}") for word in words]


def _examples() -> list[tuple[str, Stage]]:
    """Every stage of the vocabulary, as it is written."""
    return [(text, parse(text)[0]) for name in KNOWN for text in EXAMPLES.get(name, (name,))]


def _family(stage: Stage) -> str:
    return type(stage).__module__.rpartition(".")[2]


def _place(row: tuple[tuple[str, ...], object]) -> int:
    """Where the family of a row stands on the page."""
    return list(FAMILIES).index(row[0][0])


def _cell(backend: Cpu | Triton, problem: Problem, stage: Stage, before: bool) -> str:
    pair = (stage, CONVOLUTION) if before else (CONVOLUTION, stage)
    try:
        chain = Chain(*pair).fitted(dict(_operands(problem.input if before else problem.output())))
        chain.shapes(problem)
    except (ValueError, RuntimeError):
        return "—"
    try:
        route = backend.route(chain, problem)
    except NoRoute:
        return "torch"
    if route.rest:
        return "torch"
    head, _, tail = route.sweeps()
    count = len(head.legs) + len(tail.legs)
    return "kernel" if route.alone else f"{count} sweep{'s' if count > 1 else ''}"


def _operands(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors that examples name, beside values of a shape."""
    yield "channel", (shape.c,)
    yield "full", shape.dims
    yield "gate", (shape.n, 1, *shape.spatial)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
