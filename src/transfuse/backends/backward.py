"""The gradients of a chain by a fused backend: sweeps around torch's own convolution.

Nothing is kept of the forward call but its tensors. The convolution's output is computed again by
the backend's own kernel, unless no derivative looks at it; sweeps take the gradient back over what
the stages behind it said, torch's ``convolution_backward`` over the convolution, and sweeps again
over the stages before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from math import prod

import torch
from torch import Tensor

from transfuse import plain
from transfuse.backends.base import Backend, Executable, Scatter
from transfuse.backends.inlining import Inlining
from transfuse.backends.memory import INPUT as READ
from transfuse.backends.memory import laid, memory_format, touched, whole
from transfuse.backends.schedule import Schedule, alive
from transfuse.chain import Chain
from transfuse.elements import BY_DTYPE, ELEMENTS
from transfuse.line import INPUT, WEIGHT
from transfuse.maths.expr import Expr, substituted
from transfuse.plan import Pass, Plan, machine
from transfuse.problem import Problem, on_cuda
from transfuse.reverse import convolution, winners
from transfuse.reverse.reversal import Reversal, Slope
from transfuse.reverse.steps import CONSTANTS, Step, TensorStep, same
from transfuse.reverse.tape import Tape
from transfuse.reverse.winners import Winners
from transfuse.stages import ConvTranspose, Stage
from transfuse.stages.pointwise import Function
from transfuse.sweeping import Buffer, Seen, Sweeping

KERNEL, SOURCE, GRAD, G = "= weight", "= source", "= grad", "= g"
"""Among the tensors of a schedule: the weights, what the convolution reads, the gradient that comes
in, and the one that goes on."""
RESULT = "= result"
"""The chain's result, where it tells what its gradients read."""
KEPT = "= kept "
"""What the forward call kept, by number."""
BY_SOURCE, BY_KERNEL = "= by source", "= by weight"
"""The gradients of the convolution where steps give them, too."""


def _of(operand: str) -> str:
    """What the gradient by an operand is called there."""
    return f"d {operand}"


def keeps(number: int) -> str:
    """What a buffer is called that the forward call kept."""
    return f"{KEPT}{number}"


def written(steps: Sequence[Step]) -> list[Buffer]:
    """The buffers that steps fill, each once."""
    found = (whole(each) for step in steps for each in touched(step)[0])
    return list({id(each): each for each in found}.values())


