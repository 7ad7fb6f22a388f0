"""Integers far beyond a tensor's sizes: refused as torch refuses them, or the right result.

What might end the process runs in another one.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import conv_transpose
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.geometry import Axis
from transfuse.problem import Problem
from transfuse.stages import ConvTranspose, avg_pool, batch_norm, max_pool

INT32 = 2**31 - 1
START = """
import ctypes, torch, torch.nn.functional as F
from transfuse import conv_transpose
from transfuse.backends.cpu import library
from transfuse.stages import avg_pool, max_pool

def ones(*dims):
    return torch.arange(1.0, 1 + torch.Size(dims).numel()).reshape(dims)
"""


def survives(script: str) -> None:
    """Run a script in another process; it must end by itself and say "right" or "raised"."""
    found = subprocess.run(
        [sys.executable, "-c", START + script], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, f"status {found.returncode}\n{found.stderr[-2000:]}"
    assert found.stdout.strip() in ("right", "raised")


@pytest.mark.parametrize(("rank", "stride"), [(1, 2**32), (2, 2**31), (3, 2**32), (3, 2**64 + 1)])
def test_a_stride_that_torch_refuses_is_refused(rank: int, stride: int) -> None:
    survives(f"""
x, w = ones(1, 1, *(1,) * {rank}), ones(1, 1, *(2,) * {rank})
for name in ("stride", "dilation", "padding", "output_padding"):
    try:
        conv_transpose(x, w, **{{name: {stride}}}, backend="cpu")
    except (RuntimeError, ValueError) as error:
        assert "{stride}" in str(error) and name in str(error), error
    else:
        raise AssertionError(name)
print("raised")
""")


@pytest.mark.parametrize("stride", [2**16, 2**22, INT32])
def test_a_wide_stride_on_one_position(stride: int) -> None:
    """Judged in float64: torch's own float32 crashes on some of these."""
    survives(f"""
for kernel, dtype in ((1, torch.float32), (2, torch.float32), (2, torch.float64)):
    x, w = ones(2, 3, 1, 1, 1).to(dtype), ones(3, 5, kernel, kernel, kernel).to(dtype)
    for options in (dict(), dict(dilation=2), dict(groups=1, padding=(0, 0, kernel - 1))):
        if kernel == 2 and options.get("padding"):
            options["dilation"] = 3
        y = conv_transpose(x, w, stride={stride}, backend="cpu", **options)
        z = F.conv_transpose3d(x.double(), w.double(), stride={stride}, **options)
        assert torch.equal(y.double(), z)
print("right")
""")


def test_a_window_wider_than_32_bits() -> None:
    survives("""
x, w = ones(1, 1, 7), ones(1, 1, 2)
expected = F.max_pool1d(F.conv_transpose1d(x, w), 2, 2**32 + 1)
for _ in range(50):
    y = conv_transpose(x, w, then=[max_pool(2, 2**32 + 1)], backend="cpu")
    assert torch.equal(y, expected)
    z = conv_transpose(x, w, before=[max_pool(2, 2**63 - 1 - 2**62)], backend="cpu")
    assert torch.equal(z, F.conv_transpose1d(x[..., 1:2], w))
print("right")
""")


@pytest.mark.parametrize(
    "pool", ["max_pool(2, 2**32 + 1)", "avg_pool(2, 2**32 + 1)", "max_pool(2**32 + 2)"]
)
@pytest.mark.parametrize("where", ["before", "then"])
def test_a_window_that_torch_refuses_is_refused(pool: str, where: str) -> None:
    survives(f"""
x, w = ones(1, 1, 7, 7), ones(1, 1, 2, 2)
try:
    conv_transpose(x, w, {where}=[{pool}], backend="cpu")
except RuntimeError as error:
    assert "42949672" in str(error), error
    print("raised")
""")


def test_strides_of_c_whose_product_leaves_64_bits() -> None:
    survives("""
core = library.load()
x, w, b = ones(1, 1, 1, 1, 1), ones(1, 1, 7, 6, 6), torch.zeros(1)
out = torch.full((1, 1, 1, 1, 1), 77.0)
function = core.transfuse_conv_transpose3d_max_max_sum_f32
sizes = [1, 1, 1, 1, 1, 1, 7, 6, 6, 2**30, 2**30, 16, 0, 0, 0]
function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t] * len(sizes)
assert not function(*(t.data_ptr() for t in (x, w, b, out)), *sizes), core.transfuse_message()
assert float(out) == float(w[:, :, :6].max())
print("right")
""")


