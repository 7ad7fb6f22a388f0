# mypy: ignore-errors
"""Arithmetic that Triton does not have as it is needed: exact rounding, NaN that wins."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""In the interpreter bfloat16 is rounded, multiplied and compared wrongly: it is worked around."""


@triton.jit
def larger(a, b):
    """max, NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """min, NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def quotient(a, b):
    """``a / b``, rounded to nearest."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def negative(x):
    """``x < 0``"""
    if INTERPRETED and x.dtype == tl.bfloat16:
        x = x.to(tl.float32)
    return x < 0


@triton.jit
def nearest_tf32(x):
    """float32 rounded to tf32's ten bits, ties away from zero; hardware would truncate."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


@triton.jit
def narrow(x, kind: tl.constexpr):
    """``x`` in a storage type, to nearest."""
    if INTERPRETED and kind == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    return x.to(kind)


@triton.jit
def multiply_add(a, b, acc, ACC: tl.constexpr, DOT: tl.constexpr):
    """``acc + a @ b``: one instruction stream, nothing between two of them."""
    if INTERPRETED and a.dtype == tl.bfloat16:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=DOT, out_dtype=ACC)


@triton.jit
def power_of_two(x):
    """``2**x`` in one instruction; below 2**-126 it is 0."""
    if x.dtype == tl.float32 and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def reciprocal(x):
    """``1 / x`` in one instruction, to one ulp, for ``x`` of at least 1."""
    if x.dtype == tl.float32 and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def inverse_root(x):
    """``1 / sqrt(x)``, each rounded to nearest."""
    if x.dtype == tl.float64:
        return 1.0 / tl.sqrt(x)
    else:
        return 1.0 / tl.sqrt_rn(x)


LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def bounded_exp(x):
    """``exp(x)`` for ``x`` that a clamp keeps near 0: nothing to overflow, nothing to flush."""
    if x.dtype == tl.float32 and not INTERPRETED:
        return power_of_two(x * LOG2E)
    else:
        return tl.exp(x)


@triton.jit
def sigmoid(x):
    """``1 / (1 + 2**x)``: the sigmoid of ``-x * log(2)``"""
    return reciprocal(1.0 + power_of_two(x))


@triton.jit
def tanh(x):
    """By exponentials, and near 0, where those cancel, by a rational or polynomial fit."""
    z = x * x
    if x.dtype == tl.float64:
        top = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z
        top = top - 1.61468768441708447952e3
        low = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z
        near = x * (1.0 + z * (top / (low + 4.84406305325125486048e3)))
        far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    else:
        fit = (-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2
        fit = (fit * z + 1.33314422036e-1) * z - 3.33332819422e-1
        near = x * (1.0 + z * fit)  # of -0, too
        far = 1.0 - 2.0 * reciprocal(power_of_two(tl.abs(x) * (2.0 * LOG2E)) + 1.0)
    far = tl.where(x < 0, -far, far)
    return tl.where(tl.abs(x) < 0.625, near, far)
