"""Tiles by measurement: segment by segment, candidate by candidate, the best one kept on disk.

A candidate is timed as the whole call, the other segments as they are: what one segment leaves
behind, the next one reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from time import perf_counter

import torch
from torch import Tensor

from transfuse.accuracy import SAFETY, longest_sum
from transfuse.backends.triton import Triton, calls, lower, tuned, tuned_files
from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.workload import Workload, workload_of
from transfuse.backends.triton.launch_plan import LaunchPlan
from transfuse.backends.triton.segments import Segment
from transfuse.bench.clock import Clock
from transfuse.bench.statistics import spread
from transfuse.chain import Chain
from transfuse.fills import real
from transfuse.problem import Problem

FINALISTS = 4
SCREEN = (3, 10, 0.2)
FINAL = (3, 25, 2.0)
"""The fewest rounds, the most, and seconds after which no further one begins."""


@dataclass(frozen=True)
class Trial:
    """One choice of tiles: seconds, or why it is out."""

    config: tiling.Tiling
    seconds: float = float("inf")
    fault: str = ""


@dataclass(frozen=True)
class Outcome:
    """What was found for one segment, and the file that holds it now."""

    key: tuned_files.Key
    problem: str
    best: Trial
    heuristic: Trial
    tried: int
    faults: tuple[str, ...]
    file: str

    @property
    def gain(self) -> float:
        """How many times as fast as with the heuristic's tiles."""
        return self.heuristic.seconds / self.best.seconds


@dataclass(frozen=True)
class Skipped:
    """A segment that has no tiles to tune, and why."""

    key: tuned_files.Key
    problem: str
    why: str