class Backward:
    """The gradients of a chain by those of its tensors wanted.

    Of the buffers that forward steps fill, by number, those ``kept`` come with the call; ``needs``
    are those that it reads. ``told``: the result comes with it, too, and says what derivatives read
    of the convolution's output, so that this is not computed again. ``head`` are the steps to what
    the convolution reads, ``after`` those back to the gradient by its output, ``before`` those back
    from its input.
    """

    def __init__(
        self,
        backend: Backend,
        chain: Chain,
        problem: Problem,
        wanted: frozenset[str],
        kept: Sequence[int] = (),
        dense: bool = False,
        told: bool = False,
    ) -> None:
        kernels = backend.kernels
        assert kernels is not None, backend.name
        self.told = told
        self.kernels, self.problem, self.wanted, self.kept = kernels, problem, wanted, kept
        self.chain = chain = chain.typed(problem)
        self.dims = [shape.dims for shape in chain.shapes(problem)]
        self.inner = chain.core(problem)
        self.source = kernels.source(problem)
        self.last = problem.layout == "channels_last"
        # cuDNN's convolutions of channels-last tensors take 1.3 to 3 times less time.
        self.torch_last = self.last or on_cuda(problem.device)
        # So lies what sweeps store before it, too, where most of what they read they have stored.
        smaller = 2 * prod(self.dims[-1]) <= prod(self.dims[chain.at + 1])
        self.after_last = self.torch_last if smaller else self.last
        early = {name for stage in chain.prologue for name in stage.operands}
        self.by_source = INPUT in wanted or bool(early & wanted)
        self.by_weight = WEIGHT in wanted
        self.winners = None if dense else self._winners()
        self.own = self._own(backend) if self.by_source and not self.winners else None
        # Zeros that winners leave out may meet an Inf, which makes a NaN of them.
        self.dense = self.winners and Backward(backend, chain, problem, wanted, dense=True)
        self.head = self._head()
        self.after = self._after(backend)
        self.before = self._before() if self.head else None

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        kept: Sequence[Tensor] = (),
        result: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """``kept``: what ``Keeping`` gave beside the result, for as many as were said before."""
        source = x
        if self.head:
            source, kept = (kept[0], kept[1:]) if kept else (self.read(x, operands), kept)
        if not self.dense:
            return self._found(grad, x, source, weight, operands, kept, result)
        if plain.capturing(source):
            return self.dense(grad, x, weight, operands)
        finite = plain.finite_soon(weight, source)
        found = self._found(grad, x, source, weight, operands, kept, result)
        return found if finite() else self.dense(grad, x, weight, operands)

    def _found(
        self,
        grad: Tensor,
        x: Tensor,
        source: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        kept: Sequence[Tensor],
        result: Tensor | None,
    ) -> dict[str, Tensor]:
        """The gradients; ``source``: what the convolution reads."""
        grad = grad.reshape(self.dims[-1])
        outs = self._outs(x, weight) if self.winners else {}
        known = {keeps(i): each for i, each in zip(self.kept, kept, strict=True)}
        if self.told:
            assert result is not None
            known[RESULT] = result.reshape(self.dims[-1])
        given = {READ: source, KERNEL: weight, **known, **outs}
        found, g = self.after(grad, given, operands)
        if self.by_source or self.by_weight:
            dx, dw = outs.get(BY_SOURCE), outs.get(BY_KERNEL)
            if not self.winners:
                dx, dw = self._convolution(g, source, weight)
            if dw is not None:
                found[WEIGHT] = dw.to(weight.dtype)
            if dx is not None and self.before:
                # Sweeps read it where it lies, often over and over: in the order of their results.
                dx = dx.contiguous(memory_format=memory_format(dx.shape, self.last))
                more, dx = self.before(dx, {READ: x}, operands)
                found |= {k: found[k] + each if k in found else each for k, each in more.items()}
            if dx is not None:
                found[INPUT] = dx.to(x.dtype)
        for name in self.wanted - found.keys():
            found[name] = torch.zeros_like(operands[name])
        return found

    def read(self, x: Tensor, operands: Mapping[str, Tensor]) -> Tensor:
        """What the convolution reads."""
        assert self.head
        dims = self.dims[self.chain.at]
        source = self.kernels.empty(dims, self.source, self.last, x.device)
        self.head.schedule({READ: x, **operands, SOURCE: source})
        return source

    def passes(self, steps: Sequence[Step]) -> Iterator[Pass]:
        """Steps with their flops and bytes."""
        element = ELEMENTS[self.problem.dtype]
        between, source = self.kernels.between(self.problem).itemsize, self.source.itemsize
        sizes = {name: prod(dims) for name, dims in self.chain.dims(self.problem)}
        known = {KERNEL: prod(self.problem.weight), **sizes}
        read = prod(self.dims[self.chain.at])

        def size(buffer: Buffer) -> int:
            if not buffer.foreign or buffer.given.startswith(KEPT):
                return prod(buffer.dims) * between
            if buffer.given in (G, SOURCE, BY_SOURCE, BY_KERNEL):
                return prod(buffer.dims) * source
            count = read if buffer.input else known.get(buffer.given, prod(buffer.dims))
            return count * element.itemsize

        for step in steps:
            written, reads = ({id(b): b for b in side}.values() for side in touched(step))
            flops = step.flops if isinstance(step, TensorStep) else 0
            yield Pass(step.does, flops, sum(map(size, reads)), sum(map(size, written)))

    def plan(self) -> Plan:
        """The passes that it takes, with their flops and bytes."""
        element = ELEMENTS[self.problem.dtype]
        source, weight = self.source.itemsize, prod(self.problem.weight)
        sizes = {name: prod(dims) for name, dims in self.chain.dims(self.problem)}
        read, convolved = prod(self.dims[self.chain.at]), prod(self.dims[self.chain.at + 1])

        def convolves() -> Iterator[Pass]:
            flops, g, w = self.inner.flops(), convolved * source, weight * source
            if self.winners:
                return
            if self.by_source:
                how = "in torch" if self.own is None else "taps flipped"
                yield Pass(f"gradient by input · {how}", flops, g + w, read * source)
            if self.by_weight:
                yield Pass("gradient by weight · in torch", flops, g + read * source, w)

        head = self.head.steps if self.head and not self.kept else ()
        before = self.before.steps if self.before else ()
        found = (*self.passes([*head, *self.after.steps]), *convolves(), *self.passes(before))
        asked = [*self.wanted & sizes.keys()]
        least = self.dims[0], self.dims[-1], *([self.dims[0]] if INPUT in self.wanted else [])
        elements = sum(map(prod, least)) + weight * (1 + self.by_weight)
        elements += sum(sizes.values()) + sum(sizes[name] for name in asked)
        scratch = max(
            part.schedule.scratch for part in (self.head, self.after, self.before) if part
        )
        return Plan(
            self.problem,
            self.chain,
            found,
            sum(each.flops for each in convolves()) or self._scattered(),
            elements * element.itemsize,
            scratch + (convolved * source if self.after.made else 0),
            note=self._note(),
        )

    def _scattered(self) -> int:
        """Flops of the convolution's gradients from the winners alone."""
        each = self.winners.each if self.winners else 0
        return each * (self.by_source + self.by_weight)

    def _note(self) -> str:
        again = any(isinstance(step, TensorStep) and step.again for step in self.after.steps)
        notes = ["the convolution's output is computed again, not kept"] if again else []
        if self.told:
            notes.append("the result tells the derivative, so that nothing is computed again")
        if self.winners:
            values = prod(self.dims[self.chain.at + 1])
            notes.append(f"behind max windows {self.winners.count} of {values} have a gradient")
        parts = (part for part in (self.after, self.before) if part)
        tasks = (step for part in parts for step in part.steps if isinstance(step, TensorStep))
        torchs = [each.does for each in tasks if not each.flops and each.does != CONSTANTS]
        notes += ["torch runs what has no kernel here: " + "; ".join(torchs)] if torchs else []
        return "; ".join(notes)

    def _convolution(
        self, g: Tensor, source: Tensor, weight: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        scale = self.chain.conv.weight_scale
        tensors = (each.to(self.source) for each in (g, source, weight))
        g, source, weight = (laid(each, self.torch_last) for each in tensors)
        weight = weight if scale == 1 else weight * scale
        wanted = self.by_source and self.own is None, self.by_weight
        dx = None
        if self.own is not None:
            dims = self.dims[self.chain.at]
            dx = self.kernels.empty(dims, self.source, self.last, g.device)
            self.own(g, convolution.flipped(self.inner, weight), {}, dx)
        found, dw = convolution.backward(self.inner, g, source, weight, *wanted)
        return found if dx is None else dx, dw if dw is None or scale == 1 else dw * scale

    def _winners(self) -> Winners | None:
        """The few outputs that have a gradient, where these are few and there is a kernel."""
        stages, item = self.chain.epilogue, self.kernels.between(self.problem).itemsize
        if not (self.by_source or self.by_weight):
            return None
        rates, looks = machine(self.problem.device), self.kernels.looks
        found = winners.behind(self.inner, stages, rates, item, looks)
        return found if found and self._scatter(found) else None

    def _scatter(self, found: Winners) -> Scatter | None:
        return self.kernels.scatter(self.inner, found.windows, found.count)

    def _outs(self, x: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Memory for the gradients of the convolution."""
        empty, dims = self.kernels.empty, self.dims[self.chain.at]
        found = {}
        if self.by_source:
            found[BY_SOURCE] = empty(dims, self.source, self.last, x.device)
        if self.by_weight:
            found[BY_KERNEL] = empty(weight.shape, self.source, False, x.device)
        return found

    def _scattering(self, found: Winners, g: Seen, convolved: Buffer) -> TensorStep:
        """The gradients of the convolution from the winners alone."""
        scatter, bias = self._scatter(found), self.chain.conv.bias
        assert scatter is not None
        scale, kind = self.chain.conv.weight_scale, self.source

        def run(outs: Sequence[Tensor], values: Mapping[str, Tensor]) -> None:
            weight = values[KERNEL].to(kind)
            weight = weight if scale == 1 else weight * scale
            given = iter(outs)
            dx = next(given) if self.by_source else None
            dw = next(given) if self.by_weight else None
            added = values[bias] if isinstance(bias, str) else None
            tensors = (values[GRAD], values[READ].to(kind), weight)
            scatter(*tensors, added, values.get("values"), dx, dw)
            if dw is not None and scale != 1:
                dw.mul_(scale)

        reads = [(READ, Buffer((), input=True)), (KERNEL, Buffer((), given=KERNEL))]
        reads += [(bias, Buffer((), given=bias))] if isinstance(bias, str) else []
        reads += [("values", convolved)] if found.looks else []
        seen = ((GRAD, g), *((name, Seen(each, same)) for name, each in reads))
        outs = [Buffer(self.dims[self.chain.at], given=BY_SOURCE)] if self.by_source else []
        outs += [Buffer(self.problem.weight, given=BY_KERNEL)] if self.by_weight else []
        asked = " and ".join(["input"] * self.by_source + ["weight"] * self.by_weight)
        does = f"gradient by {asked} · first of each window alone"
        flops = found.again + self._scattered()
        return TensorStep(does, tuple(Seen(out, same) for out in outs), seen, run, flops)

    def _own(self, backend: Backend) -> Executable | None:
        """The gradient by the convolution's input by the backend's own kernel, where that is one
        it convolves with and is not known to be slower at."""
        chain, turned = Chain(ConvTranspose(self.inner.rank)), convolution.turned(self.inner)
        met = self.inner.batch * prod(self.inner.spatial)
        if turned is None or met < self.kernels.turns:
            return None
        turned = replace(turned, dtype=BY_DTYPE[self.source].name)  # of all that it reads
        verdict = backend.verdict(chain, turned)
        return backend.prepare(chain, turned) if verdict.ok and not verdict.yields else None

    def _head(self) -> "_Part | None":
        if not self.chain.prologue:
            return None
        sweeping = Sweeping(Buffer(self.dims[0], input=True))
        _follow(sweeping, self.chain.prologue)
        sweeping.store()
        sweeping.buffer.given = SOURCE
        return _Part(self, self.last, sweeping.legs, ())

    def _after(self, backend: Backend) -> "_Part":
        convolved, first, tape = self.forward(backend)
        made = written([*first, *tape.legs])
        known = [made[i] for i in self.kept]
        for i, each in zip(self.kept, known, strict=True):
            each.given = keeps(i)
        bias = self.chain.conv.bias if isinstance(self.chain.conv.bias, str) else None
        reversal, g = self._gradient(tape, self.dims[-1], bias, self.told)
        outs = [reversal.total(name, _of(name)) for name in reversal.found]
        back, given = list(reversal.steps), None
        if self.winners:
            back.append(self._scattering(self.winners, g, convolved))
            outs += [seen.buffer for seen in back[-1].writes]
        elif self.by_source or self.by_weight:
            given = reversal.handed_on(g, G)
            back = list(reversal.steps)
            outs.append(given)
        if self.kernels.inlines:
            sizes = dict(self.chain.dims(self.problem))
            back = Inlining(sizes, self.kernels.common)(back, outs)
        steps = alive([*first, *tape.legs, *back], outs, known)
        reads = {each.given for step in steps for each in touched(step)[1]}
        self.told = RESULT in reads and all(step is not first[0] for step in steps)
        back = [step for step in steps if any(step is each for each in back)]
        needed = {id(whole(each)) for step in back for each in touched(step)[1]}
        self.needs = tuple(i for i, each in enumerate(made) if id(each) in needed)
        goes_on = given if given and given.given == G else None
        part = _Part(self, self.after_last, steps, tuple(reversal.found), goes_on)
        again, slope = first[0], reversal.slope
        readers = [step for step in steps if convolved in touched(step)[1]]
        apart = slope is None or len(tape.regions) > 1 or readers != [slope.step]
        if apart or RESULT in reads or self.kept or slope is None:
            return part
        merged = self._with_slope(backend, slope, convolved)
        rest = [step for step in steps if step is not again and step is not slope.step]
        return part.of([merged, *rest]) if merged else part

    def forward(self, backend: Backend) -> tuple[Buffer, list[Step], Tape]:
        """The convolution's output, the steps to what the tape begins with, and the tape."""
        convolved = Buffer(self.dims[self.chain.at + 1])
        first = self._first(backend, convolved)
        tape = Tape(first[-1].writes[0].buffer)
        _follow(tape, self.chain.epilogue[1 if self.winners else 0 :])
        return convolved, first, tape

    def _first(self, backend: Backend, convolved: Buffer) -> list[Step]:
        """The steps to the values that the tape begins with: of the convolution, or of windows."""
        conv, pool = self.chain.conv, self.chain.epilogue[:1]
        if not self.winners:
            return [self._convolving(backend, Chain(conv), convolved, [])]
        if not self.winners.looks:
            pooled = Buffer(self.dims[self.chain.at + 2])
            return [self._convolving(backend, Chain(conv, *pool), pooled, [])]
        sweeping = Sweeping(convolved)
        _follow(sweeping, pool)
        sweeping.store()
        return [self._convolving(backend, Chain(conv), convolved, []), *sweeping.legs]

    def _convolving(
        self, backend: Backend, chain: Chain, into: Buffer, more: Sequence[str]
    ) -> TensorStep:
        """The convolution again, with the stages behind it and the tensors that these read."""
        core = backend.prepare(chain, self.inner)
        bias = [self.chain.conv.bias] if isinstance(self.chain.conv.bias, str) else []
        operands = dict.fromkeys((*bias, *more))

        def run(outs: Sequence[Tensor], values: Mapping[str, Tensor]) -> None:
            given = {name: values[name] for name in operands}
            core(values[READ], values[KERNEL], given, outs[0])

        reads = [(READ, Buffer((), input=True)), (KERNEL, Buffer((), given=KERNEL))]
        reads += [(name, Buffer((), given=name)) for name in operands]
        seen = tuple((name, Seen(each, same)) for name, each in reads)
        does = " · ".join(map(str, chain.stages))
        return TensorStep(does, (Seen(into, same),), seen, run, self.inner.flops(), again=True)

    def _with_slope(self, backend: Backend, slope: Slope, convolved: Buffer) -> TensorStep | None:
        """The gradient by the convolution's output as its own epilogue, where that is all there is.

        So it is for chains of element stages: what they read are operands and the gradient.
        """
        others = {name: each for name, each in slope.reads.items() if each is not convolved}
        if not all(each.given for each in others.values()):
            return None
        given = [each.given for each in others.values()]
        shapes = dict(self.chain.dims(self.problem)) | {GRAD: self.dims[-1]}
        stage = _stage(slope.expr, list(others))(*given)
        chain = Chain(self.chain.conv, stage).fitted({name: shapes[name] for name in given})
        made = slope.step.writes[0].buffer
        task = self._convolving(backend, chain, made, given)
        return replace(task, does=f"{self.chain.conv} · {slope.step.does}")

    def _before(self) -> "_Part":
        tape = Tape(Buffer(self.dims[0], input=True))
        _follow(tape, self.chain.prologue)
        reversal, g = self._gradient(tape, self.dims[self.chain.at], None)
        outs = [reversal.total(name, _of(name)) for name in reversal.found]
        given = reversal.handed_on(g, G) if INPUT in self.wanted else None
        outs += [given] if given else []
        made = given if given and given.given == G else None
        steps = alive([*tape.legs, *reversal.steps], outs)
        return _Part(self, self.last, steps, tuple(reversal.found), made)

    def _gradient(
        self, tape: Tape, dims: tuple[int, ...], bias: str | None, told: bool = False
    ) -> tuple[Reversal, Seen]:
        """The reversal of a tape, and the gradient by the values that it begins with."""
        tape.end()
        result = Buffer(dims, given=RESULT) if told else None
        alike = self.source == self.kernels.between(self.problem)
        reversal = Reversal(tape, self.wanted, self.kernels.common, alike, result)
        g = reversal.back(Seen(Buffer(dims, given=GRAD), same))
        if bias is not None and bias in self.wanted:
            reversal.by_channel(bias, g)
        return reversal, g


class _Part:
    """Steps back over some stages, with channels innermost between them where ``last``.

    ``named``: the operands whose gradients they give; ``made``: the gradient that goes on, where it
    is another than the one that comes in. By the convolution's output it lies as torch likes it, by
    the input as that does.
    """

    def __init__(
        self,
        whole: Backward,
        last: bool,
        steps: Sequence[Step],
        named: Sequence[str] = (),
        made: Buffer | None = None,
    ) -> None:
        self.whole, self.last, self.steps, self.named, self.made = whole, last, steps, named, made
        between = whole.kernels.between(whole.problem)
        self.schedule = Schedule(steps, whole.kernels, between, last)

    def of(self, steps: Sequence[Step]) -> "_Part":
        """The same by other steps."""
        return _Part(self.whole, self.last, steps, self.named, self.made)

    def __call__(
        self, grad: Tensor, given: Mapping[str, Tensor], operands: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradients by operands, and the one that goes on."""
        found = {name: torch.empty_like(operands[name]) for name in self.named}
        outs = {_of(name): each for name, each in found.items()}
        g, whole = grad, self.whole
        if self.made is not None:
            convolved = (whole.source, whole.torch_last)
            form = convolved if self is whole.after else (given[READ].dtype, whole.last)
            g = outs[G] = whole.kernels.empty(self.made.dims, *form, grad.device)
        if self.last != whole.last:
            grad = laid(grad, self.last)  # sweeps read it several times, beside what lies so
        if self.steps:
            self.schedule({**given, **operands, GRAD: grad, **outs})
        return found, g


def _stage(expr: Expr, names: Sequence[str]) -> Function:
    """An expression of ``x`` and these names as a pointwise function."""

    def slope(x: Expr, *given: Expr) -> Expr:
        return substituted(expr, {"x": x, **dict(zip(names, given, strict=True))})

    plain = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("x", *names)]
    slope.__signature__ = Signature(plain)  # type: ignore[attr-defined]
    return Function(slope)


def _follow(sweeping: Sweeping, stages: Sequence[Stage]) -> None:
    """Go over all of these stages, or raise NotImplementedError."""
    if sweeping.follow(stages) < len(stages):
        raise NotImplementedError
