"""The CPU core: fused, native, for x86 and ARM. Plans as ``plan.fused`` says, run in C++.

Weights are packed once and kept while their tensor lives and does not change. Threads are torch's:
``torch.get_num_threads()`` of them, in the OpenMP runtime that torch has loaded; after a fork, one.
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transfuse.backends import legs
from transfuse.backends.base import Backend, Executable, Kernels, Part, Run, Scatter, Verdict
from transfuse.backends.cpu import (
    library,
    lower,
    results,
    single,
    threads,
    weights,
    winners,
)
from transfuse.backends.cpu.sweeps import prepare
from transfuse.backends.cpu.weights import pack, packed
from transfuse.chain import Chain
from transfuse.elements import BY_DTYPE, ELEMENTS
from transfuse.plan import Choice, Plan, fused
from transfuse.problem import Problem
from transfuse.reverse.axes import Axis
from transfuse.rewrite import rewritten
from transfuse.route import NoRoute, Route, route
from transfuse.stages.running import Running, write
from transfuse.sweeps import Sweep


class Cpu(Backend):
    name = "cpu"
    device = "cpu"
    differentiable = False

    @property
    def kernels(self) -> Kernels:
        return _Kernels()

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        if problem.device != "cpu":
            return Verdict(f"tensors are on {problem.device}")
        if library.load() is None:
            return Verdict("the compiled core is not installed")
        try:
            _route(chain, problem)
        except NoRoute as reason:
            return Verdict(str(reason))
        return Verdict()

    def route(self, chain: Chain, problem: Problem) -> Route:
        """Which stages of a chain run where; raises ``NoRoute`` where it takes none."""
        return _route(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        found = _route(chain, problem)
        return found.plan(_fused(found.core, found.inner), ELEMENTS[problem.dtype].compute.itemsize)

    def ulp(self, problem: Problem) -> float:
        return torch.finfo(ELEMENTS[problem.dtype].compute).eps

    def prepare(self, chain: Chain, problem: Problem) -> Executable:
        return legs.executable(_route(chain, problem), _Kernels())


@lru_cache(maxsize=4096)
def _route(chain: Chain, problem: Problem) -> Route:
    return route(chain, problem, _refuses)


def _refuses(chain: Chain, problem: Problem) -> str:
    chain.shapes(problem)  # what a stage refuses, no rewrite may hide
    chains = (rewritten(chain, finite) for finite in (True, False))
    reasons = (lower.refusal(each, each.shapes(problem)) for each in chains)
    reason = next(filter(None, reasons), "")
    if reason or not chain.prologue:
        return reason
    from transfuse.backends.cpu import before  # an import of the package leaves it alone

    mapped = _alone(chain, problem)
    steps = _Steps(lower.prologue(chain, chain.shapes(problem)))
    mapped.before, mapped.before_count = steps.nowhere()
    mapped.spatial = _three(problem.spatial, 1)
    return before.stored(chain, problem, _alone(chain, problem), mapped)


def _alone(chain: Chain, problem: Problem) -> library.Program:
    """The program of a chain's convolution, on values of a sweep in its layout."""
    core = chain.core(problem)
    program = _program(core, chain.conv.weight_scale)
    last = problem.layout == "channels_last"
    like = results.Form(core.input.dims, ELEMENTS[problem.dtype].dtype, last)
    program.input_strides = strides(like.strides)
    computed = BY_DTYPE[ELEMENTS[problem.dtype].compute].name
    program.input_element = library.ELEMENTS.index(computed)
    return program


class _Kernels:
    """The core and the sweeps of this backend."""

    common = 4
    turns = 1024

    def core(self, chain: Chain, problem: Problem) -> Executable:
        return _Core(chain, problem)

    def sweep(self, sweep: Sweep, device: torch.device) -> Run:
        (run,) = self.sweeps((sweep,), device)
        return run

    def sweeps(self, sweeps: Sequence[Sweep], device: torch.device) -> list[Run]:
        """One run of them all, which asks for addresses once."""
        prepared = [prepare(each) for each in sweeps]

        def run(slots: Sequence[Tensor]) -> None:
            addresses = [tensor.data_ptr() for tensor in slots]
            for each in prepared:
                each(addresses)

        return [run] if prepared else []

    def scatter(self, problem: Problem, windows: Sequence[Axis]) -> Scatter | None:
        return winners.prepare(problem, windows)

    def by_address(self, device: torch.device) -> bool:
        return True

    def source(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].compute

    def between(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].compute

    def empty(
        self, dims: Sequence[int], dtype: torch.dtype, last: bool, device: torch.device
    ) -> Tensor:
        return results.empty(_form(tuple(dims), dtype, last))


