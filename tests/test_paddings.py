"""Padding by pairs and by words, and output sizes: against the definition, bit for bit.

``defined`` knows nothing of the package: every tap adds its products to a grid with room on all
sides, and the outputs asked for are cut out of it.
"""

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
import transfuse.stages
from transfuse import conv_transpose
from transfuse.cli import main
from transfuse.geometry import Axis
from transfuse.operators import OPERATORS
from transfuse.stages import avg_pool, max_pool, sigmoid, softmax
from transfuse.stages import sum as channel_sum

OURS = {1: transfuse.conv_transpose1d, 2: transfuse.conv_transpose2d, 3: transfuse.conv_transpose3d}
MODULES = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BACKENDS = ("eager", "cpu")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Pairs = tuple[tuple[int, int], ...]


def defined(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """The transposed convolution with ``pairs`` taken from its two ends, in float64."""
    x, weight, rank = x.double(), weight.double(), x.dim() - 2
    room = 8  # on each side: outputs may begin before the first tap and end beyond the last
    steps = list(zip(x.shape[2:], weight.shape[2:], stride, dilation, strict=True))
    grid = [2 * room + (n - 1) * s + d * (k - 1) + 1 for n, k, s, d in steps]
    y = x.new_zeros(x.shape[0], groups, weight.shape[1], *grid)
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    kernels = weight.reshape(groups, -1, *weight.shape[1:])
    for tap in product(*map(range, weight.shape[2:])):
        firsts = [room + at * d for at, (_, _, _, d) in zip(tap, steps, strict=True)]
        places = zip(firsts, steps, strict=True)
        where = [slice(first, first + (n - 1) * s + 1, s) for first, (n, _, s, _) in places]
        for group in range(groups):
            one = kernels[(group, slice(None), slice(None), *tap)]
            for channel in range(one.shape[0]):
                term = parts[:, group, channel, None] * one[channel].reshape(1, -1, *[1] * rank)
                y[(slice(None), group, slice(None), *where)] += term
    ends = zip(grid, pairs, output_padding, strict=True)
    kept = [slice(room + b, size - room - a + more) for size, (b, a), more in ends]
    y = y.flatten(1, 2)[(..., *kept)]
    return y if bias is None else y + bias.double().reshape(1, -1, *[1] * rank)


@dataclass(frozen=True)
class Geometry:
    """One call, as the definition takes it."""

    batch: int
    channels: tuple[int, int]
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    pairs: Pairs
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int

    def __str__(self) -> str:
        return " ".join(str(value).replace(" ", "") for value in vars(self).values())

    @property
    def options(self) -> dict[str, Any]:
        names = ("stride", "dilation", "output_padding", "groups")
        return {name: getattr(self, name) for name in names}

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Input, weights and bias of small integers: every sum is exact, and rounded once."""
        generator = torch.Generator().manual_seed(len(str(self)))
        (ci, co), groups = self.channels, self.groups
        shapes = (self.batch, ci, *self.spatial), (ci, co // groups, *self.kernel), (co,)
        x, w, b = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in shapes)
        return x, w, b

    def defined(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return defined(x, weight, bias, self.pairs, **self.options).to(x.dtype)


def drawn(seed: int, rank: int, count: int) -> Iterator[Geometry]:
    """Geometries with at least one output; every option of every axis is drawn on its own."""
    random = Random(f"{seed} {rank}")

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(rank))

    while count:
        groups = random.choice((1, 1, 2, 3))
        stride, dilation = axes(1, 4), axes(1, 3)
        made = Geometry(
            batch=random.randint(1, 2),
            channels=(groups * random.choice((1, 2, 5)), groups * random.choice((1, 2, 5, 18))),
            spatial=axes(1, (9, 5, 3)[rank - 1]),
            kernel=axes(1, 4),
            pairs=tuple(zip(axes(-6, 6), axes(-6, 6), strict=True)),
            stride=stride,
            dilation=dilation,
            output_padding=tuple(
                random.randrange(max(both)) for both in zip(stride, dilation, strict=True)
            ),
            groups=groups,
        )
        if min(defined(*made.tensors(), made.pairs, **made.options).shape) > 0:
            count -= 1
            yield made


SAMPLE = [made for rank in (1, 2, 3) for made in drawn(0, rank, 40)]


@pytest.mark.parametrize("made", SAMPLE, ids=str)
def test_pairs_bit_for_bit(made: Geometry) -> None:
    for i, backend in enumerate(BACKENDS):
        x, w, b = made.tensors(DTYPES[(SAMPLE.index(made) + i) % 4])
        expected = made.defined(x, w, b)
        y = OURS[x.dim() - 2](x, w, b, padding=made.pairs, **made.options, backend=backend)
        assert torch.equal(y, expected), backend
        out = torch.full_like(expected, torch.nan)
        conv_transpose(x, w, b, padding=list(map(list, made.pairs)), **made.options, out=out)
        assert torch.equal(out, expected)
        one = conv_transpose(x[0], w, b, padding=made.pairs, **made.options, backend=backend)
        assert torch.equal(one, expected[0])


def test_the_sample_has_every_kind_of_padding() -> None:
    axes = [axis for made in SAMPLE for axis in zip(made.pairs, made.stride, strict=True)]
    for before, after in product((-1, 0, 1), repeat=2):
        signs = [((b > 0) - (b < 0), (a > 0) - (a < 0)) for (b, a), _ in axes]
        assert (before, after) in signs
    assert any(b < 0 and b % s for (b, _), s in axes)
    assert any(-a > s for (_, a), s in axes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_reach_what_they_touch(poison: float, backend: str) -> None:
    """An output that no tap reaches is the bias, whatever the weights are."""
    for made in SAMPLE[::4]:
        for poisoned in (0, 1):
            tensors = made.tensors()
            tensors[poisoned].view(-1)[-1] = poison
            y = conv_transpose(*tensors, padding=made.pairs, **made.options, backend=backend)
            expected = made.defined(*tensors)
            assert bool(((y == expected) | (y.isnan() & expected.isnan())).all()), made


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_beyond_every_tap_hold_the_bias(backend: str) -> None:
    x, w, b = torch.ones(1, 2, 3), torch.ones(2, 3, 2), torch.tensor([1.0, -2.0, 0.5])
    y = conv_transpose(x, w, b, padding=((9, -12),), backend=backend)
    assert torch.equal(y, b[None, :, None].expand(1, 3, 7))
    y = conv_transpose(x, w, b, padding=((-12, 9),), backend=backend)
    assert torch.equal(y, b[None, :, None].expand(1, 3, 7))
    y = conv_transpose(x, w, padding=((-12, -9),), backend=backend)
    assert y.sum() == 2 * 3 * 3 * 2
    assert not y[..., :12].any()
    assert not y[..., -9:].any()


def test_one_pair_serves_every_axis_and_equal_ones_are_plain_padding() -> None:
    x, w = torch.randn(2, 3, 5, 6), torch.randn(3, 4, 3, 4)
    expected = conv_transpose(x, w, stride=2, padding=1)
    for padding in (((1, 1),), [[1, 1], [1, 1]], ((1, 1), (1, 1))):
        assert torch.equal(conv_transpose(x, w, stride=2, padding=padding), expected)


def test_phases_and_pairs_of_an_axis() -> None:
    """Every (output, input, tap) with ``i*s = o + p - k*d``, one by one."""
    for n, k, s, p, d, op in product((1, 3), (1, 3), (1, 2, 3), (-7, -1, 4), (1, 2), (-6, -1, 9)):
        axis = Axis(n, k, s, p, d, op)
        landings = [
            (o, i, t)
            for o, i, t in product(range(axis.size), range(n), range(k))
            if i * s == o + p - t * d
        ]
        reached = [
            (phase.start + j * s, j + offset, tap)
            for phase in axis.phases()
            for j, (tap, offset) in product(range(phase.count), phase.taps)
            if 0 <= j + offset < n
        ]
        assert sorted(reached) == sorted(landings), axis
        for needed in range(max(0, axis.size) + 1):
            assert axis.pairs(needed) == sum(o < needed for o, _, _ in landings), axis


# ---- same ------------------------------------------------------------------------------------

SAME = [
    (k, s, d, op)
    for k, s, d in product(range(1, 6), range(1, 5), (1, 2, 3))
    for op in {0, max(s, d) - 1}
]


def halves(word: str, total: int) -> tuple[int, int]:
    """ONNX's equations for ConvTranspose."""
    half = total // 2
    return (half, total - half) if word == "same_upper" else (total - half, half)


@pytest.mark.parametrize("word", ["same_upper", "same_lower"])
def test_words_of_onnx_by_its_equations(word: str) -> None:
    x = torch.arange(1.0, 5)[None, None]
    for k, s, d, op in SAME:
        w, n = torch.arange(1.0, k + 1)[None, None], x.shape[-1]
        total = s * (n - 1) + op + (k - 1) * d + 1 - n * s
        pairs = (halves(word, total),)
        expected = defined(x, w, None, pairs, (s,), (d,), (op,))
        assert expected.shape[-1] == n * s
        for backend in BACKENDS:
            y = conv_transpose(
                x, w, padding=word, stride=s, dilation=d, output_padding=op, backend=backend
            )
            assert torch.equal(y.double(), expected), (k, s, d, op, backend)


def onnx_model(word: str, k: int, s: int, d: int, op: int, n: int) -> Any:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], auto_pad=word.upper(), kernel_shape=[k], strides=[s],
        dilations=[d], output_padding=[op],
    )  # fmt: skip
    sizes = {"x": [1, 1, n], "w": [1, 1, k], "y": None}
    x, w, y = (helper.make_tensor_value_info(name, kind, size) for name, size in sizes.items())
    graph = helper.make_graph([node], "same", [x, w], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("word", ["same_upper", "same_lower"])
def test_words_of_onnx_as_its_evaluator_has_them(word: str) -> None:
    model = onnx_model(word, 1, 1, 1, 0, 4)
    from onnx.reference import ReferenceEvaluator

    x = torch.arange(1.0, 5)[None, None]
    for k, s, d, op in SAME:
        if op:  # it has no such outputs to choose from
            continue
        w = torch.arange(1.0, k + 1)[None, None]
        model = onnx_model(word, k, s, d, op, 4)
        expected = ReferenceEvaluator(model).run(None, {"x": x.numpy(), "w": w.numpy()})[0]
        y = conv_transpose(x, w, padding=word, stride=s, dilation=d, output_padding=op)
        assert torch.equal(y, torch.from_numpy(expected)), (k, s, d, op)


@pytest.mark.parametrize("word", ["same_upper", "same_lower"])
def test_words_of_onnx_as_onnxruntime_has_them(word: str) -> None:
    """Where the kernel reaches as far as the stride: below, it gives less than ONNX says."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    x = torch.arange(1.0, 5)[None, None]
    for k, s, d, op in SAME:
        if (k - 1) * d + 1 + op < s or op >= s:
            continue
        w = torch.arange(1.0, k + 1)[None, None]
        model = onnx_model(word, k, s, d, op, 4).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        expected = session.run(None, {"x": x.numpy(), "w": w.numpy()})[0]
        y = conv_transpose(x, w, padding=word, stride=s, dilation=d, output_padding=op)
        assert torch.equal(y, torch.from_numpy(expected)), (k, s, d, op)


@pytest.mark.parametrize("rank", [1, 2])
def test_same_is_the_gradient_of_a_same_convolution(rank: int) -> None:
    """What ``conv2d_transpose`` of TensorFlow is defined as, and Keras' layers with it."""
    convolve = (F.conv1d, F.conv2d)[rank - 1]
    for k, s, d in product(range(1, 6), range(1, 5), (1, 2)):
        n = 4
        x = torch.randint(-3, 4, (2, 2, *[n] * rank)).double()
        w = torch.randint(-3, 4, (2, 3, *[k] * rank)).double()
        total = max((n - 1) * s + (k - 1) * d + 1 - n * s, 0)
        image = torch.zeros(2, 3, *[n * s] * rank, dtype=torch.float64, requires_grad=True)
        padded = F.pad(image, (total // 2, total - total // 2) * rank)
        forward = convolve(padded, w, stride=s, dilation=d)
        assert forward.shape == x.shape
        (expected,) = torch.autograd.grad(forward, image, x)
        for backend in BACKENDS:
            y = conv_transpose(x, w, padding="same", stride=s, dilation=d, backend=backend)
            assert torch.equal(y, expected), (k, s, d)


# ---- output sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_size_is_that_of_the_module(rank: int) -> None:
    random, spatial = Random(rank), (5, 4, 3)[:rank]
    for _ in range(20):
        kernel, stride, padding, dilation = (
            tuple(random.randint(low, high) for _ in range(rank))
            for low, high in ((2, 4), (1, 4), (0, 1), (1, 2))
        )
        module = MODULES[rank](2, 4, kernel, stride, padding, groups=2, dilation=dilation)
        given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 2}
        parts = module.weight.detach(), module.bias.detach()
        x = torch.randn(3, 2, *spatial)
        least = module(x).shape[2:]
        size = [n + random.randrange(s) for n, s in zip(least, stride, strict=True)]
        asked = [(x, size), (x[0], size), (x, torch.Size((7, 7, *size))), (x[0], [7, *size])]
        for batched, wanted in asked:
            expected = module(batched, output_size=list(wanted))
            for backend in BACKENDS:
                y = OURS[rank](batched, *parts, **given, output_size=wanted, backend=backend)
                assert y.shape == expected.shape
                assert torch.allclose(y, expected, atol=1e-5)
        for wrong in ([n - 1 for n in least], [n + s for n, s in zip(least, stride, strict=True)]):
            with pytest.raises(ValueError, match="requested an output size") as theirs:
                module(x, output_size=wrong)
            with pytest.raises(ValueError, match="requested an output size") as mine:
                OURS[rank](x, *parts, **given, output_size=wrong)
            said, says = (str(each.value).partition(" (for")[0] for each in (theirs, mine))
            assert says.endswith(said)


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_size_with_pairs_and_words(backend: str) -> None:
    for made in SAMPLE[::3]:
        x, w, b = made.tensors()
        options = {**made.options, "output_padding": (0,) * len(made.stride)}
        least = defined(x, w, None, made.pairs, **options).shape[2:]
        more = tuple(s - 1 for s in made.stride)
        expected = defined(x, w, b, made.pairs, **{**options, "output_padding": more})
        size = [n + s for n, s in zip(least, more, strict=True)]
        if min(least) > 0:
            y = conv_transpose(
                x, w, b, padding=made.pairs, **options, output_size=size, backend=backend
            )
            assert torch.equal(y.double(), expected)
    x, w = torch.ones(1, 2, 5), torch.ones(2, 3, 4)
    wanted = conv_transpose(x, w, stride=3, padding="same", output_size=[15], backend=backend)
    assert torch.equal(wanted, conv_transpose(x, w, stride=3, padding="same"))


def test_output_size_is_the_convolutions_own() -> None:
    """Behind a pool before it, and ahead of one that follows."""
    x, w = torch.randn(2, 3, 9, 8), torch.randn(3, 4, 3, 3)
    y = conv_transpose(
        x, w, stride=2, output_size=[10, 9], before=[avg_pool(2)], then=[max_pool(3)]
    )
    expected = F.max_pool2d(
        F.conv_transpose2d(F.avg_pool2d(x, 2), w, stride=2, output_padding=(1, 0)), 3
    )
    assert torch.allclose(y, expected, atol=1e-5)


# ---- the whole way ---------------------------------------------------------------------------


def test_calls_that_were_remembered_are_told_apart() -> None:
    """Each of these makes another problem of the same tensors."""
    x, w = torch.randn(1, 2, 5, 6), torch.randn(2, 3, 4, 3)
    calls: list[dict[str, Any]] = [
        {"padding": ((1, 2), (0, 1))}, {"padding": ((2, 1), (0, 1))}, {"padding": ((1, 2), (1, 0))},
        {"padding": "same"}, {"padding": "same_upper"}, {"padding": "same_lower"},
        {"output_size": [12, 13]}, {"output_size": [13, 13]}, {"padding": 1}, {"padding": (1, 0)},
        {"padding": 1, "output_size": [11, 12]}, {"padding": ((0, 1), (0, 0))},
    ]  # fmt: skip
    for _ in range(2):
        for each in calls:
            y = conv_transpose(x, w, stride=2, **each, backend="cpu")
            expected = conv_transpose(x, w, stride=2, **each, backend="eager")
            assert y.shape == expected.shape
            assert torch.allclose(y, expected, atol=1e-5), each


@pytest.mark.parametrize("backend", BACKENDS)
def test_chains_around_it(backend: str) -> None:
    random = Random(7)
    for made in SAMPLE[1::3]:
        x, w, b = made.tensors(torch.float64)
        rank = x.dim() - 2
        plain = made.defined(x, w, b)
        then, expected = random.choice(
            [
                ([sigmoid(), softmax("channels")], plain.sigmoid().softmax(1)),
                ([channel_sum("channels", keepdim=True)], plain.sum(1, keepdim=True)),
                ([softmax("space")], plain.flatten(2).softmax(2).reshape(plain.shape)),
            ]
        )
        if min(plain.shape[2:]) >= 2 and random.random() < 0.5:
            pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
            then, expected = [max_pool(2)], pool(plain, 2)
        y = conv_transpose(x, w, b, padding=made.pairs, **made.options, then=then, backend=backend)
        assert torch.allclose(y, expected, atol=1e-12), (made, then)


def test_named_operators() -> None:
    operator = OPERATORS["conv-transpose3d-max-max-sum"]
    generator = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randint(-3, 4, shape, generator=generator).float()
        for shape in ((2, 3, 4, 4, 5), (3, 4, 3, 3, 3), (4,))
    )
    pairs = ((1, -1), (-2, 0), (0, 1))
    y = defined(x, w, b, pairs, (2,) * 3, (1,) * 3, (0,) * 3)
    expected = F.max_pool3d(y, 6).sum(1, keepdim=True)
    assert torch.equal(operator(x, w, b, stride=2, padding=pairs).double(), expected)
    assert torch.equal(
        operator(x, w, b, stride=2, output_size=[10, 9, 12]),
        conv_transpose(
            x, w, b, stride=2, output_padding=(1, 0, 1), backend="eager",
            then=[max_pool(6), channel_sum("channels", keepdim=True)],
        ),
    )  # fmt: skip


def test_gradients() -> None:
    x = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for pairs in (((1, -2),), ((-3, 2),), ((7, -6),)):
        assert torch.autograd.gradcheck(
            lambda *tensors, padding=pairs: conv_transpose(*tensors, stride=2, padding=padding),
            (x, w, b),
        )


def test_explained_and_in_a_problem_line() -> None:
    x, w = torch.empty(1, 2, 5, 6), torch.empty(2, 3, 3, 4)
    found = transfuse.explain(conv_transpose, x, w, stride=2, padding=((1, 2), (-1, -4)))
    assert "p1x-1 op-1x3 " in str(found.problem)
    assert transfuse.Problem.parse(str(found.problem)) == found.problem
    same = transfuse.explain(conv_transpose, x, w, stride=2, padding="same", output_size=[10, 12])
    assert same.problem.output().spatial == (10, 12)


def test_explained_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "n1 ci2 co3 i5x6 k3x4 s2 p1x-1 op-1x3 fp32 cpu"
    monkeypatch.setattr("sys.argv", ["transfuse", "explain", "conv_transpose", *line.split()])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main())
    assert not ended.value.code
    assert line in capsys.readouterr().out


