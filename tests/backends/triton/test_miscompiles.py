"""Machine code that is known to be wrong is told from its like."""

import pytest

from transfuse.backends.triton.miscompiles import spills_over

PACKED = """
	cvt.u64.u32 	%rd26, %r66;
	shl.b64 	%rd27, %rd26, 39;
	LOWER;
	or.b64 	%rd29, %rd28, %rd27;
	mov.b64 	{_, %r67}, %rd29;
"""


@pytest.mark.parametrize(
    "lower", ["mul.wide.u32 	%rd28, %r52, 16777216", "shl.b64 	%rd28, %rd20, 24"]
)
def test_the_lower_half_may_spill_over(lower: str) -> None:
    assert spills_over(PACKED.replace("LOWER", lower))


@pytest.mark.parametrize(
    "code",
    [
        PACKED.replace("LOWER", "cvt.u64.u32 	%rd28, %r52"),  # as wide as it was
        PACKED.replace("LOWER", "shl.b64 	%rd28, %rd20, 24").replace("{_, %r67}", "%rd30"),
        "mul.wide.u32 	%rd28, %r52, 4; add.s64 	%rd29, %rd1, %rd28;",
        "",
    ],
)
def test_other_code_is_left_alone(code: str) -> None:
    assert not spills_over(code)