@lru_cache(maxsize=4096)
def _form(dims: tuple[int, ...], dtype: torch.dtype, last: bool) -> results.Form:
    return results.Form(dims, dtype, last)


class _Core:
    """A chain that the compiled core holds: the program of its plan, ready but for addresses.

    ``assumes``: whether operands that are not finite need another plan.
    """

    def __init__(self, chain: Chain, problem: Problem) -> None:
        plan, other = _fused(chain, problem), _fused(chain, problem, finite=False)
        self.ready, self.assumes = _Ready(plan), plan != other
        self.careful = _Ready(other) if self.assumes else self.ready

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        return self._run(x, weight, operands, out, None)

    def parts(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        """A call, with the time that the core takes for each of its passes.

        Of a product of input and weights there is one, which is not told apart from the call.
        """
        core = library.load()
        assert core is not None
        ready = self._chosen(core, operands)
        seconds = (ctypes.c_double * ready.room)()
        self._run(x, weight, operands, out, seconds)
        timed = any(seconds)
        for at in range(ready.passes):
            yield Part(at, seconds=seconds[at] if timed else None)

    def _chosen(self, core: ctypes.CDLL, operands: Mapping[str, Tensor]) -> "_Ready":
        return self.careful if self.assumes and not self.finite(core, operands) else self.ready

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor | None,
        seconds: ctypes.Array[ctypes.c_double] | None,
    ) -> Tensor:
        """A call; ``seconds`` is where the core puts those of its passes, if anywhere."""
        core, count = library.load(), threads.count()
        assert core is not None
        ready = self._chosen(core, operands)
        if out is None:
            out = results.empty(ready.result)
        elif out.is_neg():
            return out.copy_(self(x, weight, operands))
        if not out.numel():
            return out
        x, weight = x.resolve_neg(), weight.resolve_neg()
        same = x.dtype is weight.dtype
        if ready.product and same and weight.is_contiguous() and out.is_contiguous():
            _multiply(core, count, ready.product, x, weight, out)
            return out if not operands else out.add_(_column(next(iter(operands.values())), out))
        flat = {k: v.resolve_neg() for k, v in operands.items()}
        lines = {k: v.contiguous() for k, v in flat.items() if k not in ready.spread}
        if mixed := any(each.dtype is not weight.dtype for each in lines.values()):
            lines = {k: v.float() for k, v in lines.items()}
        flat |= lines
        found = [gathers.room() for gathers in ready.gathers]
        program = ready.program(x, out, flat, found)
        if mixed:
            program.operands = library.ELEMENTS.index("fp32")
        kept = packed(core, program, weight, count)
        program.weights, program.careful = kept.address, kept.careful
        if seconds is None:
            status = core.transfuse_run(program, count)
        else:
            status = core.transfuse_run_timed(program, count, seconds)
        library.check(core, status)
        for gathers, (mean, var) in zip(ready.gathers, found, strict=True):
            write(operands, gathers.running.moved(operands, mean, var, gathers.values))
        return out

    def finite(self, core: ctypes.CDLL, operands: Mapping[str, Tensor]) -> bool:
        """Rewrites assume finite operands; these few numbers are looked at, as no plan can."""
        few = (each for name, each in operands.items() if name not in self.ready.spread)
        return all(library.finite(core, each) for each in few)

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> Executable:
        """What runs again on tensors that lie so; this itself where they are copied first."""
        ready, tensors = (
            self.ready,
            (x, weight, *operands.values(), *(() if out is None else (out,))),
        )
        lines = [each for name, each in operands.items() if name not in ready.spread]
        copied = any(each.is_neg() for each in tensors)
        copied = copied or not all(each.is_contiguous() for each in lines)
        copied = copied or len({each.dtype for each in lines}) > 1
        empty = 0 in ready.result.shape
        if copied or empty or ready.product or ready.gathers:
            return self
        return _Again(self, weight, out)


