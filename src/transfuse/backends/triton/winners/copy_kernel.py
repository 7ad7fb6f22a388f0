# mypy: ignore-errors
"""Two axes of a tensor turned around, so that channels lie side by side."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import nearest_tf32
from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def turn(x, out, sizes, strides, C: tl.constexpr):
    """``out[o, b, a] = x[o, a, b]``, rounded where ``C`` (a ``Turn``) says so.

    ``sizes``: blocks of a, those of b, a, b.
    """
    rest, of_a = parted(tl.program_id(0), sizes[0])
    outer, of_b = parted(rest, sizes[1])
    many_a = plain(sizes[2][0])
    many_b = plain(sizes[3][0])
    a = of_a * C.block_a + tl.arange(0, C.block_a)[None, :]
    b = of_b * C.block_b + tl.arange(0, C.block_b)[:, None]
    from_a = a if C.inner == "a" else a.to(tl.int64) * plain(strides[1])
    from_b = b if C.inner == "b" else b.to(tl.int64) * plain(strides[2])
    live = (a < many_a) & (b < many_b)
    source = x + outer.to(tl.int64) * plain(strides[0]) + from_a + from_b
    v = tl.load(source, mask=live, other=0.0)
    if C.tf32:
        v = nearest_tf32(v)
    row = outer.to(tl.int64) * many_b + b
    tl.store(out + row * many_a + a, v, mask=live)
