"""Calls: the launch plan for tensors that lie as these do, run on the caller's own stream."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from operator import or_

import torch
from torch import Tensor

from transfuse.backends.base import Executable
from transfuse.backends.memory import memory_format
from transfuse.backends.triton import lower, tuned, tuned_files
from transfuse.backends.triton.draft import Draft, Lying
from transfuse.backends.triton.engines.contract import Choose
from transfuse.backends.triton.engines.few import few_tiling
from transfuse.backends.triton.engines.gemm import phases_launch
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.engines.served import Explained
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.gpu import MULTIPROCESSORS, Gpu, aimed
from transfuse.backends.triton.launch_plan import LaunchPlan
from transfuse.backends.triton.packing import packing_launch
from transfuse.backends.triton.segments import Segment
from transfuse.backends.triton.strides import Five, five, three
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan
from transfuse.problem import Problem
from transfuse.stages.pointwise import axes_of
from transfuse.stages.running import write

MOST = 4096
"""Launch plans kept; with one more, all are made anew when they are next needed."""


@dataclass(frozen=True)
class Ready:
    """A launch plan, and the plan it follows."""

    launch_plan: LaunchPlan
    plan: Plan


_ready: dict[object, Ready] = {}


def forget() -> None:
    """Make launch plans anew when they are next needed."""
    _ready.clear()


def run(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> Tensor:
    """The result of a chain, in ``out``."""
    if not plan.problem.batch:  # nothing to compute, and tiles are counted by the batch
        return out
    flat = [_flat(operand, x.dim()) for operand in operands.values()] if operands else []
    moved = _moved(chain, operands, flat) if chain.updates else {}
    follow(_found(chain, plan, x, weight, operands, flat, out), [x, weight, out, *flat])
    write(operands, moved)
    return out


def one_by_one(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> Iterator[tuple[str, int | None]]:
    """The same, a launch at a time: the name of its kernel, and the pass of the plan that it is of.

    None is that of the copies; passes are counted from the convolution's on. Tensors that the chain
    updates are left alone.
    """
    flat = [_flat(operand, x.dim()) for operand in operands.values()]
    _moved(chain, operands, flat)
    launch_plan = _found(chain, plan, x, weight, operands, flat, out)
    tensors = [x, weight, out, *flat]
    if x.is_cuda and not launch_plan.ready:
        follow(launch_plan, tensors)
    passes = lower.lowered(chain, plan).passes
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        for launch in launch_plan.one_by_one(tensors):
            copies = launch.kernel in (packing_launch.PACK, phases_launch.PACK)
            yield launch.kernel.name, None if copies else passes[launch.segment]


def _found(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    flat: list[Tensor],
    out: Tensor,
) -> LaunchPlan:
    """The launch plan for tensors that lie as these do, made where there is none yet."""
    key = _key(plan, x, weight, out, flat)
    ready = _ready.get(key)
    if ready is None:
        if len(_ready) >= MOST:
            _ready.clear()
        named = dict(zip(operands, flat, strict=True))
        ready = _ready[key] = prepare(chain, plan, x, weight, named, out)
    return ready.launch_plan


def _key(
    plan: Plan, x: Tensor, weight: Tensor, out: Tensor, flat: list[Tensor]
) -> tuple[object, ...]:
    """What a launch plan is kept by.

    The id of a plan will do: what is kept under it keeps the plan alive, so that no other plan can
    have the same id.
    """
    types = tuple([(operand.dtype, operand.stride()) for operand in flat])
    return (
        id(plan), x.stride(), weight.stride(), out.stride(), out.dtype, types, x.device,
        _unaligned([each.data_ptr() for each in (x, weight, out, *flat)]),
        tuned_files.generation(),
    )  # fmt: skip


class Again:
    """A chain on tensors that lie as earlier ones did: its launch plan, found once.

    None of them is copied before the kernels read it, and none is written to but ``out``.
    """

    def __init__(
        self, core: Executable, plan: Plan, form: tuple[tuple[int, ...], ...], index: int
    ) -> None:
        self.core, self.plan, self.form, self.index = core, plan, form, index
        # A launch plan, by the tiles and the addresses that it is for: one object, since another
        # thread may change it.
        self.known: tuple[LaunchPlan, int, int] | None = None

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        if out is None:
            out = x.new_empty_strided(*self.form)
        tensors = [x, weight, out, *operands.values()] if operands else [x, weight, out]
        given = [tensor.data_ptr() for tensor in tensors]
        generation, unaligned = tuned_files.generation(), _unaligned(given)
        if self.known is not None:
            launch_plan, its_generation, its_unaligned = self.known
            if its_generation == generation and its_unaligned == unaligned:
                here = self.index < 0 or torch._C._cuda_getDevice() == self.index
                if not (here and launch_plan.at(given)):
                    follow(launch_plan, tensors)
                return out
        self.core(x, weight, operands, out)
        ready = _ready.get(_key(self.plan, x, weight, out, tensors[3:]))
        if ready is not None:
            self.known = ready.launch_plan, tuned_files.generation(), unaligned
        return out


def as_they_are(x: Tensor, operands: Mapping[str, Tensor]) -> bool:
    """Whether kernels read all operands where they are."""
    return all(_flat(each, x.dim()) is each for each in operands.values())


def _moved(chain: Chain, operands: Mapping[str, Tensor], flat: list[Tensor]) -> dict[str, Tensor]:
    """Copies of running statistics in place of them: a call that raises leaves these as they are.

    The same memory as views in the operands' own shapes, by name.
    """
    places = {name: at for at, name in enumerate(operands) if name in chain.updates}
    for at in places.values():
        flat[at] = flat[at].detach().clone()
    return {name: flat[at].view(operands[name].shape) for name, at in places.items()}


def _unaligned(addresses: Iterable[int]) -> int:
    """Which addresses are no multiples of 16, a bit for each: compiled kernels know."""
    if not reduce(or_, addresses) & 15:
        return 0
    found = 0
    for address in addresses:
        found += found + (address & 15 > 0)
    return found


def follow(launch_plan: LaunchPlan, tensors: list[Tensor]) -> None:
    """Run a launch plan on x, weight, out and operands, on their device."""
    index = tensors[0].get_device()  # below zero: no GPU
    if index < 0 or torch._C._cuda_getDevice() == index:
        launch_plan(tensors)
    else:
        with torch.cuda.device(index):
            launch_plan(tensors)


def given(x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor) -> list[Tensor]:
    """The tensors of a call, as a launch plan takes them."""
    return [x, weight, out, *(_flat(operand, x.dim()) for operand in operands.values())]


def prepare(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    choose: Choose | None = None,
    gpu: Gpu | None = None,
) -> Ready:
    """The launch plan for tensors that lie as these do; tiles are tuned or counted, or as told."""
    return Ready(_launch_plan(chain, plan, x, weight, operands, out, choose, gpu), plan)


def _launch_plan(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    choose: Choose | None,
    gpu: Gpu | None,
) -> LaunchPlan:
    like = result(plan) if out is None else out
    strides: tuple[Five, Five, Five] = (
        five(x.stride()),
        five(weight.stride()),
        five(like.stride()),
    )
    aim = aimed()
    there = gpu or (aim.gpu if aim else _gpu(x.device))
    name = aim.name if aim else tuned.gpu(x.device)
    lowered, core = lower.lowered(chain, plan), plan.chain.core(plan.problem)

    def best(each: Segment, work: Workload) -> Tiling:
        return tuned.choose(lowered, core, each, work, name, there.capability).config

    wide = {name: each for name, each in operands.items() if each.dim() > 1 or each.numel() == 1}
    spread = {name: _spread(each, x.dim()) for name, each in wide.items()}
    tensors = (x, weight, like, *operands.values())
    unaligned = [at for at, each in enumerate(tensors) if each.data_ptr() & 15]
    lying = Lying(
        three(x.shape[2:], 1),
        strides,
        list(operands),
        spread,
        None if out is None else out.dtype,
        unaligned,
    )
    draft = Draft(lowered, core, lying, x.device, there)
    return LaunchPlan(draft, choose or best)


def result(plan: Plan) -> Tensor:
    """A likeness of the result: the layout is the input's."""
    dims = plan.chain.shapes(plan.problem)[-1].dims
    form = memory_format(dims, plan.problem.layout == "channels_last")
    return torch.empty(dims, device="meta", memory_format=form)