class _Again:
    """The core on tensors that lie as earlier ones did: programs in which only addresses change.

    Each call takes a program for itself and gives it back: threads never share one.
    """

    def __init__(self, core: _Core, weight: Tensor, out: Tensor | None) -> None:
        loaded = library.load()
        assert loaded is not None
        self.core, self.loaded, self.run = core, loaded, loaded.transfuse_run_unless_changed
        self.result = core.ready.result
        self.small = out is None and self.result.size < results.LEAST
        self.layout: object = None
        self.dense, self.nbytes = weights.dense(weight), weight.nbytes
        self.programs: list[_Filled] = []

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        if not self.dense:  # such as one kernel for all channels
            weight = weight.contiguous()
        core, address, count = self.core, weight.data_ptr(), threads.count()
        if core.assumes and not core.finite(self.loaded, operands):
            return core(x, weight, operands, out)
        y = out
        if y is None:
            form = self.result
            # Of the type and on the device of x, whatever torch's defaults are.
            y = x.new_empty_strided(form.shape, form.strides) if self.small else results.empty(form)
        try:
            program = self.programs.pop()
        except IndexError:
            program = _Filled(core.ready, x, weight, operands, y)
        words = program.words
        words[_INPUT], words[_OUTPUT] = x.data_ptr(), y.data_ptr()
        if operands:
            program.point_to(operands)
        found, status = weights.kept((address, self.layout)), library.CHANGED
        if found is not None:
            words[_WEIGHTS] = found.address
            if program.careful is not found.careful:
                program.be_careful(found.careful)
            status = self.run(program.address, count, address, self.nbytes, found.digest_address)
        if status == library.CHANGED:
            found = weights.packed(self.loaded, program.program, weight, count)
            self.layout, words[_WEIGHTS] = found.content[1], found.address
            program.be_careful(found.careful)
            status = self.loaded.transfuse_run(program.program, count)
        self.programs.append(program)
        if status:
            library.check(self.loaded, status)
        return y


class _Filled:
    """A program of one call, and where the addresses of its tensors stand in it."""

    def __init__(
        self, ready: "_Ready", x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], y: Tensor
    ) -> None:
        self.program = ready.program(x, y, operands)
        self.address = ctypes.addressof(self.program)
        mixed = {each.dtype for name, each in operands.items() if name not in ready.spread}
        if mixed - {weight.dtype}:
            self.program.operands = library.ELEMENTS.index("fp32")
        self.words = memoryview(self.program).cast("B").cast("Q")
        self.careful = bool(self.program.careful)
        self.places = list(ready.places(self.program))

    def point_to(self, operands: Mapping[str, Tensor]) -> None:
        for view, at, name in self.places:
            view[at] = operands[name].data_ptr()

    def be_careful(self, careful: bool) -> None:
        self.program.careful = self.careful = careful


_INPUT, _WEIGHTS, _OUTPUT = (
    getattr(library.Program, name).offset // 8 for name in ("input", "weights", "output")
)


def _fused(chain: Chain, problem: Problem, finite: bool = True) -> Plan:
    return fused(chain, problem, assume=finite, choose=_choices)


def _choices(chain: Chain, problem: Problem) -> dict[int, Choice]:
    """What the core does at the cuts of a chain, asked of the core: the C functions run so, too.

    Steps that see one element change no size, and are left out with the tensors that some need.
    """
    core = library.load()
    assert core is not None
    shapes = chain.shapes(problem)
    held = {} if lower.pooled(chain, shapes) else {chain.at: Choice.HOLD}
    listed = [(i, s) for i, s in lower.steps(chain, shapes) if s.op not in ("map", "norm")]
    if all(each.op != "cut" for _, each in listed):
        return held
    program = _program(problem, chain.conv.weight_scale)
    program.before, program.before_count = _Steps(lower.prologue(chain, shapes)).nowhere()
    program.steps, program.steps_count = _Steps(each for _, each in listed).nowhere()
    cuts = (ctypes.c_int32 * len(listed))()
    library.check(core, core.transfuse_decide(program, cuts))
    return held | {
        i: Choice(library.CUTS[cut])
        for (i, each), cut in zip(listed, cuts, strict=True)
        if each.op == "cut"
    }


