"""Operator: a chain with a name, a document and, from the two, every way to call it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter as Argument
from inspect import Signature
from inspect import signature as signature_of
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from transfuse.arrays import adopt
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.checks import Size, kernel_groups
from transfuse.errors import DocumentError
from transfuse.front import call, compute
from transfuse.geometry import integer
from transfuse.padding import Padding
from transfuse.problem import AXES, Problem, expect_in_torch
from transfuse.problems import Document, Parameter, document
from transfuse.remembered import exactly
from transfuse.stages import Number
from transfuse.tensors import Precision, describe

P = ParamSpec("P")

OPTIONS = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
"""The per-axis options of a convolution, with torch's defaults."""
OWN = frozenset(
    {"input", "x", "weight", "groups", "output_size", "out", "backend", "precision", *OPTIONS}
)
"""Names of every operator's own arguments, in calls and in messages."""
TYPES: dict[str, Any] = {
    **dict.fromkeys(OPTIONS, Size),
    "padding": Padding,
    "groups": int,
    "output_size": Sequence[int] | None,
    "out": Tensor | None,
    "backend": str | None,
    "precision": Precision,
}
"""The types of the keywords that are not the document's."""
REALS = ("float", "double")
"""The documents' types of real numbers; all others are integers."""
SHORTEST = 5
"""The words that a problem line has at least: n, ci, co, i, k."""
COUNTS = ("batch_size", "in_channels", "out_channels")


class _SignatureOf:
    """``inspect.signature(operator)``, worked out when first asked for."""

    def __get__(self, instance: Any, owner: type) -> Signature | None:
        return None if instance is None else instance.signature


