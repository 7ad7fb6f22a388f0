"""One case: every variant made ready, judged, warmed up, and timed round by round."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from transfuse import front
from transfuse.accuracy import Oracle, StepOracle, longest_sum
from transfuse.backends.memory import memory_format
from transfuse.bench import whole
from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import Clock
from transfuse.bench.model_oracle import ModelOracle
from transfuse.bench.peers import Missing, Peer, Runner, Work, in_torch
from transfuse.bench.precision import Precision
from transfuse.bench.record import OURS, Row, Run
from transfuse.bench.statistics import ratios, spread
from transfuse.bench.subjects import Subject
from transfuse.bench.ways import Way
from transfuse.bench.whole import ModelWork, Whole
from transfuse.dispatch import choose
from transfuse.elements import ELEMENTS
from transfuse.fills import real
from transfuse.floors import Seconds, floor
from transfuse.plan import Pass, fused
from transfuse.problem import Problem

COPIES = 3
"""Inputs that take turns, so that no variant finds its own in a cache."""
WARM_UP = 2
FEWEST_ROUNDS = 5
FEWEST_PRODUCTS = 2 / 3
"""The share of the definition's products that the best algorithm here takes: rows in pairs."""
FEWEST_PRODUCTS_OF_MODELS = 8 / 27
"""Likewise of a model's other layers: Winograd's F(2, 3) along three axes."""


@dataclass(frozen=True)
class Ours:
    """transfuse itself, called as its functions are, by the backend its dispatcher chooses."""

    name: str = OURS
    trains: bool = True

    def build(self, work: Work) -> Runner:
        chain, p, weight, operands = work.chain, work.problem, work.weight, work.operands
        sizes = (p.stride, p.padding, p.output_padding, p.dilation, p.groups)
        precision: Any = p.precision

        def run(x: Tensor) -> Tensor:
            if not p.in_torch:  # nor have the functions such paddings as numbers
                return front.run(chain, p, x, weight, operands)
            return front.call(chain, x, weight, operands, None, *sizes, precision=precision)

        return in_torch(work, run, choose(chain, p).name)


@dataclass
class _Ready:
    """A variant that gave a right result, with what it was fed and what it took."""

    row: Row
    runner: Runner
    inputs: list[Any]
    samples: list[float]
    host: list[float]

    def call(self, turn: int) -> Callable[[], Any]:
        return lambda: self.runner.run(self.inputs[turn % len(self.inputs)])


def measure(
    run: Run,
    subject: Subject | Whole,
    precision: Precision,
    variants: Mapping[str, Peer] | Mapping[str, Way],
    ceilings: Ceilings,
    rounds: int,
    seconds: float,
    training: bool = False,
    tell: Callable[[str], None] = lambda doing: None,
) -> list[Row]:
    """The rows of one case in one precision class: ours first, then the peers in their order.

    ``training``: of a step, the call and the gradients of all its tensors. ``tell`` hears which
    variant is made ready, and that all are timed.
    """
    with torch.no_grad(), precision.applied():
        if isinstance(subject, Whole):
            task = _of_model(run, subject, precision, training)
        else:
            task = _of_chain(run, subject, precision, training)
        prepared, clock = [], ceilings.clock
        for name, variant in variants.items():
            tell(name)
            prepared.append(_prepare(replace(task.blank, variant=name), variant, task, clock))
        task.oracle = None  # it holds tensors in float64
        ready = [each for each in prepared if isinstance(each, _Ready)]
        tell(f"timing {len(ready)} variants in turn")
        _rounds(ready, clock, rounds, seconds)
    ceilings.measure()
    return _finish(prepared, ceilings, task)


@dataclass
class _Task:
    """One thing to compute, the truth about it, and a row of what is known before it is run.

    ``fewest``: the least flops that any algorithm here takes for it. ``floor``: the least seconds
    that its passes take one after another, where those of each are given.
    """

    work: Work | ModelWork
    oracle: Oracle | StepOracle | ModelOracle | None
    blank: Row
    fewest: float
    floor: Callable[[Seconds], float]


def _of_chain(run: Run, subject: Subject, precision: Precision, training: bool) -> _Task:
    subject = subject.on(precision.arithmetic, run.device)
    chain, problem = subject.chain, subject.case.problem
    x, weight, operands = real(chain, problem, run.seed)
    work = Work(chain, problem, precision, x, weight, operands)
    work = _trained(work, run.seed) if training else work
    plan = fused(chain, problem)
    flops, least = plan.work, plan.least
    back = None
    if training:
        # Three convolutions. The gradient of the result is read, the input and the weight once
        # more, and the gradients of these two are written.
        back = Pass("gradients", 2 * plan.work, plan.least + _held(problem), 0)
        flops, least = flops + back.flops, least + back.bytes
    blank = _blank(run, subject, precision, training, flops, least)

    def passes(seconds: Seconds) -> float:
        return floor(chain, problem, seconds) + (seconds(back) if back else 0.0)

    # Gradients behind a maximum are mostly zeros, which need no products.
    return _Task(work, _oracle(work), blank, FEWEST_PRODUCTS * plan.work, passes)


