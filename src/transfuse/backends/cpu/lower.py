"""A plan as the steps of the core: one place that says which step serves which stage."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfuse.backends.cpu.bytecode import Code, TooLong, assemble
from transfuse.backends.cpu.library import CUTS, OPS, Sizes, Step
from transfuse.chain import Chain
from transfuse.maths.expr import Expr
from transfuse.plan import Choice, Plan
from transfuse.problem import Shape
from transfuse.stages import Kind, Stage, add, clamp, scale, sigmoid, tanh
from transfuse.stages.norm import BatchApply, BatchStatistics, Norm
from transfuse.stages.pointwise import Map
from transfuse.stages.reduce import Reduce, Softmax
from transfuse.stages.running import Running
from transfuse.stages.window import AvgPool, ExtremumPool, MaxPool, Window
from transfuse.symbols import real


@dataclass(frozen=True)
class Instruction:
    """One step, with its tensors still by name."""

    op: str
    i0: int = 0
    f0: float = 0.0
    f1: float = 0.0
    windows: tuple[tuple[int, int, int], ...] = ()
    t0: str | None = None
    t1: str | None = None
    t2: str | None = None
    t3: str | None = None
    running: Running | None = None
    shape: Shape | None = None
    """What a statistic over the batch moves; the shape of the values that it or a map sees."""
    code: Code | None = None
    """Of a map."""
    spread: tuple[str, ...] = ()
    """Its operands that have more than one value per channel."""

    def step(self, address: Callable[[str], int]) -> Step:
        # Missing axes come first, and a window of 1 leaves them alone.
        windows = ((1, 1, 0),) * (3 - len(self.windows)) + self.windows
        kernel, stride, padding = (Sizes(*values) for values in zip(*windows, strict=True))
        tensors = (name and address(name) for name in (self.t0, self.t1, self.t2, self.t3))
        op = OPS.index(self.op)
        return Step(op, self.i0, kernel, stride, padding, self.f0, self.f1, *tensors)


def refusal(chain: Chain, shapes: Sequence[Shape]) -> str:
    """Why the core cannot run a rewritten chain; empty where it can.

    ``shapes``: the values before each stage.
    """
    rank = chain.conv.rank
    if len(chain.prologue) > 1 or not all(_pools(stage, rank) for stage in chain.prologue):
        return (
            f"before the convolution it does one pool, not {' -> '.join(map(str, chain.prologue))}"
        )
    gathered = False
    for stage, shape in zip(chain.epilogue, shapes[chain.at + 1 :], strict=False):
        try:
            if _steps(stage, shape) is None:
                return f"it has no step for {stage}"
        except TooLong as reason:
            return f"{stage}: {reason}"
        if gathered and isinstance(stage, Window) and _overlap(stage, rank):
            return f"windows of {stage} overlap where a statistic is gathered before them"
        if stage.sees(rank) is Kind.WHOLE:
            gathered = stage.gathers and not stage.applies
    return ""


def prologue(chain: Chain) -> Instruction | None:
    """The pool before the convolution."""
    for stage in chain.prologue:
        assert isinstance(stage, Window)
        return _pool(stage, chain.conv.rank)
    return None


def steps(chain: Chain, shapes: Sequence[Shape]) -> Iterator[tuple[int, Instruction]]:
    """The steps after the convolution, each with the place of its stage; cuts are left open.

    ``shapes``: the values before each stage.
    """
    if isinstance(chain.conv.bias, str):
        yield chain.at, Instruction("add", t0=chain.conv.bias)
    for i, stage in enumerate(chain.epilogue, chain.at + 1):
        for instruction in _steps(stage, shapes[i]) or ():
            yield i, instruction


def epilogue(plan: Plan) -> Iterator[Instruction]:
    """The steps after the convolution, with the plan's cuts between them."""
    chain = plan.chain
    shapes = chain.shapes(plan.problem)
    for i, instruction in steps(chain, shapes):
        stage = chain.stages[i]
        held = _resident(stage, shapes[i]) if i in plan.resident else None
        if held is not None:
            if instruction.op == "cut":  # in place of all three
                yield held
            continue
        if instruction.op == "cut":
            chosen = Choice.AGAIN if i in plan.recomputed else Choice.STORE
            instruction = Instruction("cut", i0=CUTS.index(chosen))
        if instruction.op == "batch_stats" and isinstance(stage, Norm | BatchStatistics):
            instruction = replace(instruction, running=stage.running, shape=shapes[i])
        if instruction.code:
            instruction = replace(instruction, shape=shapes[i])
        yield instruction


