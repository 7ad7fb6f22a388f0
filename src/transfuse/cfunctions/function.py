"""An operator as a C function: what its arguments must be, and the steps that the core runs.

The steps are those that Python's own planner gives. It is run with symbols in place of the numbers
that a call brings, and what it asks about them is asked in C++ when the call is there.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from transfuse.backends.cpu import lower
from transfuse.backends.cpu.bytecode import PRIMITIVES, Code
from transfuse.backends.cpu.lower import CoreStep
from transfuse.cfunctions.ways import cases, picked, ways
from transfuse.chain import Chain
from transfuse.errors import DocumentError
from transfuse.operators import Operator
from transfuse.operators.declaration import OPTIONS
from transfuse.problem import AXES, Shape
from transfuse.problems import Parameter
from transfuse.rewrite import rewritten
from transfuse.stages import ConvTranspose
from transfuse.stages.actions import OverChannels
from transfuse.symbols import Symbol, written

FINITE = "finite"
"""The question whether all operands are finite, which some rewrites assume."""
WORDS = """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr
    continue default delete do double else enum explicit export extern false float for friend goto
    if inline int long mutable namespace new noexcept not nullptr operator or private protected
    public register restrict return short signed sizeof static struct switch template this throw
    true try typedef typeid typename union unsigned using virtual void volatile while xor
    Call Step Tensor Windows call element finite larger operands refuse smaller std suffix
"""
"""Words of C, of C++ and of the functions themselves, which no parameter can be called."""


@dataclass(frozen=True)
class CoreCall:
    """What the core runs, as C++: steps on the input, the factor of the weights, the steps."""

    before: tuple[str, ...]
    factor: str
    steps: tuple[str, ...]


class CFunction:
    """The parts of one function, for the templates."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.document = operator.document
        for each in self.document.parameters:
            if each.name in WORDS.split():
                raise DocumentError(
                    f"{operator.slug}: a parameter of a C function cannot be called {each.name}"
                )
        if operator.chain.updates:
            raise DocumentError(
                f"{operator.slug}: a C function cannot move the running statistics "
                f"{' and '.join(operator.chain.updates)}"
            )
        for stage in operator.chain.stages:
            if not stage.checked_in_c:
                raise DocumentError(f"{operator.slug}: a C function cannot check {stage}")
        self._programs = ways(self._program)

    @property
    def name(self) -> str:
        return self.operator.__name__

    @property
    def comment(self) -> list[str]:
        """The document's text, fit for a comment."""
        return self.document.body.replace("*/", "* /").replace("/*", "/ *").splitlines()

    @property
    def parameters(self) -> list[str]:
        """As C declares them, with pointers to ``element``."""
        return [
            f"{'const ' if p.const else ''}{'element*' if p.pointer else p.type} {p.name}"
            for p in self.document.parameters
        ]

    # ---- checks ------------------------------------------------------------------------------

    @property
    def carried(self) -> bool:
        """Whether ``groups`` is checked and otherwise left alone, the kernel always dense.

        A pointer does not tell its shape, by which Python tells the two kernels apart.
        """
        return self.operator.chain.conv.either_kernel and self.operator.grouped

    @property
    def geometry(self) -> list[str]:
        """The members of ``Geometry``."""
        axes = "dhw"[3 - self.operator.rank :]
        listed = [p.name for p in self.document.scalars]

        def each(*names: str) -> str:
            return "{" + ", ".join(map(self._size, names)) + "}"

        options = {option: [f"{option}_{axis}" for axis in axes] for option in ("kernel", *OPTIONS)}
        groups = self._size("groups") if self.operator.grouped and not self.carried else "1"
        return [
            *map(self._size, ("batch_size", "in_channels", "out_channels")),
            each(*AXES[self.operator.rank]),
            *(
                each(*(name for name in options[option] if name in listed))
                for option in ("kernel", "stride", "padding", "output_padding", "dilation")
            ),
            groups,
        ]

    def _size(self, name: str) -> str:
        (found,) = (p for p in self.document.scalars if p.name == name)
        return name if found.type == "size_t" else f"size_t({name})"

    @property
    def checks(self) -> list[str]:
        """What the stages ask of the values before them, in the order in which Python asks it."""
        chain, found = self._bound, []
        before = lower.prologue(chain, self._shapes(chain))
        for each in (*before, CoreStep("convolve"), *(step for _, step in self._steps(chain))):
            match each:
                case CoreStep(op="max_pool" | "sum_pool", windows=windows):
                    name = "max_pool" if each.op == "max_pool" else "avg_pool"
                    found.append(f"{name}({_windows(windows)})")
                case CoreStep(op="group_stats", i0=groups):
                    found.append(f"group_norm({written(groups)})")
                case CoreStep(op="batch_stats"):
                    found.append("batch_norm()")
                case CoreStep(op="convolve" | "sum" as op):
                    found.append(f"{op}()")
        return found

    @property
    def operands(self) -> list[str]:
        """The tensors beside input and kernel: name, address, elements."""
        channels: dict[str, str] = {}
        chain, now = self._bound, self._size("in_channels")
        steps = (each for _, each in self._steps(chain))
        for each in (*lower.prologue(chain, self._shapes(chain)), CoreStep("convolve"), *steps):
            used = [each.t0, each.t1, each.t2, each.t3, *(each.code.operands if each.code else ())]
            channels |= {name: now for name in used if name is not None}
            now = {"convolve": self._size("out_channels"), "sum": "1"}.get(each.op, now)
        return [f'{{"{n}", {n}, {channels[n]}}}' for n in self.operator.operands]

    # ---- what is run -------------------------------------------------------------------------

    @cached_property
    def _bound(self) -> Chain:
        """The chain with a symbol for each number that a call brings."""
        numbers: dict[str, Any] = {p.name: _symbol(p) for p in self.operator.scalars}
        return self.operator.chain.bind(numbers)

    def _shapes(self, chain: Chain) -> list[Shape]:
        """The values before each stage, as far as steps go by them: channels, and how many axes."""
        sizes: dict[str, Any] = {p.name: _symbol(p) for p in self.document.scalars}
        rank, channels, found = chain.conv.rank, sizes["in_channels"], []
        for stage in chain.stages:
            found.append(Shape(sizes["batch_size"], channels, (1,) * rank))
            if isinstance(stage, ConvTranspose):
                channels = sizes["out_channels"]
            elif stage.action(found[-1]) == OverChannels("sum"):
                channels = 1
        return found

    def _steps(self, chain: Chain) -> Iterator[tuple[int, CoreStep]]:
        return lower.steps(chain, self._shapes(chain))

    def _program(self) -> CoreCall:
        """The program for the answers at hand."""
        assume = not self.operator.operands or bool(Symbol(FINITE, bool))
        chain = rewritten(self._bound, assume)
        if reason := lower.refusal(chain, self._shapes(chain)):
            raise DocumentError(f"{self.operator.slug}: the core cannot run it: {reason}")
        factor = written(chain.conv.weight_scale)
        return CoreCall(
            tuple(map(_step, lower.prologue(chain, self._shapes(chain)))),
            "" if factor == "1.0" else factor,
            tuple(_step(each) for _, each in self._steps(chain)),
        )

    @property
    def asks_finite(self) -> bool:
        statements = (*self.before, *self.weights, *self.runs)
        return any(re.search(rf"\b{FINITE}\b", when) for when, _ in statements)

    @property
    def before(self) -> list[tuple[str, str]]:
        def steps(each: CoreCall) -> str:
            return f"call.before({{{', '.join(each.before)}}});" if each.before else ""

        return self._cases(steps)

    @property
    def weights(self) -> list[tuple[str, str]]:
        return self._cases(lambda each: each.factor and f"call.scale_weights({each.factor});")

    @property
    def runs(self) -> list[tuple[str, str]]:
        def run(each: CoreCall) -> str:
            listed = [f"{step}," for step in each.steps]
            return "\n".join(["call.run({", *listed, "});"]) if listed else "call.run({});"

        return self._cases(run)

    def _cases(self, statement: Callable[[CoreCall], str]) -> list[tuple[str, str]]:
        """Conditions and statements; the last one has no condition, being for all that is left."""
        return cases(picked(self._programs, statement), usual="")