def explained(chain: Chain, plan: Plan) -> list[Explained]:
    """Each segment that convolves: its engine, its tiles, and where these come from."""
    lowered, core = lower.lowered(chain, plan), plan.chain.core(plan.problem)
    choices: dict[Segment, tuned.ChosenTiling] = {}
    gpu, name = _kind(plan.problem)

    def choose(each: Segment, work: Workload) -> Tiling:
        choices[each] = tuned.choose(lowered, core, each, work, name, gpu.capability)
        return choices[each].config

    made = _foreseen(chain, plan, choose, gpu)
    rows = []
    for each, served in zip((s for s in lowered.segments if s.convolves), made.served, strict=True):
        tiles = str(choices[each]) if served.engine == tuned_files.PORTABLE else served.tiles
        text = f"{served.engine}: {tiles}"
        rows.append(Explained(tuned.chain(lowered, each), text, dict(served.passed_over)))
    return rows


COPIED = frozenset(("input", "weights"))
MOST_TAPS = 4096
"""Of kernels whose launches a plan looks at, and places that strides tell apart: what follows from
more takes its time."""


def engines(chain: Chain, plan: Plan) -> frozenset[str]:
    """The engines of a call; none where it is not looked at."""
    if not _looked_at(plan.chain.core(plan.problem)):
        return frozenset()
    return frozenset(each.engine for each in _expected(chain, plan).served)