def _of_model(run: Run, subject: Whole, precision: Precision, training: bool) -> _Task:
    subject = subject.on(precision.arithmetic, run.device)
    work, counted = whole.work(subject, precision, run.device, run.seed, training)
    times = 3 if training else 1
    blank = _blank(run, subject, precision, training, times * counted.flops, times * counted.bytes)
    fewest = FEWEST_PRODUCTS_OF_MODELS * counted.flops
    # How many passes its layers take nobody has counted: one, as far as is known.
    one = Pass(subject.name, blank.flops, blank.bytes, 0)
    oracle = whole.oracle(work, precision)
    return _Task(work, oracle, blank, fewest, lambda seconds: seconds(one))


def _trained(work: Work, seed: int) -> Work:
    """The work as a step of training."""
    generator = torch.Generator(work.x.device).manual_seed(seed)
    sizes = work.chain.result(work.problem)
    cotangent = torch.randn(sizes, generator=generator, device=work.x.device).to(work.x.dtype)
    form = memory_format(sizes, work.problem.layout == "channels_last")
    for tensor in work.trained:
        tensor.requires_grad_()
    return replace(work, cotangent=cotangent.contiguous(memory_format=form))


def _oracle(work: Work) -> Oracle | StepOracle:
    given = (work.chain, work.problem, work.x, work.weight, work.operands)
    if work.cotangent is None:
        return Oracle(*given, work.precision.ulp, longest_sum(work.chain, work.problem))
    trained = [name for name in work.operands if name not in work.chain.updates]
    return StepOracle(*given, work.cotangent, trained, work.precision.ulp)


def _blank(
    run: Run, subject: Subject | Whole, precision: Precision, training: bool, flops: int, least: int
) -> Row:
    return Row(
        run=run.id,
        slug=subject.slug,
        name=subject.name,
        case=str(subject.case),
        precision=precision.name,
        device=run.device,
        variant="",
        status="ok",
        axis=subject.axis,
        at=subject.at,
        flops=flops,
        bytes=least,
        training=training,
    )


def _held(problem: Problem) -> int:
    """Bytes of input and weight."""
    held = problem.input.numel + prod(problem.weight)
    return held * ELEMENTS[problem.dtype].itemsize


def _prepare(row: Row, variant: Any, task: _Task, clock: Clock) -> Row | _Ready:
    """First call, gate, warm-up; a Row alone where the variant is not to be timed."""
    work, oracle = task.work, task.oracle
    assert oracle is not None
    try:
        if row.training and not variant.trains:
            raise Missing("it computes no gradients")
        begun = perf_counter()
        runner = variant.build(work)
        native = runner.adapt(work.x)
        y = runner.run(native)
        result = runner.collect(y)
        if row.device.startswith("cuda"):
            torch.cuda.synchronize()
        row = replace(row, first_call=perf_counter() - begun, backend=runner.note)
        accuracy = oracle.judge(result)
        row = replace(row, error=accuracy.used if accuracy.used < float("inf") else None)
        if not accuracy.ok:
            return replace(row, status="wrong", reason=accuracy.fault)
        del y, result
        inputs = [native, *(runner.adapt(work.again()) for _ in range(COPIES - 1))]
        ready = _Ready(row, runner, inputs, [], [])
        for turn in range(WARM_UP):
            ready.call(turn)()
        ready.row = replace(row, peak_bytes=clock.peak(ready.call(0)))
        return ready
    except Missing as missing:
        return replace(row, status="missing", reason=str(missing))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return replace(row, status="failed", reason=reason)


def _rounds(ready: list[_Ready], clock: Clock, rounds: int, seconds: float) -> None:
    """Every variant once a round, another one first each time, until rounds or time are up."""
    gc.collect()
    gc.disable()
    begun = perf_counter()
    try:
        for turn in range(rounds):
            if turn >= FEWEST_ROUNDS and perf_counter() - begun > seconds:
                break
            first = turn % len(ready) if ready else 0
            for each in ready[first:] + ready[:first]:
                device, host = clock.time(each.call(turn))
                each.samples.append(device)
                each.host.append(host)
    finally:
        gc.enable()


def _finish(prepared: list[Row | _Ready], ceilings: Ceilings, task: _Task) -> list[Row]:
    ours = next(
        (p.samples for p in prepared if isinstance(p, _Ready) and p.row.variant == OURS), None
    )
    row, rows = task.blank, []
    definition = ceilings.floor_of_definition(row.flops, row.bytes, row.precision)
    passes = task.floor(partial(ceilings.seconds, precision=row.precision))
    least = ceilings.floor_of_definition(round(task.fewest), row.bytes, row.precision)
    for each in prepared:
        if isinstance(each, Row):
            rows.append(each)
            continue
        time = spread(each.samples)
        is_peer = ours is not None and each.row.variant != OURS
        rows.append(
            replace(
                each.row,
                samples=each.samples,
                host_samples=each.host,
                time=time,
                ratio=ratios(each.samples, ours) if is_peer and ours else None,
                floor=max(passes, definition),
                floor_of_definition=definition,
                impossible=time.median < least,
            )
        )
    return rows
