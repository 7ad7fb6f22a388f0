"""Each primitive of the core over its whole range, against exact values, to the bound in its row.

A convolution of one channel by a kernel of one 1 hands every value on as it is (but for the sign of
zero), and the map after it is the primitive, negated twice: so that no loop of its own serves it.
"""

import mpmath
import pytest
import torch
from torch import Tensor

import transfuse
from tests.primitive_ranges import NUMBERS, arguments, swept, wrong
from transfuse import maths
from transfuse.backends.cpu.sweeps import prepare
from transfuse.maths.expr import ARITY, LOGICAL, Expr, call
from transfuse.maths.primitives import PRIMITIVES
from transfuse.stages import Map, pointwise, sigmoid, tanh

OF_ONE = [each for each in ARITY if ARITY[each] == 1 and each not in LOGICAL]
FLUSHED = ("sigmoid",)  # results below the normal numbers may be 0: exp(-x) is beyond the largest
OF_TWO = [each for each in ARITY if ARITY[each] == 2 and each not in ("both", "either")]


def run(stage: Map, x: Tensor) -> Tensor:
    weight = torch.ones(1, 1, 1, dtype=x.dtype)
    return transfuse.conv_transpose(x.reshape(1, 1, -1), weight, then=[stage], backend="cpu")[0, 0]


def in_a_map(primitive: str) -> Map:
    return pointwise(lambda x: negated_twice(call(primitive, x)))()


def negated_twice(value: Expr) -> Expr:
    return call("neg", call("neg", value))


def every_float() -> Tensor:
    """float32 of both signs and every exponent, denormals, Inf and NaN among them."""
    bits = torch.arange(0, 2**31, 4_099, dtype=torch.int64)
    magnitudes = bits.to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, 1.0, 0.5, 2.0**-126, 2.0**-149, torch.inf, torch.nan])
    near_one = 1 + torch.linspace(-1e-3, 1e-3, 4_001)
    small = torch.linspace(0, 20, 100_001)
    every = torch.cat([magnitudes, special, near_one, small])
    return torch.cat([every, -every]) + 0.0  # -0.0 would not come through the convolution


def ulps(found: Tensor, exact: Tensor) -> Tensor:
    """Errors of float32 values in units of their last place; Inf and NaN must agree."""
    rounded = exact.float()
    finite = rounded.isfinite()
    assert found.isnan().equal(rounded.isnan())
    # What is within half a place of the largest value may round either way.
    edge = ~finite & ~rounded.isnan()
    assert (found[edge].abs() >= 3.4028233e38).all()
    assert found[edge].sign().equal(rounded[edge].sign())
    place = torch.frexp(exact[finite].abs()).exponent.clamp(min=-125).double() - 24
    return (found[finite].double() - exact[finite]).abs() / torch.exp2(place)


def within_its_bound(primitive: str, x: Tensor, found: Tensor) -> None:
    exact = PRIMITIVES[primitive].torch(x.double())
    if primitive in FLUSHED:
        tiny = exact.abs() < 2.0**-126
        assert ((found.double() - exact).abs()[tiny] < 2.0**-126).all()
        found, exact = found[~tiny], exact[~tiny]
    assert ulps(found, exact).max() <= PRIMITIVES[primitive].ulp