def share(chain: Chain, plan: Plan) -> float:
    """Of the products per second that a library reaches, what the slowest engine of a call does."""
    if not _looked_at(plan.chain.core(plan.problem)):
        return 1.0
    return min(each.share for each in _expected(chain, plan).served)


def copied(chain: Chain, plan: Plan) -> frozenset[str]:
    """What a call would copy into the order of its tiles: input, weights, both or neither.

    Where strides do not divide the kernel and channels are many it is both, and the launches need
    not be looked at.
    """
    core = plan.chain.core(plan.problem)
    divided = all(k % s == 0 for k, s in zip(core.kernel, core.stride, strict=True))
    if not _looked_at(core) or (few_tiling.verdict(core) and not divided):
        return COPIED
    return _expected(chain, plan).copied


def _looked_at(core: Problem) -> bool:
    return bool(core.batch) and max(prod(core.kernel), prod(core.stride)) <= MOST_TAPS


def _expected(chain: Chain, plan: Plan) -> LaunchPlan:
    """The launch plan of a call, with the tiles that it will have."""
    lowered, core = lower.lowered(chain, plan), plan.chain.core(plan.problem)
    gpu, name = _kind(plan.problem)

    def choose(each: Segment, work: Workload) -> Tiling:
        return tuned.choose(lowered, core, each, work, name, gpu.capability).config

    return _foreseen(chain, plan, choose, gpu)


def _kind(problem: Problem) -> tuple[Gpu, str]:
    """The GPU that a problem is for, which need not be there; its name where it is, for tiles that
    were tuned.
    """
    _, _, kind = problem.device.partition(":sm")
    wanted, name = (int(kind), "") if kind.isdigit() else (90, "interpreter")
    here = torch.device("cuda", 0)
    if kind and torch.cuda.is_available() and tuned.capability(here) == wanted:
        name = tuned.gpu(here)
    return Gpu(wanted, MULTIPROCESSORS.get(wanted, 108), real=bool(kind)), name


def _foreseen(chain: Chain, plan: Plan, choose: Choose, gpu: Gpu) -> LaunchPlan:
    """The launch plan of a call on tensors that lie as those of its problem do."""
    problem = plan.problem

    def tensor(*dims: int, last: bool = False) -> Tensor:
        form = memory_format(dims, last)
        return torch.empty(
            dims, dtype=ELEMENTS[problem.dtype].dtype, device="meta", memory_format=form
        )

    operands = {name: tensor(*dims) for name, dims in chain.dims(problem)}
    x = tensor(*problem.input.dims, last=problem.layout == "channels_last")
    weight = tensor(*problem.weight)
    return _launch_plan(chain, plan, x, weight, operands, None, choose, gpu)


def _flat(operand: Tensor, rank: int) -> Tensor:
    """One value per channel, side by side, and as it is read; one that has more, as it lies."""
    if operand.dim() > 1 and axes_of(operand.shape, rank - 2) != (1,):
        return operand.resolve_neg()
    side_by_side = operand.dim() == 1 and (operand.stride(0) == 1 or len(operand) == 1)
    if side_by_side and not operand.is_neg():
        return operand
    return operand.reshape(-1).contiguous().resolve_neg()


def _spread(operand: Tensor, rank: int) -> Five:
    """The strides of a tensor that broadcasts: 0 along the axes that it does not differ on."""
    moves = [s if n > 1 else 0 for n, s in zip(operand.shape, operand.stride(), strict=True)]
    return five([*[0] * (rank - operand.dim()), *moves])


@lru_cache(maxsize=64)
def _gpu(device: torch.device) -> Gpu:
    """Compute capability as 90 for 9.0; an H100's, without its own kernels, where no GPU is."""
    if device.type != "cuda":
        return Gpu(90, 132, real=False)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(10 * properties.major + properties.minor, properties.multi_processor_count)