CUT = Instruction("cut", i0=CUTS.index("decide"))


def _operand(op: str, value: Any) -> Instruction:
    return Instruction(op, t0=value) if isinstance(value, str) else Instruction(op, f0=real(value))


_LOOPS: dict[Expr, Callable[..., Instruction]] = {
    add.pattern: lambda term: _operand("add", term),
    scale.pattern: lambda factor: _operand("scale", factor),
    clamp.pattern: lambda low, high: Instruction("clamp", f0=real(low), f1=real(high)),
    sigmoid.pattern: lambda: Instruction("sigmoid"),
    tanh.pattern: lambda: Instruction("tanh"),
}
"""Expressions that the core has a loop of its own for."""


def _map(stage: Map) -> Instruction:
    make = _LOOPS.get(stage.function.pattern)
    if make is not None and stage.per_channel and (not stage.tensors or len(stage.arguments) == 1):
        return make(*stage.arguments)
    return Instruction("map", code=_code(stage), spread=tuple(dict(stage.shapes)))


def _code(stage: Map) -> Code:
    return assemble(stage.function.expr, stage.constants, stage.tensors)


def _overlap(stage: Window, rank: int) -> bool:
    windows = stage.windows(rank)
    return any(stride < kernel or padding for kernel, stride, padding in windows)


def _pools(stage: Stage, rank: int) -> bool:
    return isinstance(stage, MaxPool | AvgPool | ExtremumPool) and stage.simple(rank)


def _pool(stage: Window, rank: int) -> Instruction:
    windows = stage.windows(rank)
    if isinstance(stage, AvgPool):
        divisor = stage.divisor(rank)
        assert divisor is not None, "a simple pool has one"
        return Instruction("sum_pool", f0=1 / divisor, windows=windows)
    if isinstance(stage, ExtremumPool):
        return Instruction("sign_pool", windows=windows, t0=_name(stage.sign))
    return Instruction("max_pool", windows=windows)


def _name(operand: Any) -> str | None:
    return operand if isinstance(operand, str) else None


def _norm(op: str, stage: Any, groups: int = 0) -> Instruction:
    weight, bias = _name(stage.weight), _name(stage.bias)
    return Instruction(op, i0=groups, f0=stage.eps, t0=weight, t1=bias)


def _steps(stage: Stage, shape: Shape) -> tuple[Instruction, ...] | None:
    """The steps that serve a stage on values of this shape; None where the core has none."""
    rank = len(shape.spatial)
    sees = stage.sees(rank)
    if isinstance(stage, Map):
        return (_map(stage),)
    if sees is Kind.FORM:
        return ()
    if isinstance(stage, Window) and _pools(stage, rank):
        return (_pool(stage, rank),)
    if isinstance(stage, Reduce) and stage.name == "sum" and sees is Kind.CHANNEL:
        return (Instruction("sum"),)
    if isinstance(stage, Softmax) and sees is Kind.CHANNEL:
        return (Instruction("softmax"),)
    if isinstance(stage, Softmax) and sees is Kind.WHOLE:
        kind = "exp" if stage.bounded else "max"
        return Instruction(f"{kind}_stats"), CUT, Instruction(f"{kind}_apply")
    if isinstance(stage, BatchStatistics):
        return (Instruction("batch_stats"),)
    if isinstance(stage, BatchApply):
        return CUT, _norm("batch_apply", stage)
    if not isinstance(stage, Norm) or sees is Kind.AXES:
        return None
    if sees is Kind.POINTWISE:
        mean, var = _name(stage.running_mean), _name(stage.running_var)
        return (replace(_norm("norm", stage), t2=mean, t3=var),)
    if stage.over == "batch":
        return Instruction("batch_stats"), CUT, _norm("batch_apply", stage)
    groups = stage.groups(shape)
    return Instruction("group_stats", i0=groups), CUT, _norm("group_apply", stage, groups)


def _resident(stage: Stage, shape: Shape) -> Instruction | None:
    """The step of a tile that holds all positions of a sample; of the batch, none does."""
    if isinstance(stage, Softmax):
        return Instruction("space_softmax")
    if isinstance(stage, Norm) and stage.over != "batch":
        return _norm("group_norm", stage, stage.groups(shape))
    return None
