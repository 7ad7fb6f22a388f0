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
from transfuse.stages.actions import Action, Elementwise, Normalize, OverChannels, OverSpace, Pool
from transfuse.stages.running import Running
from transfuse.symbols import real


@dataclass(frozen=True)
class CoreStep:
    """One step of the core, with its tensors still by name."""

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
    pooled = False
    for stage, shape in zip(chain.prologue, shapes, strict=False):
        action = stage.action(shape)
        try:
            fits = _before(action) is not None and not (pooled and isinstance(action, Pool))
        except TooLong as reason:
            return f"{stage}: {reason}"
        if not fits:
            return f"before the convolution it does maps and one pool, not {stage}"
        pooled = pooled or isinstance(action, Pool)
    gathered = False
    for stage, shape in zip(chain.epilogue, shapes[chain.at + 1 :], strict=False):
        try:
            if _steps(stage, shape) is None:
                return f"it has no step for {stage}"
        except TooLong as reason:
            return f"{stage}: {reason}"
        action = stage.action(shape)
        if gathered and isinstance(action, Pool) and action.overlaps:
            return f"windows of {stage} overlap where a statistic is gathered before them"
        if stage.sees(rank) is Kind.WHOLE:
            gathered = stage.gathers and not stage.applies
    return ""


def prologue(chain: Chain, shapes: Sequence[Shape]) -> Iterator[CoreStep]:
    """The steps before the convolution: maps, and one pool at the most.

    ``shapes``: the values before each stage.
    """
    for stage, shape in zip(chain.prologue, shapes, strict=False):
        step = _before(stage.action(shape))
        assert step is not None
        yield replace(step, shape=shape) if step.code else step


def pooled(chain: Chain, shapes: Sequence[Shape]) -> bool:
    """Whether there is a pool before the convolution, which stores what it gives."""
    stages = zip(chain.prologue, shapes, strict=False)
    return any(isinstance(stage.action(shape), Pool) for stage, shape in stages)


def steps(chain: Chain, shapes: Sequence[Shape]) -> Iterator[tuple[int, CoreStep]]:
    """The steps after the convolution, each with the place of its stage; cuts are left open.

    ``shapes``: the values before each stage.
    """
    if isinstance(chain.conv.bias, str):
        yield chain.at, CoreStep("add", t0=chain.conv.bias)
    for i, stage in enumerate(chain.epilogue, chain.at + 1):
        for step in _steps(stage, shapes[i]) or ():
            yield i, step


def epilogue(plan: Plan) -> Iterator[CoreStep]:
    """The steps after the convolution, with the plan's cuts between them."""
    chain = plan.chain
    shapes = chain.shapes(plan.problem)
    for i, step in steps(chain, shapes):
        stage = chain.stages[i]
        held = _resident(stage, shapes[i]) if i in plan.resident else None
        if held is not None:
            if step.op == "cut":  # in place of all three
                yield held
            continue
        if step.op == "cut":
            chosen = Choice.AGAIN if i in plan.recomputed else Choice.STORE
            step = CoreStep("cut", i0=CUTS.index(chosen))
        action = stage.action(shapes[i])
        if step.op == "batch_stats" and isinstance(action, Normalize):
            step = replace(step, running=action.running, shape=shapes[i])
        if step.code:
            step = replace(step, shape=shapes[i])
        yield step


CUT = CoreStep("cut", i0=CUTS.index("decide"))


def _operand(op: str, value: Any) -> CoreStep:
    return CoreStep(op, t0=value) if isinstance(value, str) else CoreStep(op, f0=real(value))


_LOOPS: dict[Expr, Callable[..., CoreStep]] = {
    add.pattern: lambda term: _operand("add", term),
    scale.pattern: lambda factor: _operand("scale", factor),
    clamp.pattern: lambda low, high: CoreStep("clamp", f0=real(low), f1=real(high)),
    sigmoid.pattern: lambda: CoreStep("sigmoid"),
    tanh.pattern: lambda: CoreStep("tanh"),
}
"""Expressions that the core has a loop of its own for."""


def _map(each: Elementwise) -> CoreStep:
    make = _LOOPS.get(each.pattern)
    if make is not None and each.alone:
        return make(*each.arguments)
    return _coded(each)


def _coded(each: Elementwise) -> CoreStep:
    code = assemble(each.expr, each.constants, each.tensors)
    return CoreStep("map", code=code, spread=tuple(each.shapes))


def _before(action: Action | None) -> CoreStep | None:
    """The step that serves a stage before the convolution; None where there is none."""
    match action:
        case Elementwise():
            return _coded(action)
        case Pool():
            return _pool(action)
    return None


def _pool(pool: Pool) -> CoreStep:
    factor = 1 / pool.divisor if pool.how == "sum" else 0.0
    return CoreStep(f"{pool.how}_pool", f0=factor, windows=pool.windows, t0=pool.sign)


def _norm(op: str, norm: Normalize, groups: int = 0) -> CoreStep:
    return CoreStep(op, i0=groups, f0=norm.eps, t0=norm.weight, t1=norm.bias)


def _steps(stage: Stage, shape: Shape) -> tuple[CoreStep, ...] | None:
    """The steps that serve a stage on values of this shape; None where the core has none."""
    if stage.sees(len(shape.spatial)) is Kind.FORM:
        return ()
    match stage.action(shape):
        case Elementwise() as each:
            return (_map(each),)
        case Pool() as pool:
            return (_pool(pool),)
        case OverChannels(how):
            return (CoreStep(how),)
        case OverSpace(bounded):
            kind = "exp" if bounded else "max"
            return CoreStep(f"{kind}_stats"), CUT, CoreStep(f"{kind}_apply")
        case Normalize(given=(mean, var)) as norm:
            return (replace(_norm("norm", norm), t2=mean, t3=var),)
        case Normalize(over_batch=True) as norm:
            gathered = (CoreStep("batch_stats"),) if norm.gathers else ()
            return gathered + ((CUT, _norm("batch_apply", norm)) if norm.applies else ())
        case Normalize(groups=groups) as norm:
            return CoreStep("group_stats", i0=groups), CUT, _norm("group_apply", norm, groups)
    return None


def _resident(stage: Stage, shape: Shape) -> CoreStep | None:
    """The step of a tile that holds all positions of a sample; of the batch, none does."""
    match stage.action(shape):
        case OverSpace():
            return CoreStep("space_softmax")
        case Normalize(over_batch=False, groups=groups) as norm:
            return _norm("group_norm", norm, groups)
    return None
