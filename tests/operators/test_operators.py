"""The five operators: every way to call them, in every type, against float64 and against torch."""

import inspect
import re
from collections.abc import Callable
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

import transfuse
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.errors import DocumentError
from transfuse.operators import OPERATORS, Operator
from transfuse.problems import Document, parse
from transfuse.reference import scatter
from transfuse.stages import add, clamp, conv_transpose, scale, tanh

PLAIN, SOFTMAX, AVGPOOL, BATCHNORM, MAXSUM = OPERATORS
Make = Callable[..., Any]


def each_case(*types: str) -> pytest.MarkDecorator:
    """Every operator's small and ragged case in these types; ids are lines that can be pasted."""
    rows = []
    for slug, operator in OPERATORS.items():
        for line in (f"{name} {dtype}" for name in ("small", "ragged") for dtype in types):
            rows.append(pytest.param(slug, line, id=f"{slug} {operator.case(line)}"))
    return pytest.mark.parametrize(("slug", "line"), rows)


# Straight from the documents, one torch call after another.


def plain(x: Tensor, w: Tensor, **o: Any) -> Tensor:
    return F.conv_transpose2d(x, w, **o)


def softmax(
    x: Tensor, w: Tensor, conv_bias: Tensor, add_bias: Tensor, scaling_factor: float, **o: Any
) -> Tensor:
    y = torch.softmax(F.conv_transpose2d(x, w, conv_bias, **o), 1)
    return torch.sigmoid((y + add_bias.view(-1, 1, 1)) * scaling_factor)


def avgpool(
    x: Tensor, w: Tensor, s: Tensor, pool_kernel: int, clamp_min: float, clamp_max: float, **o: Any
) -> Tensor:
    y = F.conv_transpose3d(F.avg_pool3d(x, pool_kernel), w, **o).clamp(clamp_min, clamp_max)
    return torch.softmax(y.flatten(2), 2).view_as(y) * s.view(1, -1, 1, 1, 1)


def batchnorm(
    x: Tensor, w: Tensor, bn_w: Tensor, bn_b: Tensor, gn_w: Tensor, gn_b: Tensor,
    num_groups: int, groups: int, **o: Any,
) -> Tensor:  # fmt: skip
    y = F.conv_transpose2d(x, w, groups=1 if w.shape[1] == bn_w.numel() else groups, **o)
    y = torch.tanh(F.batch_norm(y, None, None, bn_w, bn_b, training=True))
    return F.group_norm(F.max_pool2d(y, 2), num_groups, gn_w, gn_b)


def maxsum(x: Tensor, w: Tensor, conv_bias: Tensor, **o: Any) -> Tensor:
    y = F.max_pool3d(F.conv_transpose3d(x, w, conv_bias, **o), 2)
    return F.max_pool3d(y, 3).sum(1, keepdim=True)


STRAIGHT = dict(zip(OPERATORS, (plain, softmax, avgpool, batchnorm, maxsum), strict=True))


@each_case("fp64")
def test_oracle_is_the_documents_maths(slug: str, line: str, given: Make) -> None:
    one = given(slug, line)
    straight = STRAIGHT[slug](*one.tensors, **one.options)
    assert (one.exact() - straight).abs().max() <= 1e-12 * straight.abs().max()


@each_case(*ELEMENTS)
def test_every_way_to_call_gives_the_same_bits(slug: str, line: str, given: Make) -> None:
    one = given(slug, line)
    before = [tensor.clone() for tensor in one.tensors]
    expected = one.function()
    out, by_name, by_place = one.empty(), one.empty(), one.empty()
    assert one.function(out=out) is out
    assert one.operator.solution(**one.arguments(by_name)) is None
    assert transfuse.solution(slug)(*one.arguments(by_place).values()) is None
    assert expected.dtype == one.x.dtype
    for y in (out, by_name, by_place):
        assert y.equal(expected)
    for tensor, copy in zip(one.tensors, before, strict=True):
        assert tensor.equal(copy)