def same(call: Callable[..., Tensor], x: Tensor, w: Tensor, **options: Any) -> None:
    expected = call(x.double(), w.double(), **options)
    assert torch.equal(conv_transpose(x, w, backend="cpu", **options).double(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_steps_that_a_wide_padding_takes_back(dtype: torch.dtype) -> None:
    """Few outputs of an axis of billions: the cost follows those few."""
    x = torch.arange(1.0, 9).reshape(1, 2, 4).to(dtype)
    w = torch.arange(1.0, 13).reshape(2, 2, 3).to(dtype)
    same(F.conv_transpose1d, x[..., :2], w, stride=INT32, padding=2**30 - 1)
    same(F.conv_transpose1d, x[..., :2], w, stride=2**30, padding=2**29)
    same(F.conv_transpose1d, x[..., :3], w, stride=2**30, padding=2**30)
    same(F.conv_transpose1d, x, w, dilation=2**30, padding=2**30)
    same(F.conv_transpose1d, x[..., :1], w, stride=INT32, output_padding=INT32 - 1, padding=2**30)
    same(F.conv_transpose2d, x[:, :, None], w[:, :, None], dilation=(7, 2**30), padding=(0, 2**30))


def test_windows_that_are_nearly_all_padding() -> None:
    """As many windows as values, each of 2^30 cells: only the values count."""
    x, w = torch.arange(1.0, 7).reshape(1, 1, 6), torch.ones(1, 1, 1)
    wide = max_pool(2**30, 1, 2**29)
    y = conv_transpose(x, w, before=[wide], backend="cpu")
    assert torch.equal(y, torch.full((1, 1, 7), 6.0))
    assert torch.equal(conv_transpose(x, w, then=[wide], backend="cpu"), y)
    total = conv_transpose(x, w, before=[avg_pool(2**30, 1, 2**29)], backend="cpu")
    assert torch.equal(total, torch.full((1, 1, 7), 21.0) / 2**30)
    # A rewrite makes another pool of this one.
    norm = [batch_norm(training=True), max_pool(2, 2**32 + 1)]
    values = conv_transpose(x, w, then=norm, backend="cpu")
    assert torch.allclose(values, conv_transpose(x, w, then=norm, backend="eager"))


def test_a_long_kernel_on_few_inputs_costs_its_taps() -> None:
    """2^18 taps and as many phases: all pairs of them would be 2^36."""
    x, w = torch.ones(1, 2, 1), torch.arange(2.0**19).reshape(2, 1, 2**18)
    same(F.conv_transpose1d, x, w, stride=INT32, padding=1)
    same(F.conv_transpose2d, x[..., None], w[..., None], stride=INT32, padding=(1, 0))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("n1 ci1 co1 i2 k1 s2147483647 d1", ""),
        ("n1 ci1 co1 i1000000 k1 s2147483647", "output"),
        ("n1 ci1 co1 i3x3x3 k2x2x2 s1000000 d1", "output"),
        ("n1 ci1 co1 i1 k1000000 d2147483647", "output"),
        ("n281474976710656 ci1 co1 i1 k1 s1", ""),
        ("n281474976710656 ci2 co1 i1 k1 s1", "input"),
        ("n0 ci2 co1 i281474976710656 k1 s1", "input"),
        ("n1 ci16777216 co16777216 i1 k2 s1", "weight"),
        ("n1 ci1 co1 i1 k2147483648 s1", "kernel"),
    ],
)
def test_tensors_beyond_memory_are_refused_by_name(line: str, name: str) -> None:
    problem = Problem.parse(line)
    chain = Chain(ConvTranspose(problem.rank))
    if not name:
        assert Cpu().verdict(chain, problem).ok
        return
    with pytest.raises(
        RuntimeError, match=rf"conv_transpose{problem.rank}d: {name} of shape \["
    ) as found:
        Cpu().verdict(chain, problem)
    assert any(number in str(found.value) for number in ("(2^48)", "(2^31 - 1)"))


def by_tap(axis: Axis, size: int) -> int:
    """Pairs counted one tap after another."""
    total = 0
    for k in range(axis.k):
        inputs = (i * axis.stride + k * axis.dilation - axis.padding for i in range(axis.n))
        total += sum(0 <= o < size for o in inputs)
    return total


def test_pairs_are_counted_without_counting() -> None:
    small = range(1, 4)
    for n, k, s, d in (
        (n, k, s, d) for n in small for k in (1, 2, 5) for s in small for d in small
    ):
        for padding in range(3):
            axis = Axis(n, k, s, padding, d)
            for size in range(1, axis.size + 1):
                assert axis.pairs(size) == by_tap(axis, size), (axis, size)
    # Every tap of every input lands: far too many to be counted one by one.
    assert Axis(2**40, 2**31, 3, 0, 5).pairs() == 2**71
    assert Axis(2**40, 2**31, INT32, 0, 1).pairs(1) == 1


def test_a_plan_of_large_numbers_takes_no_longer() -> None:
    problem = Problem.parse(f"n1 ci1 co1 i65536 k2147483647 s{INT32} d1")
    chain = Chain(ConvTranspose(1), max_pool(2**30, 2**30))
    assert Cpu().plan(chain, problem).work > 0