class Tuner:
    """The segments of one problem that convolve; iterating tunes them in order.

    ``budget`` seconds go to each segment and at most ``most`` candidates; ``tell`` hears of each.
    What an interrupt leaves of a segment is kept, too.
    """

    def __init__(
        self,
        chain: Chain,
        problem: Problem,
        clock: Clock,
        budget: float,
        most: int | None = None,
        tell: Callable[[Trial, Trial], None] = lambda trial, best: None,
    ) -> None:
        verdict = Triton().verdict(chain, problem)
        if not verdict.ok:
            raise ValueError(f"triton does not run {problem}: {verdict.reason}")
        plan = Triton().plan(chain, problem)
        self.chain, self.plan, self.problem = chain, plan, problem
        self.clock, self.tell = clock, tell
        self.budget, self.most = budget, most or 2**31
        self.lowered, self.core = lower.lowered(chain, plan), plan.chain.core(problem)
        self.x, self.weight, self.operands = real(chain, problem, seed=0)
        shape = plan.chain.shapes(problem)[-1].dims
        self.out = torch.empty(shape, dtype=self.x.dtype, device=self.x.device)
        self.gpu, self.capability = tuned.gpu(self.x.device), tuned.capability(self.x.device)
        self.slack = SAFETY * sqrt(longest_sum(chain, problem)) * Triton().ulp(problem)
        self.expected: Tensor | None = None
        self.launch_plans: dict[tiling.Tiling, LaunchPlan] = {}
        self.segments = [each for each in self.lowered.segments if each.convolves]

    def __iter__(self) -> Iterator[Outcome | Skipped]:
        for each, served in zip(self.segments, self._launch_plan().served, strict=True):
            work = workload_of(self.lowered, self.core, each)
            self.launch_plans.clear()
            if served.engine != tuned_files.PORTABLE:
                key = tuned.key(self.lowered, self.core, each, self.gpu, served.engine)
                yield Skipped(key, str(self.problem), f"the engine {served.engine} runs it")
                continue
            trials: list[Trial] = []
            stopped: BaseException | None = None
            try:
                self._screen(each, work, trials)
                trials += self._race(trials)
            except (KeyboardInterrupt, Exception) as error:
                stopped = error
            if any(not trial.fault for trial in trials):
                yield self._keep(each, work, trials)
            if stopped is not None:
                raise stopped
            if all(trial.fault for trial in trials):
                raise RuntimeError(f"no tiles run {self.problem}: {trials[0].fault}")

    def _screen(self, each: Segment, work: Workload, trials: list[Trial]) -> None:
        """Try candidates until time or number is spent; the first one always."""
        begun = perf_counter()

        def spent() -> float:
            return max((perf_counter() - begun) / self.budget, len(trials) / self.most)

        for config in self._order(each, work, trials, spent):
            trials.append(self._try(each, config))
            self.tell(trials[-1], min(trials, key=_seconds))
            if spent() >= 1:
                break

    def _order(
        self,
        each: Segment,
        work: Workload,
        trials: list[Trial],
        spent: Callable[[], float],
    ) -> Iterator[tiling.Tiling]:
        """The heuristic's and what is in force; the usual ones up to half the budget; all that
        have the form and box of the best; then everything else."""
        seen: set[tiling.Tiling] = set()

        def fresh(configs: Iterator[tiling.Tiling]) -> Iterator[tiling.Tiling]:
            for config in configs:
                if config not in seen:
                    seen.add(config)
                    yield config

        known = tuned.choose(self.lowered, self.core, each, work, self.gpu, self.capability)
        yield from fresh(iter((tiling.heuristic(work, self.capability), known.config)))
        space = fresh(tiling.space(work, self.capability))
        for config in space:
            yield config
            if spent() >= 0.5:
                break
        best = min(trials, key=_seconds).config
        yield from fresh(tiling.around(work, best.form, best.box, self.capability))
        yield from space

    def _try(self, each: Segment, config: tiling.Tiling) -> Trial:
        """Compile, compare with the first that ran, time."""

        def choose(other: Segment, work: Workload) -> tiling.Tiling:
            if other == each:
                return config
            rest = (work, self.gpu, self.capability)
            return tuned.choose(self.lowered, self.core, other, *rest).config

        self.out.fill_(torch.nan)  # what a candidate does not write shows
        try:
            made = self._launch_plan(choose)
            self._call(made)
            self._synchronize()
            fault = self._disagrees()
        except Exception as error:
            self._synchronize()  # a GPU that has faulted serves nobody: this raises
            return Trial(config, fault=f"{type(error).__name__}: {error}".splitlines()[0])
        if fault:
            return Trial(config, fault=fault)
        self.launch_plans[config] = made
        return Trial(config, self._times([config], SCREEN)[config])

    def _race(self, trials: list[Trial]) -> list[Trial]:
        """The best again, in turn, so that none has the quieter moment."""
        ran = sorted((trial for trial in trials if not trial.fault), key=_seconds)
        finalists = [trial.config for trial in ran[:FINALISTS]]
        if not trials[0].fault and trials[0].config not in finalists:
            finalists.append(trials[0].config)
        return [Trial(*timed) for timed in self._times(finalists, FINAL).items()]

    def _times(
        self, configs: list[tiling.Tiling], rounds: tuple[int, int, float]
    ) -> dict[tiling.Tiling, float]:
        """Median seconds of each, in interleaved rounds."""
        fewest, most, seconds = rounds
        samples: dict[tiling.Tiling, list[float]] = {config: [] for config in configs}
        begun = perf_counter()
        for turn in range(most):
            if turn >= fewest and perf_counter() - begun > seconds:
                break
            for config in configs:
                call = partial(self._call, self.launch_plans[config])
                samples[config].append(self.clock.time(call)[0])
        return {config: spread(found).median for config, found in samples.items()}

    def _keep(self, each: Segment, work: Workload, trials: list[Trial]) -> Outcome:
        """Put the best on disk; what was timed twice counts by its last time."""
        last = {trial.config: trial for trial in trials}
        # Those of the final were timed together: a screening time does not beat them.
        final = [trial for trial in trials[len(last) :] if not trial.fault]
        best = min(final or last.values(), key=_seconds)
        faults = tuple(trial.fault for trial in last.values() if trial.fault)
        key = tuned.key(self.lowered, self.core, each, self.gpu)
        entry = tuned_files.Measured(
            key, tuned_files.encoded(best.config), 1e3 * best.seconds, str(self.problem)
        )
        file = tuned_files.put([entry])
        heuristic = last[tiling.heuristic(work, self.capability)]
        return Outcome(key, str(self.problem), best, heuristic, len(last), faults, str(file))

    def _launch_plan(
        self, choose: Callable[[Segment, Workload], tiling.Tiling] | None = None
    ) -> LaunchPlan:
        tensors = (self.x, self.weight, self.operands, self.out)
        return calls.prepare(self.chain, self.plan, *tensors, choose).launch_plan

    def _call(self, made: LaunchPlan) -> None:
        calls.follow(made, calls.given(self.x, self.weight, self.operands, self.out))

    def _synchronize(self) -> None:
        if self.x.is_cuda:
            torch.cuda.synchronize(self.x.device)

    def _disagrees(self) -> str:
        """How far the result is from the first one, if that is too far."""
        if self.expected is None:
            self.expected = self.out.clone()
            return ""
        expected = self.expected
        finite = expected.abs().nan_to_num(nan=0.0, posinf=0.0)
        largest = float(finite.max()) if finite.numel() else 0.0
        error = (self.out - expected).abs()
        near = (error <= self.slack * largest) | (self.out == expected)
        wrong = int((~near & ~(self.out.isnan() & expected.isnan())).sum())
        return f"{wrong} of {expected.numel()} elements differ from the first" if wrong else ""


def _seconds(trial: Trial) -> float:
    return trial.seconds
