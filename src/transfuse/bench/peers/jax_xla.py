"""JAX/XLA on GPUs: the chain in jax.numpy, jitted.

``STAGES`` has one entry for each type of stage. The convolution is a correlation of the dilated
input with the flipped kernel.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor

from transfuse.arrays import adopt
from transfuse.bench.peers.base import Missing, Runner, Work, library
from transfuse.maths.expr import Call, Constant, Expr, Name, folded
from transfuse.maths.primitives import complete
from transfuse.problem import Problem
from transfuse.stages import ConvTranspose, Number, Operand, Stage
from transfuse.stages.norm import Norm
from transfuse.stages.pointwise import Map
from transfuse.stages.reduce import Reduce, Softmax
from transfuse.stages.shape import Cat, Flatten, Squeeze
from transfuse.stages.window import AvgPool, MaxPool, Window

Array = Any  # jax.Array


@dataclass(frozen=True)
class JaxXla:
    name: str = "JAX/XLA"
    trains: bool = True

    def build(self, work: Work) -> Runner:
        if not work.problem.device.startswith("cuda"):
            raise Missing("JAX is compared on GPUs only")
        try:
            _jax().devices("cuda")
        except RuntimeError as error:
            raise Missing(f"this JAX has no GPU: {error}") from error
        return jitted(work)


def jitted(work: Work) -> Runner:
    """The chain under jax.jit, or a step of training, on the device of its tensors."""
    jax, problem, precision = _jax(), work.chain.core(work.problem), _precision(work)
    stages, result = work.chain.typed(work.problem).stages, work.chain.result(work.problem)
    for stage in stages:
        windowed = isinstance(stage, Window) and not stage.simple(problem.rank)
        if type(stage) not in STAGES or windowed:
            raise Missing(f"no JAX form of stage {stage} is written")
        if stage.updates:
            raise Missing(f"a jitted function writes to no tensor of its call, and {stage} would")

    def float64() -> AbstractContextManager[Any]:
        # Where it is not allowed, JAX makes float64 float32.
        return jax.enable_x64(True) if problem.dtype == "fp64" else nullcontext()

    def adapt(x: Tensor) -> Array:
        with float64():
            return jax.dlpack.from_dlpack(x.detach().contiguous())

    @jax.jit  # type: ignore[untyped-decorator]
    def chain(x: Array, weight: Array, operands: dict[str, Array]) -> Array:
        scope = Scope(jax, problem, precision, weight, operands)
        for stage in stages:
            x = STAGES[type(stage)](scope, stage, x)
        return x.reshape(result)

    weight = adapt(as_correlation(problem, work.weight))
    operands = {name: adapt(tensor) for name, tensor in work.operands.items()}

    def run(x: Tensor) -> Tensor:
        # Handed over from torch, whose stream JAX's then waits for, and back again: CUDA events on
        # torch's see all of it, and nothing else. Waiting on the host instead would add to it.
        with float64():
            return adopt("y", chain(adapt(x), weight, operands))

    if work.cotangent is None:
        return Runner(run)
    cotangent = adapt(work.cotangent)
    trained = [name for name in operands if name not in work.chain.updates]

    @jax.jit  # type: ignore[untyped-decorator]
    def gradients(x: Array, weight: Array, operands: dict[str, Array]) -> list[Array]:
        _, back = jax.vjp(chain, x, weight, operands)
        by_x, by_weight, by_operand = back(cotangent)
        return [by_x, by_weight, *(by_operand[name] for name in trained)]

    def step(x: Tensor) -> list[Tensor]:
        with float64():
            return [adopt("gradient", each) for each in gradients(adapt(x), weight, operands)]

    def collect(found: list[Tensor]) -> tuple[Tensor, ...]:
        by_x, by_weight, *rest = found
        return by_x, as_correlation(problem, by_weight), *rest

    return Runner(step, collect=collect)


def as_correlation(problem: Problem, weight: Tensor) -> Tensor:
    """``(Ci, Co/g, k)`` of a transposed convolution as ``(Co, Ci/g, k)``, not yet flipped.

    And the other way: done twice it changes nothing.
    """
    grouped = weight.reshape(problem.groups, -1, *weight.shape[1:])
    return grouped.transpose(1, 2).flatten(0, 1)


def _jax() -> Any:
    jax = library("jax", "pip install 'jax[cuda13]'")
    # Left alone, JAX takes three quarters of the GPU's memory at its first call.
    if jax.config.jax_pjrt_client_create_options is None:
        jax.config.update("jax_pjrt_client_create_options", {"preallocate": False})
    return jax


def _precision(work: Work) -> str:
    """On a GPU "default" is tf32 for float32; the other types have one arithmetic each."""
    return "highest" if work.problem.dtype == "fp32" and not work.precision.tf32 else "default"


@dataclass(frozen=True)
class Scope:
    """What the maths of a stage may read beside its input."""

    jax: Any
    problem: Problem
    precision: str
    weight: Array
    operands: dict[str, Array]

    def value(self, operand: Number | Operand, default: float = 0.0) -> Array:
        """A number, an operand as it meets the values, or ``default`` for None."""
        if isinstance(operand, str):
            given = self.operands[operand]
            return given.reshape(-1, *[1] * self.problem.rank) if given.ndim == 1 else given
        return default if operand is None else operand

    def windows(self, stage: Window, x: Array, start: float, combine: Any) -> Array:
        kernel, stride, padding = zip(*stage.windows(self.problem.rank), strict=True)
        pads = [(0, 0), (0, 0), *((p, p) for p in padding)]
        return self.jax.lax.reduce_window(x, start, combine, (1, 1, *kernel), (1, 1, *stride), pads)


def _convolution(s: Scope, stage: ConvTranspose, x: Array) -> Array:
    letters = "DHW"[3 - s.problem.rank :]
    # Flipped here and not ahead: by the flip XLA knows the gradient of a convolution, for which
    # cuDNN has kernels. Without it zeros are multiplied, ten times slower in max-max-sum.
    flipped = s.jax.lax.rev(s.weight, range(2, s.weight.ndim))
    reach = [axis.dilation * (axis.k - 1) - axis.padding for axis in s.problem.axes]
    y = s.jax.lax.conv_general_dilated(
        x,
        flipped,
        window_strides=(1,) * s.problem.rank,
        padding=[(r, r + a.output_padding) for r, a in zip(reach, s.problem.axes, strict=True)],
        lhs_dilation=s.problem.stride,
        rhs_dilation=s.problem.dilation,
        dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
        feature_group_count=s.problem.groups,
        precision=s.precision,
    )
    return y if stage.bias is None else y + s.value(stage.bias)


def _avg_pool(s: Scope, stage: AvgPool, x: Array) -> Array:
    return s.windows(stage, x, 0.0, s.jax.lax.add) / stage.divisor(s.problem.rank)


def _norm(s: Scope, stage: Norm, x: Array) -> Array:
    y = _normalised(s, stage, x)
    if isinstance(stage.over, tuple):
        given = (stage.weight, 1.0), (stage.bias, 0.0)
        weight, bias = (
            s.operands[each].reshape(stage.over) if isinstance(each, str) else default
            for each, default in given
        )
        return y * weight + bias
    return y * s.value(stage.weight, 1.0) + s.value(stage.bias, 0.0)


def _normalised(s: Scope, stage: Norm, x: Array) -> Array:
    """``x`` less its mean, over its deviation."""
    if not stage.training:
        scale = s.jax.lax.rsqrt(s.value(stage.running_var) + stage.eps)
        return (x - s.value(stage.running_mean)) * scale
    axes, parts = stage.axes(s.problem.rank), x
    if stage.num_groups is not None:
        axes, parts = (2,), x.reshape(x.shape[0], int(stage.num_groups), -1)
    if not stage.centred:
        square = (parts * parts).mean(axes, keepdims=True)
        return parts * s.jax.lax.rsqrt(square + stage.eps)
    mean, variance = parts.mean(axes, keepdims=True), parts.var(axes, keepdims=True)
    return ((parts - mean) * s.jax.lax.rsqrt(variance + stage.eps)).reshape(x.shape)


def _reduce(s: Scope, stage: Reduce, x: Array) -> Array:
    numpy, nn = s.jax.numpy, s.jax.nn
    known = {"sum": numpy.sum, "mean": numpy.mean, "amax": numpy.max, "amin": numpy.min}
    fold = known.get(stage.name, nn.logsumexp)
    return fold(x, axis=stage.axes(s.problem.rank), keepdims=True)


def _softmax(s: Scope, stage: Softmax, x: Array) -> Array:
    softmax = s.jax.nn.log_softmax if stage.log else s.jax.nn.softmax
    return softmax(x, axis=stage.axes(s.problem.rank))


def _cat(s: Scope, stage: Cat, x: Array) -> Array:
    parts = (s.value(stage.skip), x) if stage.first else (x, s.value(stage.skip))
    return s.jax.numpy.concatenate(parts, axis=1)


_FUNCTIONS = {
    **{name: f"numpy.{name}" for name in ("add", "minimum", "maximum", "abs", "floor", "where")},
    **{name: f"numpy.{name}" for name in ("sqrt", "exp", "expm1", "log", "log1p")},
    **{name: f"numpy.{name}" for name in ("sin", "cos", "tanh")},
    "sub": "numpy.subtract",
    "mul": "numpy.multiply",
    "div": "numpy.divide",
    "neg": "numpy.negative",
    "clamp": "numpy.clip",
    "lt": "numpy.less",
    "le": "numpy.less_equal",
    "eq": "numpy.equal",
    "both": "numpy.logical_and",
    "either": "numpy.logical_or",
    "no": "numpy.logical_not",
    "rsqrt": "lax.rsqrt",
    "sigmoid": "nn.sigmoid",
    "erf": "scipy.special.erf",
}
"""The function of ``jax`` for each primitive."""
complete(_FUNCTIONS, __name__)


def _map(s: Scope, stage: Map, x: Array) -> Array:
    given = dict(zip(stage.function.parameters, stage.arguments, strict=True))

    def leaf(each: Expr) -> Array:
        if isinstance(each, Constant):
            return each.value
        assert isinstance(each, Name)
        return x if each.name == "x" else s.value(given[each.name])

    def apply(each: Call, parts: list[Array]) -> Array:
        return attrgetter(_FUNCTIONS[each.primitive])(s.jax)(*parts)

    return folded(stage.function.expr, leaf, apply)


STAGES: dict[type[Stage], Callable[[Scope, Any, Array], Array]] = {
    ConvTranspose: _convolution,
    Map: lambda s, stage, x: _map(s, stage, x),
    Reduce: _reduce,
    Softmax: _softmax,
    AvgPool: _avg_pool,
    MaxPool: lambda s, stage, x: s.windows(stage, x, -float("inf"), s.jax.lax.max),
    Norm: _norm,
    Cat: _cat,
    Flatten: lambda s, stage, x: x,  # the result takes its form at the end
    Squeeze: lambda s, stage, x: x,
}

PEERS = (JaxXla(),)