@each_case("fp32", "fp64")
def test_wide_results_are_within_the_rounding_of_their_sums(
    slug: str, line: str, given: Make
) -> None:
    # A sum of K products is off by about sqrt(K) roundings of eps / 2 of its size (Higham and
    # Mary 2019: roundings are as good as independent). The convolution's outputs are near 1 and
    # the stages after it neither stretch nor shrink such values by much, so the largest of all
    # errors is a few such deviations: 4 * sqrt(K) * eps of the largest value, 8 deviations.
    one = given(slug, line)
    core = one.operator.bound(one.case).core(one.case.problem)
    terms = core.in_channels // core.groups * prod(core.kernel)
    exact = one.exact()
    bound = 4 * sqrt(terms) * torch.finfo(one.x.dtype).eps * exact.abs().max()
    assert (one.function().double() - exact).abs().max() <= bound


@each_case("fp16", "bf16")
def test_narrow_results_are_rounded_once(slug: str, line: str, given: Make) -> None:
    one = given(slug, line)
    y, exact = one.function(), one.exact()
    rounded = exact.to(y.dtype)
    # float32 inside may put a value on the other side of a tie: the neighbour, never further.
    assert (_rank(y) - _rank(rounded)).abs().max() <= 1
    error, least = ((each.double() - exact).abs().median() for each in (y, rounded))
    assert error <= 1.1 * least


def _rank(t: Tensor) -> Tensor:
    """The place of each 16-bit value among all of its type, so that neighbours differ by 1."""
    bits = t.view(torch.int16).int()
    return torch.where(bits < 0, -0x8000 - bits, bits)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@each_case(*ELEMENTS)
def test_nan_and_inf_go_where_the_oracle_says(
    slug: str, line: str, value: float, given: Make
) -> None:
    one = given(slug, line)
    for tensor in one.tensors:
        middle = tensor.view(-1)[tensor.numel() // 2 :]
        kept = middle[0].clone()
        middle[0] = value
        y, exact = one.function(), one.exact().to(tensor.dtype)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert kind(y).equal(kind(exact))
        middle[0] = kept


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_nan_and_inf_touch_what_their_taps_touch(dtype: str, value: float, given: Make) -> None:
    """Against the definition itself, tap by tap, which shares nothing with torch."""
    one = given(PLAIN, f"small {dtype}")
    for tensor in one.tensors:
        tensor.view(-1)[-1] = value
        y = one.function()
        touched = scatter(one.case.problem, *(t.double() for t in one.tensors))
        assert y.isnan().equal(touched.isnan())
        assert y.isinf().equal(touched.isinf())
        assert 0 < (~y.isfinite()).sum() < y.numel()
        tensor.view(-1)[-1] = 1


@pytest.mark.parametrize("slug", OPERATORS)
def test_one_nan_of_the_input_is_seen_in_the_output(slug: str, given: Make) -> None:
    one = given(slug, "small")
    one.x.view(-1)[0] = torch.nan
    assert one.function().isnan().any()


@pytest.mark.parametrize(("x", "expected"), [(400, torch.inf), (-400, -torch.inf), (200, 40000)])
def test_half_overflows_to_infinity_and_only_at_the_end(x: float, expected: float) -> None:
    """Three channels x, x, -x times 200: the sum passes 65504 on the way to 200 * x."""
    signs = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float16).view(1, 3, 1, 1)
    weight = torch.full((3, 1, 1, 1), 200, dtype=torch.float16)
    assert OPERATORS[PLAIN](x * signs, weight).item() == expected


# Arrays of other libraries.