class _Gathers(NamedTuple):
    """A step that gathers for running statistics, over so many values of each channel."""

    at: int
    running: Running
    channels: int
    values: int

    def room(self) -> Tensor:
        """Where the core puts means and variances."""
        return torch.empty(2, self.channels, dtype=torch.float64, device="cpu")


class _Ready:
    """A plan as the core takes it; of a call's own there are only addresses and strides to fill in.

    ``product``: the problem as a product of input and weights, where it is one; ``result``: the
    tensor that comes of it; ``spread``: the operands of more than one value per channel;
    ``passes``: how many there are; ``room``: numbers that the core may write of their times.
    """

    def __init__(self, plan: Plan) -> None:
        is_product = single.serves(plan.chain, plan.problem)
        self.product = single.product(plan.problem) if is_product else None
        shape = plan.chain.shapes(plan.problem)[-1]
        element = ELEMENTS[plan.problem.dtype]
        last = plan.problem.layout == "channels_last"
        self.result = results.Form(shape.dims, element.dtype, last)
        instructions = list(lower.epilogue(plan))
        self._before = _Steps(lower.prologue(plan.chain, plan.chain.shapes(plan.problem)))
        self._steps = _Steps(instructions)
        self.gathers = [
            _Gathers(i, each.running, each.shape.c, each.shape.n * each.shape.positions)
            for i, each in enumerate(instructions)
            if each.running and each.shape
        ]
        self.spread = self._before.spread | self._steps.spread
        self._program = _program(plan.problem, plan.chain.conv.weight_scale)
        self.passes, self.room = len(plan.passes), len(instructions) + 2

    def program(
        self,
        x: Tensor,
        out: Tensor,
        operands: Mapping[str, Tensor],
        moments: Sequence[Tensor] = (),
    ) -> library.Program:
        """The program of one call. A copy: others may run at the same time."""
        program = library.Program.from_buffer_copy(self._program)
        program.input, program.input_strides = x.data_ptr(), strides(x.stride())
        program.output, program.output_strides = out.data_ptr(), strides(out.stride())
        program.input_element, program.output_element = library.element(x), library.element(out)
        program.before, program.before_count = self._before.on(operands)
        steps, program.steps_count = self._steps.on(operands)
        for each, room in zip(self.gathers, moments, strict=True):
            steps[each.at].moments = room.data_ptr()
        program.steps = steps
        return program

    def places(self, program: library.Program) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in a program that was made here."""
        yield from self._before.places(program.before)
        yield from self._steps.places(program.steps)


class _Steps:
    """Steps as the core takes them, but for their tensors.

    ``spread``: the operands of more than one value per channel.
    """

    def __init__(self, given: Iterable[lower.Instruction]) -> None:
        instructions = list(given)
        self._steps = (library.Step * len(instructions))(
            *(each.step(lambda name: 0) for each in instructions)
        )
        self._tensors = [
            (i, field, name)
            for i, each in enumerate(instructions)
            for field in ("t0", "t1", "t2", "t3")
            if (name := getattr(each, field)) is not None
        ]
        self._maps = [(i, _Map(each)) for i, each in enumerate(instructions) if each.code]
        self.spread = frozenset(name for each in instructions for name in each.spread)

    def on(self, operands: Mapping[str, Tensor]) -> tuple[Any, int]:
        """The steps on these tensors, and how many: a copy, which keeps what it points to."""
        steps = type(self._steps).from_buffer_copy(self._steps)
        for i, field, name in self._tensors:
            setattr(steps[i], field, operands[name].data_ptr())
        for i, map_ in self._maps:
            steps[i].map = map_.on(operands)
        return steps, len(steps)

    def nowhere(self) -> tuple[Any, int]:
        """The steps where no address is followed: their tensors are there, and lead nowhere."""
        steps = type(self._steps).from_buffer_copy(self._steps)
        for i, map_ in self._maps:
            steps[i].map = map_.nowhere()
        return steps, len(steps)

    def places(self, made: Any) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in steps that ``on`` made."""
        count = len(self._steps)
        if not count:
            return
        steps = (library.Step * count).from_address(ctypes.addressof(made.contents))
        words = memoryview(steps).cast("B").cast("Q")
        size = ctypes.sizeof(library.Step)
        for i, field, name in self._tensors:
            yield words, (i * size + getattr(library.Step, field).offset) // 8, name
        for i, map_ in self._maps:
            if map_.names:
                yield from map_.places(steps[i].map.contents)