class Operator:
    """A named chain: call it like a torch function, or as its document says with ``solution``.

    What a call takes follows from the document: the tensors, then by name its numbers and the
    options of the convolution that it lists. ``inspect.signature`` has it; those that
    :func:`declare` makes have it for type checkers, too.

    Args:
        slug: its name, with hyphens
        chain: what it computes; strings in it are parameters of the document
        document: what says its parameters and their order. Default: the shipped one of that slug
        short: a name for tables and the command line. Default: the slug
        cases: problems under a name, one line each, with the document's numbers

    Example::

        >>> op = transfuse.operator("conv-transpose3d-max-max-sum")
        >>> print(op.chain)
        conv_transpose3d(+ conv_bias) -> max_pool(2) -> max_pool(3) -> sum(channels, keepdim=True)
        >>> print(op.case("small"))
        n2 ci3 co4 i4x4x7 k5 s2 p2 fp32 cpu
    """

    __signature__ = _SignatureOf()
    _written: Signature | None = None
    """The signature that a type checker sees, where there is one."""

    def __init__(
        self,
        slug: str,
        chain: Chain,
        *,
        document: Document | None = None,
        short: str | None = None,
        **cases: str,
    ) -> None:
        self.slug = slug
        self.short = short or slug
        self.chain = chain
        self._document = document
        self._cases = cases
        self.__name__ = slug.replace("-", "_")
        self.__doc__ = f"{chain}\n\nSee ``transfuse show {slug}``."

    @property
    def rank(self) -> int:
        return self.chain.conv.rank

    @cached_property
    def document(self) -> Document:
        """The problem document; it must name what the chain names."""
        found = self._document or document(self.slug)
        named = {name for stage in self.chain.stages for name in stage.operands}
        given = {p.name for p in (*found.inputs[2:], *_scalars(found, self.rank))}
        if named != given:
            unused, unknown = (", ".join(sorted(each)) for each in (given - named, named - given))
            wrong = [f"the chain does not use {unused} of the document"] if unused else []
            wrong += [f"the document does not have {unknown} of the chain"] if unknown else []
            raise DocumentError(f"{self.slug}: {', and '.join(wrong)}")
        for name in sorted(given & OWN):
            raise DocumentError(
                f"{self.slug}: {name} of the document is what the function calls an argument of "
                "its own; call it by another name"
            )
        return found

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The per-channel tensors, after input and kernel."""
        return tuple(p.name for p in self.document.inputs[2:])

    @cached_property
    def scalars(self) -> tuple[Parameter, ...]:
        """The parameters that are neither tensors nor the convolution's sizes and options."""
        return _scalars(self.document, self.rank)

    @property
    def options(self) -> tuple[str, ...]:
        """The convolution's options that the document lists; the others keep their defaults."""
        names = {p.name for p in self.document.scalars}
        suffix = _suffixes(self.rank)[0]
        return tuple(option for option in OPTIONS if f"{option}_{suffix}" in names)

    @property
    def grouped(self) -> bool:
        return any(p.name == "groups" for p in self.document.scalars)

    @cached_property
    def signature(self) -> Signature:
        """The torch-style signature: tensors, then keyword-only scalars and options."""
        arguments = [
            Argument(name, Argument.POSITIONAL_OR_KEYWORD, annotation=Tensor)
            for name in ("x", "weight", *self.operands)
        ]
        arguments += [
            Argument(p.name, Argument.KEYWORD_ONLY, annotation=float if p.type in REALS else int)
            for p in self.scalars
        ]
        keywords: dict[str, Any] = {option: OPTIONS[option] for option in self.options}
        keywords |= {"groups": 1} if self.grouped else {}
        keywords |= {"output_size": None, "out": None, "backend": None, "precision": "auto"}
        arguments += [
            Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=TYPES[name])
            for name, default in keywords.items()
        ]
        found = Signature(arguments, return_annotation=Tensor)
        if self._written not in (None, found):
            raise DocumentError(
                f"{self.slug}: its function is written as {self._written}, "
                f"but its document asks for {found}"
            )
        return found

    @cached_property
    def _arguments(self) -> "_Arguments":
        return _Arguments(self.__name__, self.signature)

    def _read(self) -> None:
        """Read the document now, for all that a call looks at."""
        for name in ("_arguments", "operands", "scalars"):
            getattr(self, name)

    _read._dynamo_marked_constant = True  # type: ignore[attr-defined]
    # As in ``line``: a trace calls it, and need not follow how files are read.

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The chain on torch tensors; sizes come from the tensors, x may lack the batch axis."""
        if is_dynamo_compiling():  # perhaps the first call of all
            self._read()
        (x, weight, *rest), given = self._arguments.bind(args, kwargs)
        if has_torch_function((x, weight, *rest, given["out"])):
            relevant = (x, weight, *rest, given["out"])
            y: Tensor = handle_torch_function(self, relevant, *args, **kwargs)
            return y
        operands = dict(zip(self.operands, rest, strict=True))
        scalars = {p.name: number(p, given.pop(p.name)) for p in self.scalars}
        return call(self.chain, x, weight, operands, scalars=scalars, **given)

    @cached_property
    def solution(self) -> "Solution":
        """The callable with the document's own signature."""
        return Solution(self)

    def case(self, line: str) -> Case:
        """The case a line stands for, checked against the document's scalars.

        A line may start with the name of a declared case: ``benchmark fp16 cuda:sm90``.
        """
        name, _, rest = line.partition(" ")
        if name.isalpha() and name not in self._cases and len(line.split()) < SHORTEST:
            raise ValueError(
                f"{self.slug} has no case {name!r}; it has {', '.join(self._cases)}, or give a "
                f"problem line such as {next(iter(self._cases.values()), '')!r}"
            )
        case = Case.parse(f"{self._cases[name]} {rest}" if name in self._cases else line)
        wanted = [p.name for p in self.scalars]
        if sorted(case.scalars) != sorted(wanted):
            raise ValueError(
                f"{self.slug} takes {', '.join(wanted) or 'no scalars'}, "
                f"but the case gives {', '.join(case.scalars) or 'none'}: {line!r}"
            )
        if case.problem.rank != self.rank:
            raise ValueError(f"{self.slug} has {self.rank} spatial axes, unlike {line!r}")
        scalars = {p.name: number(p, case.scalars[p.name]) for p in self.scalars}
        return Case(case.problem, scalars)

    @property
    def cases(self) -> tuple[str, ...]:
        """The names of the declared cases."""
        return tuple(self._cases)

    def bound(self, case: Case) -> Chain:
        """The chain with the case's scalars in it."""
        return self.chain.bind(case.scalars)

    def __repr__(self) -> str:
        return f"<operator {self.slug}: {self.chain}>"


class Typed(Operator, Generic[P]):
    """An operator that type checkers and editors see as a function; made by :func:`declare`."""

    def __init__(
        self, function: Callable[P, Tensor], slug: str, chain: Chain, **given: Any
    ) -> None:
        super().__init__(slug, chain, **given)
        self.__doc__ = function.__doc__
        self._written = signature_of(function)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...


def declare(
    slug: str,
    chain: Chain,
    *,
    document: Document | None = None,
    short: str | None = None,
    **cases: str,
) -> Callable[[Callable[P, Tensor]], Typed[P]]:
    """An operator in place of the function below it, whose signature and docstring it takes.

    The function has no body: the chain is what runs. Its signature is the one that the document
    asks for, written out with names, types and defaults; a call says where it is another.

    Args:
        slug: as for :class:`Operator`, and so are the others
        chain: what it computes
        document: what says its parameters and their order
        short: a name for tables and the command line
        cases: problems under a name

    Returns:
        Callable: makes an operator of a function
    """
    return lambda function: Typed(function, slug, chain, document=document, short=short, **cases)