class DLPackOnly:
    """What is left of a tensor when only DLPack is known of it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> object:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


def backwards(tensor: Tensor) -> np.ndarray:
    """The same values, stored from the last to the first: every stride is negative."""
    array = tensor.numpy()
    return np.flip(np.flip(array).copy())


@pytest.mark.parametrize("adapt", [Tensor.numpy, DLPackOnly, backwards])
@pytest.mark.parametrize("slug", OPERATORS)
def test_solution_takes_other_arrays(slug: str, adapt: Make, given: Make) -> None:
    one = given(slug, "ragged")
    expected, out = one.function(), one.empty()
    output = out.numpy() if adapt is backwards else adapt(out)
    arguments = one.arguments(output)
    arguments |= {p.name: adapt(arguments[p.name]) for p in one.operator.document.inputs}
    assert one.operator.solution(**arguments) is None
    assert out.equal(expected)


@pytest.mark.parametrize("slug", OPERATORS)
def test_solution_takes_bfloat16_of_numpy(slug: str, given: Make) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

    def array(tensor: Tensor) -> np.ndarray:
        return tensor.view(torch.uint16).numpy().view(bfloat16)

    one = given(slug, "ragged bf16")
    expected, out = one.function(), one.empty()
    arguments = one.arguments(array(out))
    arguments |= {p.name: array(arguments[p.name]) for p in one.operator.document.inputs}
    one.operator.solution(**arguments)
    assert out.equal(expected)


# Signatures.


@pytest.mark.parametrize("slug", OPERATORS)
def test_solution_has_the_signature_of_its_document(slug: str) -> None:
    text = (Path(transfuse.problems.__file__).parent / f"{slug}.md").read_text(encoding="utf-8")
    names = re.findall(r'^  - name: "(\w+)"$', text, re.MULTILINE)
    assert list(inspect.signature(transfuse.solution(slug)).parameters) == names
    assert transfuse.solution(slug).__name__ == slug.replace("-", "_")


TAKES = {
    PLAIN: "x weight * stride padding output_padding dilation groups output_size "
    "out backend precision",
    SOFTMAX: "x weight conv_bias add_bias * scaling_factor stride padding output_padding "
    "output_size out backend precision",
    AVGPOOL: "x weight scale * pool_kernel clamp_min clamp_max stride padding output_padding "
    "output_size out backend precision",
    BATCHNORM: "x weight bn_weight bn_bias gn_weight gn_bias * num_groups stride padding "
    "output_padding groups output_size out backend precision",
    MAXSUM: "x weight conv_bias * stride padding output_size out backend precision",
}


@pytest.mark.parametrize("slug", OPERATORS)
def test_function_takes_tensors_then_keywords(slug: str) -> None:
    tensors, keywords = (half.split() for half in TAKES[slug].split("*"))
    parameters = inspect.signature(OPERATORS[slug]).parameters
    assert [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == tensors
    assert [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == keywords
    assert getattr(transfuse, slug.replace("-", "_")) is OPERATORS[slug]


# What single operators promise.


def test_dense_kernel_carries_groups_along(given: Make) -> None:
    dense = given(BATCHNORM, "small fp64")  # 3 channels in, 8 out: no group divides both
    for groups in (1, 2, 3, 7):
        assert dense.function(groups=groups).equal(dense.function())
        out = dense.empty()
        dense.operator.solution(**(dense.arguments(out) | {"groups": groups}))
        assert out.equal(dense.function())


def test_grouped_kernel_is_a_dense_one_of_blocks(given: Make) -> None:
    grouped = given(BATCHNORM, "ragged fp64")
    groups = grouped.case.problem.groups
    blocks = grouped.weight.chunk(groups)
    rows = [
        [b if i == j else torch.zeros_like(b) for j in range(groups)] for i, b in enumerate(blocks)
    ]
    dense = torch.cat([torch.cat(row, 1) for row in rows])
    assert dense.shape[1] == groups * grouped.weight.shape[1]
    y = grouped.function(grouped.x, dense, *grouped.operands.values())
    assert (y - grouped.function()).abs().max() <= 1e-12 * y.abs().max()


@pytest.mark.parametrize("bounds", [(2.0, -1.0), (torch.inf, 3.0), (0.5, 0.5)])
def test_clamp_min_not_below_clamp_max_gives_a_uniform_softmax(
    bounds: tuple[float, float], given: Make
) -> None:
    one = given(AVGPOOL, "ragged fp64")
    y = one.function(clamp_min=bounds[0], clamp_max=bounds[1])
    uniform = one.operands["scale"].view(1, -1, 1, 1, 1) * (1 / prod(y.shape[2:]))
    assert (y - uniform).abs().max() <= 1e-15 * uniform.abs().max()


# Gradients: the functions are differentiable in every tensor.

TINY = {
    PLAIN: "n2 ci2 co4 i3x2 k2x3 s2x1 p1 op1x0 g2",
    SOFTMAX: "n1 ci2 co3 i2x3 k3 s2 p1 op1 scaling_factor=-1.5",
    AVGPOOL: "n1 ci2 co2 i2x4x3 k2 s1 pool_kernel=2 clamp_min=-0.5 clamp_max=0.7",
    BATCHNORM: "n2 ci2 co4 i2x3 k3 s1 g2 num_groups=2",
    MAXSUM: "n1 ci1 co2 i2x3x2 k5x4x5 s1",
}


@pytest.mark.parametrize("slug", OPERATORS)
def test_gradients(slug: str, given: Make) -> None:
    one = given(slug, f"{TINY[slug]} fp64")
    tensors = tuple(tensor.requires_grad_() for tensor in one.tensors)
    assert gradcheck(one.function, tensors)


# A sixth operator.


def document(slug: str, tensors: str, scalars: str) -> Document:
    """A document in a few words: constant tensors, an output, and scalars as ``name:type``."""
    rows = [(name, "[VAR]", "true", str(name != "output").lower()) for name in tensors.split()]
    rows += [(*each.split(":"), "false", "false") for each in scalars.split()]
    listed = "".join(
        f"  - {{name: {name}, type: '{kind}', pointer: {pointer}, const: {const}}}\n"
        for name, kind, pointer, const in rows
    )
    head = f"slug: {slug}\ntitle: A sixth\ndifficulty: EASY\nauthor: a test\ntags: [sample]\n"
    return parse(
        f"---\n{head}parameters:\n{listed}---\ny = tanh(convT(x, w) * gain + shift)\n", slug
    )


SIZES = "batch_size:size_t in_channels:size_t out_channels:size_t width:size_t kernel_w:size_t"
SIXTH = document(
    "conv-transpose1d-gain-shift-tanh",
    "input kernel gain output",
    f"{SIZES} stride_w:size_t padding_w:size_t shift:double",
)


def test_a_sixth_operator_in_a_few_lines(given: Make) -> None:
    sixth = Operator(
        SIXTH.slug,
        Chain(conv_transpose(1), scale("gain"), add("shift"), tanh()),
        document=SIXTH,
        small="n2 ci3 co4 i5 k4 s2 p1 shift=0.25",
    )
    one = given(sixth, "small fp64")
    x, weight, gain = one.tensors
    y = F.conv_transpose1d(x, weight, stride=2, padding=1)
    expected = torch.tanh(y * gain.view(-1, 1) + 0.25)
    assert (sixth(x, weight, gain, shift=0.25, stride=2, padding=1) - expected).abs().max() < 1e-12
    out = one.empty()
    sixth.solution(x, weight, gain, out, 2, 3, 4, 5, 4, 2, 1, 0.25)
    assert (out - expected).abs().max() < 1e-12
    assert list(inspect.signature(sixth).parameters)[:3] == ["x", "weight", "gain"]
    assert [p.name for p in SIXTH.parameters] == list(inspect.signature(sixth.solution).parameters)


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([scale("gain")], "the chain does not use shift of the document"),
        ([scale("gain"), add("offset")], "the document does not have offset of the chain"),
        ([scale("gain"), clamp("low", "shift")], "the document does not have low of the chain"),
    ],
    ids=["less", "other", "more"],
)
def test_a_document_that_disagrees_with_its_chain(stages: list[Any], reason: str) -> None:
    sixth = Operator(SIXTH.slug, Chain(conv_transpose(1), *stages), document=SIXTH)
    for use in (lambda: sixth.document, lambda: sixth.solution, lambda: sixth(torch.ones(1, 1, 1))):
        with pytest.raises(DocumentError, match=f"{SIXTH.slug}: .*{re.escape(reason)}"):
            use()