@pytest.mark.parametrize("primitive", OF_ONE)
def test_float32(primitive: str) -> None:
    x = every_float()
    within_its_bound(primitive, x, run(in_a_map(primitive), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("primitive", OF_ONE)
def test_the_sign_of_zero(primitive: str, dtype: torch.dtype) -> None:
    # The convolution gives 0.0, never -0.0, and so the stage makes it.
    stage = pointwise(lambda x: negated_twice(call(primitive, -x)))()
    zeros = torch.zeros(40, dtype=dtype)
    expected = PRIMITIVES[primitive].torch(-zeros)
    found = run(stage, zeros)
    assert found.equal(expected)
    assert found.signbit().equal(expected.signbit())


@pytest.mark.parametrize("stage", [sigmoid(), tanh()], ids=str)
def test_loops_of_their_own_keep_the_same_bound(stage: Map) -> None:
    x = every_float()
    within_its_bound(stage.name, x, run(stage, x))


REAL = {
    "abs": abs,
    "neg": mpmath.fneg,
    "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    "rsqrt": lambda v: 1 / mpmath.sqrt(v),
    "log1p": mpmath.log1p,
}
"""Primitives as exact functions, where ``mpmath`` has none of the name."""


def every_double() -> Tensor:
    """float64 of every exponent, more of them where functions bend; denormals among them."""
    torch.manual_seed(0)
    bits = torch.arange(2047, dtype=torch.int64) << 52
    bits += torch.randint(0, 1 << 52, bits.shape)
    scales = torch.tensor([1e-300, 1e-9, 1e-3, 1, 30, 300], dtype=torch.float64)
    bent = (torch.randn(100, 6, dtype=torch.float64) * scales).flatten()
    bent = bent * 10.0 ** torch.linspace(-3, 3, len(bent), dtype=torch.float64)
    edges = [0.0, 5e-324, 1e-310, 2.0**-1022, 1.0, 709.78, 745.13, 1.7976931348623157e308]
    every = torch.cat([bits.view(torch.float64), bent, torch.tensor(edges, dtype=torch.float64)])
    return torch.cat([every, -every]) + 0.0  # as in ``every_float``


@pytest.mark.parametrize("primitive", OF_ONE)
def test_float64(primitive: str) -> None:
    x = every_double()
    function = REAL.get(primitive) or getattr(mpmath, primitive)
    domain = (x >= PRIMITIVES[primitive].least) & x.isfinite()
    found = run(in_a_map(primitive), x)
    assert found[x < PRIMITIVES[primitive].least].isnan().all()
    # The sines of the largest take as many bits of pi as these have.
    with mpmath.workprec(1200 if primitive in ("sin", "cos") else 150):
        for given, value in zip(x[domain].tolist(), found[domain].tolist(), strict=True):
            if given == 0 and primitive in ("log", "rsqrt"):
                assert abs(value) == torch.inf, given
                continue
            exact = function(mpmath.mpf(given))
            if abs(exact) >= mpmath.mpf(2) ** 1024 * (1 - mpmath.mpf(2) ** -54):
                assert value == (torch.inf if exact > 0 else -torch.inf), given
                continue
            exponent = mpmath.floor(mpmath.log(abs(exact), 2)) if exact else -1022
            place = mpmath.mpf(2) ** (max(exponent, -1022) - 52)
            if primitive in FLUSHED and abs(exact) < mpmath.mpf(2) ** -1022:
                assert 0 <= value < 2.0**-1022, given
            else:
                assert abs(value - exact) <= PRIMITIVES[primitive].ulp * place, given


@pytest.mark.parametrize("primitive", OF_ONE)
def test_float64_that_is_not_finite(primitive: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan] * 5, dtype=torch.float64)
    found, expected = run(in_a_map(primitive), x), PRIMITIVES[primitive].torch(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("primitive", OF_TWO)
@pytest.mark.parametrize("other", [1.5, -0.25, 1e-40, 3e38, torch.inf, torch.nan])
def test_two_arguments_are_rounded_as_torch_rounds_them(primitive: str, other: float) -> None:
    x = every_float()[::7]

    def body(x: Expr, y: Expr) -> Expr:
        found = call(primitive, x, y)
        return negated_twice(maths.where(found, 1, 0) if found.logical else found)

    found = run(pointwise(body)(torch.tensor([other])), x)
    expected = PRIMITIVES[primitive].torch(x, torch.tensor(other)).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("primitive", NUMBERS)
def test_in_sweeps(primitive: str, dtype: torch.dtype) -> None:
    """Where both zeros come through, and whatever stands in the place of a second argument."""
    given = arguments(primitive, dtype, 20_000)
    sweep, slots = swept(primitive, given)
    prepare(sweep)([slot.data_ptr() for slot in slots])
    row = PRIMITIVES[primitive]
    own = 1 if dtype is torch.float64 else 0  # torch's are not exact themselves
    assert not wrong(primitive, given, slots[-1], row.ulp + own, primitive in FLUSHED)
