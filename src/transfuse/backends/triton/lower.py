"""A plan as launches: which ops run in which kernel, what is gathered, what is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isnan, log, nan
from typing import Any

from transfuse.backends.triton.segments import (
    Lowered,
    Node,
    Segment,
    SegmentStatistic,
    TileOp,
    power,
)
from transfuse.chain import Chain
from transfuse.maths.expr import Call, Constant, Expr, Name, folded
from transfuse.plan import Plan
from transfuse.problem import Problem, Shape
from transfuse.stages import Kind, Stage, add, clamp, scale, sigmoid, tanh
from transfuse.stages.actions import (
    Action,
    Elementwise,
    Normalize,
    OverChannels,
    OverSpace,
    Pool,
)

MOST_CHANNELS = 256
"""Channels a tile of the convolution can hold where a stage must see them all."""

MOST_ELEMENTS = 2**16
"""Elements one tile can hold where a stage must see them all."""

MOST_FACTOR = 2.0**100
"""Factors beyond stay where they are: their products with others might overflow."""


MOST_PARTS = 256
"""Parts of an expression written out: a part used twice counts twice, all of it."""


class Refused(Exception):
    """Why there is no such program."""


@lru_cache(maxsize=4096)
def lowered(chain: Chain, plan: Plan) -> Lowered:
    """The launches of a plan; ``chain`` is the one as declared. Raises ``Refused``."""
    walk = _Walk(chain, plan)
    return walk.lowered()


@dataclass
class _Walk:
    declared: Chain
    plan: Plan
    segments: list[Segment] = field(default_factory=list)
    statistics: list[SegmentStatistic] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    at: int = 0
    """The pass of each segment, and of the one under way."""

    def lowered(self) -> Lowered:
        chain, problem = self.plan.chain, self.plan.problem
        before, pool, after = self._prologue(chain, problem)
        factor = chain.conv.weight_scale
        if pool is not None:
            factor /= pool.divisor
        self._epilogue(chain, problem)
        for each in self.segments:
            _check(each)
        return Lowered(
            before,
            pool,
            after,
            factor,
            tuple(self.segments),
            tuple(self.statistics),
            tuple(self.passes),
        )

    def _prologue(
        self, chain: Chain, problem: Problem
    ) -> tuple[tuple[TileOp, ...], Pool | None, tuple[TileOp, ...]]:
        sides: tuple[list[TileOp], list[TileOp]] = ([], [])
        pool: Pool | None = None
        rank = chain.conv.rank
        for stage, shape in zip(chain.prologue, chain.shapes(problem), strict=False):
            action = stage.action(shape)
            steps = _steps(stage, action) if stage.sees(rank) is Kind.POINTWISE else None
            if isinstance(action, Pool) and action.sign is None and pool is None:
                pool = action
            elif steps is not None:
                if not all(step.per_channel for step in steps):
                    raise Refused(
                        f"before the convolution it reads one value per channel, and {stage} more"
                    )
                sides[pool is not None].extend(steps)
            else:
                raise Refused(f"before the convolution it has no kernel for {stage}")
        return _folded(sides[0]), pool, _folded(sides[1])

    def _epilogue(self, chain: Chain, problem: Problem) -> None:
        shapes = chain.shapes(problem)
        self.source, self.convolves, rank = shapes[chain.at + 1], True, chain.conv.rank
        self.steps: list[TileOp | Pool | int] = list(self._bias(chain))
        for i, stage in enumerate(chain.epilogue, chain.at + 1):
            shape, sees = shapes[i], stage.sees(rank)
            whole, action = sees is Kind.WHOLE, stage.action(shape)
            steps = () if sees is Kind.FORM else _steps(stage, action)
            if isinstance(action, Normalize) and not action.applies:
                self.statistics.append(_statistic(action, shape))
                self.steps.append(len(self.statistics) - 1)
            elif whole and (i not in self.plan.resident or _of_batch(action)):
                self._cut(action, shape, again=i in self.plan.recomputed)
                self.at += i not in self.plan.resident
            elif whole:
                self.steps.extend(_resident(action, shape))
            elif isinstance(action, Pool):
                self.steps.append(action)
                if action.divisor != 1:
                    self.steps.append(TileOp("scale_number", numbers=(1 / action.divisor,)))
            elif steps is not None:
                if sees is Kind.CHANNEL and not self._sees(shape):
                    self._segment(shape, late=None, stores=True)
                    self.source, self.convolves, self.steps = shape, False, []
                self.steps.extend(steps)
            else:
                raise Refused(f"it has no kernel for {stage}")
        self._segment(shapes[-1], late=None, stores=True)

    def _sees(self, shape: Shape) -> bool:
        """Whether a tile of the segment under way holds all channels."""
        problem = self.plan.problem
        grouped = problem.groups > 1 and problem.groups < problem.in_channels
        return not self.convolves or (shape.c <= MOST_CHANNELS and (not grouped or shape.c == 1))

    def _bias(self, chain: Chain) -> tuple[TileOp, ...]:
        if isinstance(chain.conv.bias, str):
            return (TileOp("add", (chain.conv.bias,)),)
        dropped = self.declared.conv.bias
        used = {name for stage in chain.stages for name in stage.operands}
        if isinstance(dropped, str) and dropped not in used:
            return (TileOp("poison", (dropped,)),)
        return ()

    def _cut(self, action: Action | None, shape: Shape, again: bool) -> None:
        late = None
        if isinstance(action, Normalize) and not action.gathers:
            # SegmentStatistic before the pool that stands between.
            self.statistics[-1] = replace(self.statistics[-1], eps=action.eps)
        else:
            self.statistics.append(_statistic(action, shape))
            late = len(self.statistics) - 1
        self._segment(shape, late, stores=not again)
        if again:
            self.steps = [step for step in self.steps if not isinstance(step, int)]
        else:
            self.source, self.convolves, self.steps = shape, False, []
        self.steps.extend(_apply(action, shape, len(self.statistics) - 1))

    def _segment(self, result: Shape, late: int | None, stores: bool) -> None:
        windows = [at for at, step in enumerate(self.steps) if isinstance(step, Pool)]
        if windows and not self.convolves:
            found = self.steps[windows[-1]]
            raise Refused(f"it pools in the convolution's own pass, and {found} comes after a cut")
        if len(windows) > 1:
            found = self.steps[windows[-1]]
            raise Refused(f"it pools once after the convolution, and {found} is one more")
        at = windows[0] if windows else -1
        before = _folded([s for s in self.steps[: max(at, 0)] if isinstance(s, TileOp)])
        after = _folded([s for s in self.steps[at + 1 :] if isinstance(s, TileOp)])
        if not all(op.per_channel for op in before):
            raise Refused("before a window it reads one value per channel, and a map has more")
        early = [s for s in self.steps if isinstance(s, int)]
        window = self.steps[at] if windows else None
        assert window is None or isinstance(window, Pool)
        self.passes.append(self.at)
        self.segments.append(
            Segment(
                self.convolves,
                self.source,
                result,
                before,
                window,
                after,
                early[0] if early else None,
                late,
                stores,
            )
        )


def _folded(steps: list[TileOp]) -> tuple[TileOp, ...]:
    """Steps with fewer products by numbers. A sigmoid is that of base 2, behind its factor."""
    found: list[TileOp] = []
    for step in steps:
        if step.op == "scale_number" and abs(step.numbers[0]) < MOST_FACTOR:
            found = _scaled(found, step.numbers[0])
            continue
        if step.op == "sigmoid":
            factor = -1 / log(2)
            if found and found[-1].op == "scale_number" and abs(found[-1].numbers[0]) < MOST_FACTOR:
                factor *= found.pop().numbers[0]
            found = _scaled(found, factor)
        found.append(step)
    return tuple(found)


def _scaled(steps: list[TileOp], factor: float) -> list[TileOp]:
    """The result of steps times a factor.

    A softmax takes it into what it divides by, and terms added since are multiplied one by one:
    nothing is left to do for each element.
    """
    at = len(steps) - 1
    while at > 0 and steps[at].op == "add":
        at -= 1
    if at >= 0 and steps[at].op == "softmax":
        scaled = [replace(each, factor=each.factor * factor) for each in steps[at:]]
        if all(abs(each.factor) < MOST_FACTOR for each in scaled):
            return steps[:at] + scaled
    return [*steps, TileOp("scale_number", numbers=(factor,))]


def _check(each: Segment) -> None:
    """Refuse what no tile can hold."""
    if each.window is not None and each.early is not None and not each.window.tiles:
        raise Refused(f"windows of {each.window} overlap where a statistic is gathered before them")
    if any(step.op == "sum" for step in each.before):
        raise Refused("it sums over channels after a window, not before one")
    if each.channel_stage and power(each.source.c) * 4 > MOST_ELEMENTS:
        raise Refused(f"softmax and sum over {each.source.c} channels do not fit one tile")
    resident = each.resident
    if resident is not None:
        grouped = resident.op == "group_norm" and resident.size != each.source.c
        if each.channel_stage and grouped:
            raise Refused("a norm over groups and a stage over all channels meet in one pass")
        held = (each.source.c if each.channel_stage else resident.size) * each.source.positions
        if power(held) > MOST_ELEMENTS:
            raise Refused(f"a tile would hold {held} elements; {MOST_ELEMENTS} is the most")


def _operand(op: str, value: Any) -> tuple[TileOp, ...]:
    if isinstance(value, str):
        return (TileOp(op, (value,)),)
    return (TileOp(f"{op}_number", numbers=(float(value),)),)


def _clamp(low: float, high: float) -> tuple[TileOp, ...]:
    if isnan(low) or isnan(high):  # everything becomes NaN
        return (TileOp("scale_number", numbers=(nan,)),)
    return (TileOp("clamp", numbers=(float(low), float(high))),)


_OWN: dict[Expr, Callable[..., tuple[TileOp, ...]]] = {
    add.pattern: lambda term: _operand("add", term),
    scale.pattern: lambda factor: _operand("scale", factor),
    clamp.pattern: _clamp,
    sigmoid.pattern: lambda: (TileOp("sigmoid"),),
    tanh.pattern: lambda: (TileOp("tanh"),),
}
"""Expressions with ops of their own, which others fold into."""


def _map(stage: Stage, each: Elementwise) -> tuple[TileOp, ...]:
    make = _OWN.get(each.pattern)
    if make is not None and each.alone:
        return make(*each.arguments)
    numbers = list(each.constants.values())
    try:
        whole = parts(each.expr, list(each.tensors), numbers, list(each.constants))
    except Refused as reason:
        raise Refused(f"{stage} {reason}") from None
    named = tuple(each.tensors.values())
    spread = tuple(name in each.shapes for name in named)
    return (TileOp("map", named, tuple(numbers), expr=whole, spread=spread),)


def parts(
    expr: Expr, tensors: Sequence[str], numbers: list[float], named: Sequence[str] = ()
) -> Node:
    """An expression as kernels take it; its constants join the numbers, the first are ``named``."""

    def leaf(each: Expr) -> Node:
        if isinstance(each, Constant):
            numbers.append(each.value)
            return Node("number", len(numbers) - 1)
        assert isinstance(each, Name)
        if each.name in named:
            return Node("number", named.index(each.name))
        return Node("tensor", tensors.index(each.name)) if each.name in tensors else Node("x")

    size = folded(expr, lambda _: 1, lambda _, sizes: 1 + sum(sizes))
    if size > MOST_PARTS:
        raise Refused(f"unfolds to {size} parts; {MOST_PARTS} is the most")
    whole: Node = folded(expr, leaf, _node)
    return whole


def _node(each: Call, found: Sequence[Node]) -> Node:
    """A primitive of parts; the sigmoid of both signs is one step, with one exponential."""
    if each.primitive == "mul" and all(part.op == "sigmoid" for part in found):
        (first,), (second,) = (part.parts for part in found)
        if second == Node("neg", parts=(first,)):
            return Node("sigmoid_slope", parts=(first,))
    return Node(each.primitive, parts=tuple(found))


def _steps(stage: Stage, action: Action | None) -> tuple[TileOp, ...] | None:
    """The steps of a tile for a stage that sees no more than it; None where there are none."""
    match action:
        case Elementwise() as each:
            return _map(stage, each)
        case OverChannels(how):
            return (TileOp(how),)
        case Normalize(given=(mean, var)) as norm:
            return (TileOp("running_apply", (mean, var), numbers=(norm.eps,)), *_affine(norm))
    return None


def _affine(norm: Normalize) -> tuple[TileOp, ...]:
    weight = (TileOp("scale", (norm.weight,)),) if norm.weight is not None else ()
    return weight + ((TileOp("add", (norm.bias,)),) if norm.bias is not None else ())


def _statistic(action: Action | None, shape: Shape) -> SegmentStatistic:
    match action:
        case OverSpace(bounded):
            return SegmentStatistic("exponentials" if bounded else "peaks", shape.c)
        case Normalize(over_batch=True, eps=eps, running=running):
            return SegmentStatistic("moments", shape.c, over_batch=True, eps=eps, running=running)
        case Normalize(eps=eps, groups=groups):
            return SegmentStatistic("moments", shape.c, shape.c // groups, eps=eps)
    raise AssertionError(f"{action} has no statistic")


def _apply(action: Action | None, shape: Shape, at: int) -> tuple[TileOp, ...]:
    halves = ((at, 0), (at, 1))
    match action:
        case OverSpace(bounded):
            op = "bounded_apply" if bounded else "space_apply"
            return (TileOp(op, halves, count=shape.c),)
        case Normalize(over_batch=True) as norm:
            return (TileOp("batch_apply", halves), *_affine(norm))
        case Normalize(groups=groups) as norm:
            step = TileOp("group_apply", halves, size=shape.c // groups, count=groups)
            return (step, *_affine(norm))
    raise AssertionError(f"{action} applies no statistic")


def _of_batch(action: Action | None) -> bool:
    """Whether a statistic covers all samples, which no program of a later segment holds."""
    return isinstance(action, Normalize) and action.over_batch


def _resident(action: Action | None, shape: Shape) -> tuple[TileOp, ...]:
    match action:
        case OverSpace():
            return (TileOp("space_softmax"),)
        case Normalize(eps=eps, groups=groups) as norm:
            size = shape.c // groups
            return (TileOp("group_norm", numbers=(eps,), size=size), *_affine(norm))
    raise AssertionError(f"no tile holds what {action} sees")