class _Map:
    """A map as the core takes it, but for its operands."""

    def __init__(self, instruction: lower.Instruction) -> None:
        assert instruction.code
        assert instruction.shape
        self.names, self._code = instruction.code.operands, instruction.code.structure()
        self._dims, self._spread = instruction.shape.dims, instruction.spread

    def on(self, operands: Mapping[str, Tensor]) -> Any:
        """A pointer to the map with its operands; it keeps what it points to."""
        found = (library.Operand * len(self.names))(
            *(self._operand(operands[name], name in self._spread) for name in self.names)
        )
        return ctypes.pointer(library.Map(self._code, found))

    def nowhere(self) -> Any:
        """The same where no address is followed."""
        found = (library.Operand * len(self.names))(*(library.Operand(data=1) for _ in self.names))
        return ctypes.pointer(library.Map(self._code, found))

    def places(self, made: library.Map) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in a map that was made here."""
        first = ctypes.addressof(made.operands.contents)
        words = memoryview((library.Operand * len(self.names)).from_address(first))
        size, at = ctypes.sizeof(library.Operand), library.Operand.data.offset
        for i, name in enumerate(self.names):
            yield words.cast("B").cast("Q"), (i * size + at) // 8, name

    def _operand(self, tensor: Tensor, spread: bool) -> library.Operand:
        steps = (0, 1, *(0,) * (len(self._dims) - 2))
        if spread:
            wide = tensor.expand(self._dims)
            sized = zip(wide.stride(), self._dims, strict=True)
            steps = tuple(step if size > 1 else 0 for step, size in sized)
        return library.Operand(library.element(tensor), tensor.data_ptr(), strides(steps))


def _multiply(
    core: ctypes.CDLL, count: int, product: Problem, x: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Input times weights: these are the core's input, and samples its output channels."""
    samples = x.reshape(*product.weight[1::-1], 1).transpose(0, 1)
    signal, result = weight.reshape(product.input.dims), out.view(product.output().dims)
    program = _product(product).program(signal, result, {})
    memory = pack(core, program, samples, count)
    program.weights = memory.data_ptr()
    library.check(core, core.transfuse_run(program, count))


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel."""
    return values.detach().view(-1, *(1,) * (like.dim() - 2))


@lru_cache(maxsize=1024)
def _product(product: Problem) -> _Ready:
    return _Ready(_fused(single.PRODUCT, product))


def _program(problem: Problem, weight_scale: float) -> library.Program:
    """The program of a convolution alone."""
    return library.Program(
        element=library.ELEMENTS.index(problem.dtype),
        input_element=library.ELEMENTS.index(problem.dtype),
        output_element=library.ELEMENTS.index(problem.dtype),
        operands=library.ELEMENTS.index(problem.dtype),
        batch=problem.batch,
        in_channels=problem.in_channels,
        out_channels=problem.out_channels,
        groups=problem.groups,
        spatial=_three(problem.spatial, 1),
        kernel=_three(problem.kernel, 1),
        stride=_three(problem.stride, 1),
        padding=_three(problem.padding, 0),
        dilation=_three(problem.dilation, 1),
        output_padding=_three(problem.output_padding, 0),
        weight_scale=weight_scale,
    )


def _three(values: tuple[int, ...], missing: int) -> ctypes.Array[ctypes.c_int64]:
    """One value per axis, missing axes first."""
    return library.Sizes(*((missing,) * (3 - len(values)) + values))


@lru_cache(maxsize=4096)
def strides(steps: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    """Five strides; those of missing axes do not matter."""
    n, c, *space = steps
    return library.Strides(n, c, *(0,) * (3 - len(space)), *space)
