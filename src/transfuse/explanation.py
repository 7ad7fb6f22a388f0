"""What a call would do, and why: ``explain`` computes nothing and changes nothing."""

import json
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transfuse import dispatch, front, functions
from transfuse.arrays import adopt
from transfuse.backends import Verdict
from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines.served import Explained
from transfuse.chain import Chain
from transfuse.elements import float32_on_cuda
from transfuse.floors import floor, floor_of_definition
from transfuse.operators import Operator, Solution
from transfuse.plan import Plan, fused, machine, milliseconds
from transfuse.problem import Problem, on_cuda
from transfuse.rewrite import Rewritten, rewrite
from transfuse.stages import Stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from transfuse.timings import Timings

COLUMNS = 80
FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    functions.conv_transpose,
    functions.conv_transpose1d,
    functions.conv_transpose2d,
    functions.conv_transpose3d,
)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a call would do; prints as ``transfuse explain`` does, in 80 columns.

    Attributes:
        problem: sizes, options, element type, layout, device and precision
        chain: what is computed, with its numbers bound
        rewrites: the identities that apply, each with the chain it gives
        fused: the plan of as few passes as the mathematics allows
        verdicts: what each backend answers, by name, in the order of asking
        chosen: the name of the backend that would run the call
        plan: the passes that it would run, with the flops, special functions and bytes of each
        floor: the least seconds for its passes at the rates by which plans are made (an H200's, or
            those of two CPU cores), special functions and a copy that must be among them
        floor_of_definition: likewise for its products and every tensor moved once alone
        tiles: on a GPU, each pass that convolves, with its engine, its tiles and where these come
            from, and why engines asked before do not serve
        backward: where it was asked for, the passes that gradients by all tensors take
        timings: where ``transfuse explain --measure`` asked for them, the passes predicted and
            measured on this machine
    """

    problem: Problem
    chain: Chain
    rewrites: tuple[Rewritten, ...]
    fused: Plan
    verdicts: Mapping[str, Verdict]
    chosen: str
    plan: Plan
    floor: float
    floor_of_definition: float
    tiles: tuple[Explained, ...] = ()
    backward: Plan | None = None
    timings: "Timings | None" = None

    @property
    def passed_over(self) -> dict[str, str]:
        """The backends asked before the chosen one, by name, and why they would not run it."""
        names = list(self.verdicts)
        return {name: str(self.verdicts[name]) for name in names[: names.index(self.chosen)]}

    def as_dict(self) -> dict[str, Any]:
        """Texts and numbers alone, as ``transfuse explain --json`` prints them."""
        return {
            "problem": str(self.problem),
            "chain": str(self.chain),
            "rewrites": [
                {"name": s.rewrite.name, "assumes": s.rewrite.assumes, "chain": str(s.chain)}
                for s in self.rewrites
            ],
            "fused": _numbers(self.fused),
            "floor_seconds": self.floor,
            "floor_of_definition_seconds": self.floor_of_definition,
            "backends": {name: str(verdict) for name, verdict in self.verdicts.items()},
            "chosen": self.chosen,
            "plan": _numbers(self.plan),
            "tiles": [
                {"pass": each.steps, "tiles": each.engine, "passed over": dict(each.passed_over)}
                for each in self.tiles
            ],
            **({} if self.backward is None else {"backward": _numbers(self.backward)}),
            **({} if self.timings is None else {"measured": self.timings.as_dict()}),
        }

    @property
    def _floors(self) -> str:
        kind = "an H200's" if on_cuda(self.problem.device) else "two CPU cores'"
        return (
            f"floor at {kind} rates: {milliseconds(self.floor)} ms in passes, "
            f"{milliseconds(self.floor_of_definition)} ms by the definition"
        )

    def json(self) -> str:
        """``as_dict`` as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return f"<{self.chosen} runs {self.chain} ({self.problem})>"

    def __str__(self) -> str:
        from rich.console import Console

        text = StringIO()
        Console(file=text, width=COLUMNS, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).rstrip()

    def __rich__(self) -> "RenderableType":
        """The same for the command line, which has colours and a width of its own."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        from transfuse.tables import facts, passes

        rows: list[RenderableType] = [facts({"problem": self.problem, "chain": self.chain})]
        for step in self.rewrites:
            name, assumes = step.rewrite.name, step.rewrite.assumes
            says = step.rewrite.says + (f" (assumes {assumes})" if assumes else "")
            rows += [Text.assemble((name, "bold"), f": {says}")]
            rows += [Padding(Text(str(step.chain), style="dim"), (0, 0, 0, 2))]
        rows += [passes("as few passes as the mathematics allows", self.fused)]
        rows += [self.fused.bounds, Text(f"{self._floors}\n")]
        rows += [facts(self.verdicts), passes(f"what {self.chosen} will run", self.plan)]
        rows += [Text(self.plan.note)] if self.plan.note else []
        for each in self.tiles:
            rows += [Text(each.steps, style="bold"), Padding(each.engine, (0, 0, 0, 2))]
            for engine, reason in each.passed_over.items():
                rows += [Padding(Text(f"not {engine}: {reason}", style="dim"), (0, 0, 0, 2))]
        if self.backward is not None:
            rows += [passes("what gradients by all tensors will run", self.backward)]
            rows += [Text(self.backward.note)] if self.backward.note else []
            rows += [self.backward.bounds]
        rows += [] if self.timings is None else [self.timings]
        return Group(*rows)


def explain(
    call: Callable[..., object] | Chain,
    /,
    *args: Any,
    device: str | None = None,
    backward: bool = False,
    **options: Any,
) -> Explanation:
    r"""Says what a call would do, and why; computes nothing, and changes nothing.

    The call is checked as if it were made: what is wrong with it raises here what it would raise.
    It is explained as it stands, with all that keeps it from a backend: its tensors, ``out=``,
    autocast, a transform around it. A chain that no backend runs, or not the one asked for, raises
    :class:`UnsupportedError`, which lists what each backend answered.

    Args:
        call: a function of this package (``conv_transpose``, ``conv_transpose1d`` to ``3d``, a
            named operator or its ``solution``), a module of ``transfuse.nn``, or a :class:`Chain`
        args: what one would call it with; for a chain: input, weight, and the tensors that the
            chain names as a dict. Only sizes matter, so tensors on ``meta`` will do.
        device: explain the call as it would be with plain tensors on this device, such as ``cpu``
            or ``cuda:sm90``, which need not be here. Default: where the tensors are.
        backward: whether to plan the gradients by all tensors, too. Default: ``False``
        options: the call's own, such as ``stride=2``, ``then=[sigmoid()]``, ``backend="cpu"``

    Returns:
        Explanation: prints readably; ``as_dict()`` and ``json()`` are for programs

    Example::

        >>> x = torch.empty(8, 64, 32, 32, device="meta")
        >>> weight = torch.empty(64, 32, 4, 4, device="meta")
        >>> found = transfuse.explain(
        ...     transfuse.conv_transpose, x, weight, stride=2, padding=1,
        ...     then=[max_pool(2), tanh()], device="cpu",
        ... )
        >>> found.chosen
        'cpu'
        >>> print(found.problem)
        n8 ci64 co32 i32x32 k4 s2 p1 fp32 cpu
        >>> [each.does for each in found.plan.passes]
        ['conv_transpose2d · max_pool(2) · tanh']
    """
    if device is not None:
        call, args, options = _stand_in(call), _stand_in(args), _stand_in(options)
        precision = options.pop("precision", "auto")
    reached = dispatch.reached(partial(_callable(call), *args, **options))
    chain, problem, backend, torch_only = reached.args
    if device is not None:
        if precision == "auto":
            alike = problem.dtype == "fp32" and on_cuda(device)
            precision = float32_on_cuda() if alike else "ieee"
        problem = replace(problem, device=device, precision=precision)
    return explained(chain, problem, backend, torch_only, backward)


def explained(
    chain: Chain,
    problem: Problem,
    backend: str | None = None,
    torch_only: str = "",
    backward: bool = False,
) -> Explanation:
    """The explanation of a chain on a problem; ``backend`` and ``torch_only`` as for a choice."""
    plan, steps = fused(chain, problem), rewrite(chain)
    choice = dispatch.decide(chain, problem, backend, torch_only)
    chosen = choice.backend
    seconds = partial(machine(problem.device).least, problem.arithmetic)
    return Explanation(
        problem,
        chain,
        steps,
        plan,
        {each.name: verdict for each, verdict in choice.verdicts},
        chosen.name,
        chosen.plan(chain, problem),
        floor(chain, problem, seconds),
        floor_of_definition(chain, problem, seconds),
        tuple(chosen.tiles(chain, problem)) if isinstance(chosen, Triton) else (),
        _backward(chain, problem) if backward else None,
    )


def _backward(chain: Chain, problem: Problem) -> Plan:
    from transfuse.gradients import plan_backward  # which an import of the package leaves alone

    return plan_backward(chain, problem)


def _is_layer(value: object) -> bool:
    """Whether it is a module of ``transfuse.nn``: there is none before that was imported."""
    nn = sys.modules.get("transfuse.nn.base")
    return nn is not None and isinstance(value, nn.Layer)


def _callable(call: Callable[..., object] | Chain) -> Callable[..., object]:
    if isinstance(call, Chain):
        return partial(_chain, call)
    if isinstance(call, Operator | Solution) or _is_layer(call) or call in FUNCTIONS:
        return call
    known = ", ".join(each.__name__ for each in FUNCTIONS)
    name = getattr(call, "__name__", None) or repr(call)
    raise TypeError(
        f"explain takes a function of transfuse ({known}, an operator or its solution), a module "
        f"of transfuse.nn or a Chain, and after it what it is called with, not {name}"
    )


def _chain(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Tensor:
    """A call of a chain: the tensors that it holds, and those that it names."""
    if not isinstance(operands, Mapping | None):
        kind = type(operands).__name__
        raise TypeError(f"the tensors that a chain names are given as a dict, not as {kind}")
    lifted, held = chain.lift()
    return front.call(lifted, x, weight, {**(operands or {}), **held}, **options)


def _stand_in(value: Any) -> Any:
    """What is given to a call, with tensors that have sizes alone in place of its own."""
    if isinstance(value, list | tuple):
        return type(value)(map(_stand_in, value))
    if isinstance(value, dict):
        return {key: _stand_in(each) for key, each in value.items()}
    if isinstance(value, Chain):
        return Chain(*map(_stand_in, value.stages))
    if isinstance(value, Stage):
        held = {k: _stand_in(v) for k, v in value.parameters() if isinstance(v, Tensor)}
        return value.with_parameters(held)
    if _is_layer(value):
        tensors = (*value.parameters(), *value.buffers())
        return deepcopy(value, {id(tensor): _stand_in(tensor) for tensor in tensors})
    if not isinstance(value, Tensor) and hasattr(value, "__dlpack__"):
        value = adopt("tensor", value)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return value
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return like.requires_grad_(value.requires_grad)


def _numbers(plan: Plan) -> dict[str, Any]:
    return {
        "chain": str(plan.chain),
        "work_flops": plan.work,
        "least_bytes": plan.least,
        "scratch_bytes": plan.scratch,
        "flops": plan.flops,
        "bytes": plan.bytes,
        "note": plan.note,
        "passes": [vars(step) for step in plan.passes],
    }