class Solution:
    """A callable with exactly the document's parameters, in its order, by place or by name.

    Reads the inputs, writes ``output`` in place, returns None. Tensors may be torch tensors,
    NumPy arrays or anything with DLPack; their shapes are checked against the size arguments.
    Autocast casts nothing here: the output has a type of its own. Nor does autograd record a call,
    whatever requires grad.
    """

    __signature__ = _SignatureOf()

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.__name__ = operator.__name__
        self.__doc__ = operator.document.python_signature() + "\n\n" + operator.document.body

    @cached_property
    def signature(self) -> Signature:
        kind = Argument.POSITIONAL_OR_KEYWORD
        names = (p.name for p in self.operator.document.parameters)
        return Signature([Argument(name, kind) for name in names], return_annotation=None)

    @cached_property
    def _arguments(self) -> "_Arguments":
        return _Arguments(self.__name__, self.signature)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        op = self.operator
        given = dict(
            zip(self.signature.parameters, self._arguments.bind(args, kwargs)[0], strict=True)
        )
        tensors = [given[p.name] for p in (*op.document.inputs, op.document.output)]
        if has_torch_function(tensors):
            handle_torch_function(self, tensors, *args, **kwargs)
            return
        numbers = {p.name: number(p, given[p.name]) for p in op.document.scalars}
        output = op.document.output.name
        out = adopt(output, given[output], writable=True)
        inputs = {p.name: adopt(p.name, given[p.name]) for p in op.document.inputs}
        x, weight, *_ = inputs.values()
        operands = {name: inputs[name] for name in op.operands}

        def prepare(exotic: bool) -> tuple[Chain, Problem]:
            return op.chain.bind(numbers), self._problem(numbers, x, weight, exotic)

        what = (self, exactly(*numbers.values()))
        compute(what, prepare, x, weight, operands, out, None, op.document.inputs[1].name)

    def _problem(
        self, numbers: Mapping[str, Any], x: Tensor, weight: Tensor, exotic: bool
    ) -> Problem:
        op = self.operator
        suffixes = _suffixes(op.rank)
        options: dict[str, Any] = {
            option: tuple(numbers.get(f"{option}_{axis}", default) for axis in suffixes)
            for option, default in OPTIONS.items()
        }
        groups = numbers.get("groups", 1)
        channels = numbers["out_channels"]
        if op.chain.conv.either_kernel and weight.dim() == op.rank + 2:
            groups = kernel_groups(weight, channels, groups)
        problem = Problem(
            batch=numbers["batch_size"],
            in_channels=numbers["in_channels"],
            out_channels=channels,
            spatial=tuple(numbers[axis] for axis in AXES[op.rank]),
            kernel=tuple(numbers[f"kernel_{axis}"] for axis in suffixes),
            **options,
            groups=groups,
            **describe(x, exotic=exotic),
        )
        expect_in_torch(problem)
        return problem


def number(parameter: Parameter, value: object) -> Number:
    """A scalar argument as its document's type: an integer, or a real number."""
    if parameter.type in REALS:
        if type(value) is float:  # the usual case, and by far the quickest to see
            return value
        if isinstance(value, bool) or not isinstance(value, Real):
            kind = type(value).__name__
            raise TypeError(f"{parameter.name} must be a real number, not {kind} ({value!r})")
        return float(value)
    return integer(parameter.name, value)


class _Arguments:
    """What a signature makes of a call: values by place, and values by name with their defaults.

    Quickly, where each is given as it is listed; ``inspect`` binds every other call, and says what
    is wrong with the wrong ones.
    """

    def __init__(self, name: str, signature: Signature) -> None:
        self.name, self.signature = name, signature
        known = signature.parameters.values()
        self.places = sum(p.kind is Argument.POSITIONAL_OR_KEYWORD for p in known)
        self.keywords = {p.name: p.default for p in known if p.kind is Argument.KEYWORD_ONLY}
        self.needed = {name for name, value in self.keywords.items() if value is Argument.empty}

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # Sets of keys are not compared as such: torch.compile traces that in its newest form alone.
        fits = len(args) == self.places
        for name in kwargs:
            fits = fits and name in self.keywords
        for name in self.needed:
            fits = fits and name in kwargs
        if fits:
            return args, self.keywords | kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            expected = ", ".join(self.signature.parameters)
            raise TypeError(f"{self.name}() {error}; it takes ({expected})") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs


def _suffixes(rank: int) -> str:
    return "dhw"[3 - rank :]


def _scalars(document: Document, rank: int) -> tuple[Parameter, ...]:
    geometry = {f"{name}_{axis}" for name in ("kernel", *OPTIONS) for axis in _suffixes(rank)}
    geometry |= {*COUNTS, *AXES[rank], "groups"}
    return tuple(p for p in document.scalars if p.name not in geometry)