def _symbol(parameter: Parameter) -> Symbol:
    real = parameter.type in ("float", "double")
    narrow = parameter.type == "int"  # a product would not fit
    name = parameter.name
    return Symbol(f"int64_t({name})" if narrow else name, float if real else int)


_SAID = {"op", "i0", "f0", "f1", "windows", "t0", "t1", "t2", "t3", "code"}
"""What of a step is said in C++."""


def _step(each: CoreStep) -> str:
    """A step as C++ that makes it."""
    for field in fields(each):
        default = None if field.default is MISSING else field.default
        if field.name not in _SAID and getattr(each, field.name) != default:
            raise DocumentError(f"a C function cannot say {field.name} of the step {each.op}")
    said = [f"Step(TF_{each.op.upper()})"]
    if each.op == "cut":
        return "Step(TF_CUT).count(TF_DECIDE)"
    if isinstance(each.i0, Symbol) or each.i0:
        said.append(f"count({written(each.i0)})")
    if any(isinstance(f, Symbol) or f for f in (each.f0, each.f1)):
        second = isinstance(each.f1, Symbol) or each.f1
        said.append(f"numbers({_real(each.f0)}{f', {_real(each.f1)}' if second else ''})")
    tensors = [name or "nullptr" for name in (each.t0, each.t1, each.t2, each.t3)]
    while tensors and tensors[-1] == "nullptr":
        tensors.pop()
    if tensors:
        said.append(f"tensors({', '.join(tensors)})")
    if each.windows:
        said.append(f"windows({_windows(each.windows)})")
    if each.code is not None:
        said.append(f"code({_map(each.code)})")
    return ".".join(said)


def _map(code: Code) -> str:
    def instruction(primitive: int, to: int, *sources: int) -> str:
        return f"{{TF_P_{PRIMITIVES[primitive].upper()}, {to}, {{{', '.join(map(str, sources))}}}}}"

    numbers = ", ".join(map(_real, code.numbers))
    lines = ", ".join(instruction(*each) for each in code.instructions)
    operands = ", ".join(code.operands)
    return f"call.map({{{numbers}}}, {{{operands}}}, {code.registers}, {{{lines}}})"


def _windows(windows: tuple[tuple[Any, ...], ...]) -> str:
    each = ["{" + ", ".join(map(written, window)) + "}" for window in windows]
    if len(set(each)) == 1:
        return f"Windows({len(each)}, {each[0]})"
    return "{" + ", ".join(each) + "}"


def _real(value: Any) -> str:
    """As a double."""
    if isinstance(value, Symbol) and value.type is not float:
        return f"double({value.code})"
    return written(value)
