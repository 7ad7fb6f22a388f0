"""A chain that the compiled core holds: run on any tensors, and again on those that lie alike."""

import ctypes
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torch import Tensor

from transfuse.backends.base import Executable, Part
from transfuse.backends.cpu import library, results, single, threads, weights
from transfuse.backends.cpu.decided import fused
from transfuse.backends.cpu.ready import Filled, Ready
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages.running import write


class Core:
    """A chain that the compiled core holds: the program of its plan, ready but for addresses.

    ``assumes``: whether operands that are not finite need another plan.
    """

    def __init__(self, chain: Chain, problem: Problem) -> None:
        plan, other = fused(chain, problem), fused(chain, problem, finite=False)
        self.ready, self.assumes = Ready(plan), plan != other
        self.careful = Ready(other) if self.assumes else self.ready

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

    def _chosen(self, core: ctypes.CDLL, operands: Mapping[str, Tensor]) -> "Ready":
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
        kept = weights.packed(core, program, weight, count)
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
        return Again(self, weight, out)


class Again:
    """The core on tensors that lie as earlier ones did: programs in which only addresses change.

    Each call takes a program for itself and gives it back: threads never share one.
    """

    def __init__(self, core: Core, weight: Tensor, out: Tensor | None) -> None:
        loaded = library.load()
        assert loaded is not None
        self.core, self.loaded, self.run = core, loaded, loaded.transfuse_run_unless_changed
        self.result = core.ready.result
        self.small = out is None and self.result.size < results.LEAST
        self.layout: object = None
        self.dense, self.nbytes = weights.dense(weight), weight.nbytes
        self.programs: list[Filled] = []

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
            program = Filled(core.ready, x, weight, operands, y)
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


_INPUT, _WEIGHTS, _OUTPUT = (
    getattr(library.Program, name).offset // 8 for name in ("input", "weights", "output")
)


def _multiply(
    core: ctypes.CDLL, count: int, product: Problem, x: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Input times weights: these are the core's input, and samples its output channels."""
    samples = x.reshape(*product.weight[1::-1], 1).transpose(0, 1)
    signal, result = weight.reshape(product.input.dims), out.view(product.output().dims)
    program = _product(product).program(signal, result, {})
    memory = weights.pack(core, program, samples, count)
    program.weights = memory.data_ptr()
    library.check(core, core.transfuse_run(program, count))


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel."""
    return values.detach().view(-1, *(1,) * (like.dim() - 2))


@lru_cache(maxsize=1024)
def _product(product: Problem) -> Ready:
    return Ready(fused(single.PRODUCT, product))