def test_the_examples_of_its_docstring() -> None:
    names = {**vars(transfuse.stages), "conv_transpose": conv_transpose, "torch": torch}
    (example,) = doctest.DocTestFinder().find(conv_transpose, "conv_transpose", globs=names)
    assert len(example.examples) == 5
    assert doctest.DocTestRunner().run(example).failed == 0


# ---- mistakes --------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"padding": "valid"}, TypeError, "not str ('valid'), or one of ('same', 'same_upper', 'same"),
    ({"padding": ((1, 2), 3)}, TypeError, "padding must be an integer, not tuple ((1, 2))"),
    ({"padding": ((1, 2, 3), (1, 2, 3))}, TypeError, "a pair (before, after) for each axis, not ("),
    ({"padding": ((1, 2.0), (1, 2))}, TypeError, "padding must be an integer, not float (2.0)"),
    ({"padding": ((1, 2),) * 3}, RuntimeError, "one pair or 2 of them … [(1, 2), (1, 2), (1, 2)]"),
    ({"padding": ((4, 4), (0, 0))}, RuntimeError, "- 2*4 … = -1; padding may be at most 3 here"),
    ({"padding": ((5, 3), (0, 0))}, RuntimeError,
        "height (5-1)*1 + 1*(3-1) + 1 - 5 - 3 = -1; padding before and after may be at most 6"),
    ({"padding": ((2**31, 0), (0, 0))}, RuntimeError, "padding must be at most 2147483647"),
    ({"padding": ((0, -(2**31)), (0, 0))}, RuntimeError, "padding must be at least -2147483647"),
    ({"padding": ((0, 2**64), (0, 0))}, ValueError, "padding must fit 64 bits"),
    ({"padding": ((1, 1), (1, 1)), "output_padding": -1}, RuntimeError, "at least 0 … [-1, -1]"),
    ({"padding": ((1, 1), (1, 1)), "output_padding": 1}, RuntimeError, "legal: 0 to 0"),
    ({"padding": "same", "output_padding": 1, "stride": 2}, ValueError,
        "padding='same' leaves nothing to choose, but got output_padding=[1, 1]"),
    ({"output_size": 7}, TypeError, "output_size must be a list of integers, not int (7)"),
    ({"output_size": (7.0, 8)}, TypeError, "output_size must be an integer, not float (7.0)"),
    ({"output_size": (7,)}, ValueError, "for 4D input, output_size must have 2 or 4 elements (got"),
    ({"output_size": (7, 9)}, ValueError, "requested an output size of [7, 9], but valid sizes"),
    ({"output_size": (11, 14), "stride": 2, "output_padding": 1}, ValueError,
        "output_size and output_padding say the same thing in two ways … [11, 14] … [1, 1]"),
    ({"output_size": (11, 12), "stride": 2, "padding": "same"}, ValueError,
        "range from [10, 12] to [10, 12] (for an input of [5, 6] and padding='same')"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "says"), WRONG, ids=lambda value: str(value))
def test_mistakes_are_refused_and_nothing_is_written(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    x, w, out = torch.ones(2, 3, 5, 6), torch.ones(3, 4, 3, 3), torch.full((2, 4, 7, 8), 77.0)
    pattern = ".*".join(map(re.escape, says.split(" … ")))
    for _ in range(2):
        with pytest.raises(error, match=pattern):
            conv_transpose(x, w, **options, out=out)
        assert bool((out == 77).all())
