"""Short rows of many samples: the core puts these side by side, so that rows are long."""

import pytest
import torch

from tests.backends.test_cpu_short_rows import definition, integers
from transfuse import conv_transpose
from transfuse.stages import Stage, add, relu, softmax, sum

FORMS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dims", [(1, 1), (3, 3), (2, 4), (17, 2)], ids=str)
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padding": 1}),
        (5, {"padding": 2, "dilation": 2, "groups": 2}),
        (4, {"stride": 2, "padding": 1, "output_padding": 1}),
    ],
)
@pytest.mark.parametrize("batch", [9, 40])
def test_samples_side_by_side(
    isa: str, batch: int, kernel: int, options: dict[str, int], dims: tuple[int, int], form: str
) -> None:
    if dims == (1, 1):
        options = {**options, "padding": 0}
    x = integers(batch, 64, *dims).contiguous(memory_format=FORMS[form])
    weight = integers(64, 20, kernel, kernel, seed=1)
    y = conv_transpose(x, weight, backend="cpu", **options)
    assert torch.equal(y.double(), definition(x, weight, **options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_one_axis_and_other_types(isa: str, dtype: torch.dtype) -> None:
    x, weight = integers(30, 64, 3).to(dtype), integers(64, 10, 4, seed=1).to(dtype)
    y = conv_transpose(x, weight, stride=2, backend="cpu")
    assert torch.equal(y, definition(x, weight, stride=2).to(dtype))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spread", [(30, 20, 4, 5), (30, 1, 1, 1), (1, 20, 4, 5), (1, 1, 4, 1)])
def test_tensors_beside_them(isa: str, spread: tuple[int, ...], form: str) -> None:
    x = integers(30, 64, 2, 3).contiguous(memory_format=FORMS[form])
    weight, other = integers(64, 20, 3, 3, seed=1), integers(*spread, seed=2)
    y = conv_transpose(x, weight, then=[add(other), relu()], backend="cpu")
    assert torch.equal(y.double(), (definition(x, weight) + other).relu())


@pytest.mark.parametrize("stage", [sum("channels", keepdim=True), softmax("channels")], ids=str)
def test_stages_over_channels(isa: str, stage: Stage) -> None:
    x, weight = integers(30, 64, 3, 3), integers(64, 21, 3, 3, seed=1) / 8
    y = conv_transpose(x, weight, then=[stage], backend="cpu")
    expected = stage.apply(definition(x, weight), {})
    assert torch.allclose(y.double(), expected, rtol=0, atol=1e-6)


def test_the_same_weights_with_few_samples_and_many(isa: str) -> None:
    """They are packed in another order for each, and where rows are paired for both into as many
    bytes, so that one pack could be taken for the other. That takes rows of 4 and more, which are
    short where the microkernel has twelve: in other instruction sets the packs differ in size.
    """
    weight = integers(64, 20, 5, 5, seed=1)
    for batch in (2, 40, 2, 40):
        x = integers(batch, 64, 5, 4, seed=batch)
        y = conv_transpose(x, weight, padding=2, backend="cpu")
        assert torch.equal(y.double(), definition(x, weight, padding=2))


def test_values_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    x, weight = integers(20, 64, 3, 2) + 3, integers(64, 17, 3, 3, seed=1)
    x[3, 0, 0, 0], x[19, 1, 2, 1] = torch.inf, torch.nan
    weight[0, 0, 0, 0], weight[-1, -1, 2, 2] = torch.inf, torch.nan
    y = conv_transpose(x, weight, stride=2, backend="cpu")
    expected = definition(x, weight, stride=2)
    assert torch.equal(y.double().nan_to_num(77), expected.nan_to_num(77))
    assert y.isfinite().any()
    assert not y.isfinite().all()
