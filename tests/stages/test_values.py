"""What stages hold: plain values, read once; stages and chains are the same bit for bit."""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import product
from math import inf, nan
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    clamp,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    tanh,
)

X, W = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3)
BACKENDS = ["cpu", "eager"]


def run(*then: Stage, backend: str) -> Tensor:
    return transfuse.conv_transpose(X, W, then=list(then), backend=backend)


# ---- read once -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_as_a_number_is_read_when_the_stage_is_made(backend: str) -> None:
    eps = torch.tensor(1e-5)
    first = run(norm := group_norm(2, eps=eps), backend=backend)
    eps.fill_(100.0)
    again, other = run(norm, backend=backend), run(group_norm(2, eps=eps), backend=backend)
    assert again.equal(first)
    torch.testing.assert_close(
        other, F.group_norm(F.conv_transpose2d(X, W), 2, eps=100.0), rtol=1e-4, atol=1e-4
    )
    assert not other.allclose(first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_may_change_later(backend: str) -> None:
    size = [2, 2]
    pool = max_pool(size)
    size[:] = 4, 4
    expected = F.max_pool2d(F.conv_transpose2d(X, W), 2)
    torch.testing.assert_close(run(pool, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pool", [max_pool, avg_pool])
def test_sizes_as_lists(pool: Any, backend: str) -> None:
    """As torch takes them, and with what is kept for tuples."""
    given, same = pool([3, 2], [2, 1], [1, 0]), pool((3, 2), (2, 1), (1, 0))
    assert (given, hash(given), str(given)) == (same, hash(same), str(same))
    torch_pool = F.max_pool2d if pool is max_pool else F.avg_pool2d
    expected = torch_pool(F.conv_transpose2d(X, W), [3, 2], [2, 1], [1, 0])
    torch.testing.assert_close(run(given, backend=backend), expected)


PLAIN: dict[str, tuple[Callable[[], Any], Any]] = {
    "int": (lambda: scale(2).arguments[0], 2),
    "float": (lambda: scale(2.0).arguments[0], 2.0),
    "bool as a number": (lambda: scale(True).arguments[0], 1),
    "NumPy's float32": (lambda: scale(np.float32(0.1)).arguments[0], float(np.float32(0.1))),
    "NumPy's float64": (lambda: add(np.float64(0.1)).arguments[0], 0.1),
    "NumPy's float16": (lambda: clamp(np.float16(-1), 2).arguments[0], -1.0),
    "NumPy's longdouble": (lambda: scale(np.longdouble(2)).arguments[0], 2.0),
    "NumPy's int": (lambda: scale(np.int8(3)).arguments[0], 3),
    "NumPy's bool": (lambda: scale(np.bool_(True)).arguments[0], 1),
    "a number without axes": (lambda: clamp(torch.tensor(0.5), torch.tensor(2)).arguments[0], 0.5),
    "an integer without axes": (lambda: group_norm(torch.tensor(2)).num_groups, 2),
    "int where a float stands": (lambda: group_norm(2, eps=1).eps, 1.0),
    "bool where a float stands": (lambda: group_norm(2, eps=True).eps, 1.0),
    "NumPy's float where one stands": (lambda: group_norm(2, eps=np.float64(0.1)).eps, 0.1),
    "NumPy's int as a size": (lambda: max_pool(np.int64(2)).kernel_size, 2),
    "an integer without axes as a size": (lambda: max_pool(torch.tensor(2)).kernel_size, 2),
    "a list of sizes": (lambda: max_pool([2, np.int32(3)]).kernel_size, (2, 3)),
    "a torch.Size": (lambda: max_pool(torch.Size([2, 3])).kernel_size, (2, 3)),
    "a list as stride": (lambda: max_pool(2, [1, 2]).stride, (1, 2)),
    "NumPy's bool where one stands": (
        lambda: avg_pool(2, ceil_mode=np.bool_(False)).ceil_mode,
        False,
    ),
    "a name": (lambda: scale("factor").arguments[0], "factor"),
    "NumPy's string as a name": (lambda: scale(np.str_("factor")).arguments[0], "factor"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_values_are_plain(name: str) -> None:
    given, expected = PLAIN[name]
    value = given()
    assert (type(value), value) == (type(expected), expected)
    if isinstance(value, tuple):
        assert {*map(type, value)} == {int}


REFUSED: dict[str, tuple[Callable[[], Stage], str]] = {
    "eps of axes": (lambda: group_norm(2, eps=torch.ones(2)), "group_norm: eps must be float"),
    "eps that learns": (
        lambda: group_norm(2, eps=torch.tensor(1.0, requires_grad=True)),
        "group_norm: eps must be float, not Tensor",
    ),
    "eps as text": (lambda: group_norm(2, eps="1e-5"), "group_norm: eps must be float, not str"),
    "eps of None": (lambda: group_norm(2, eps=None), "group_norm: eps must be float, not NoneType"),
    "complex": (lambda: scale(1j), "scale: factor must be one of int, float, Tensor, str, not"),
    "NumPy's complex": (lambda: scale(np.complex64(1j)), "scale: factor must be one of int, float"),
    "array": (lambda: scale(np.ones(3)), "scale: factor must be one of .*, not ndarray"),
    "set": (lambda: max_pool({2}), r"max_pool kernel_size must be an integer, not set \(\{2\}\)"),
    "float": (
        lambda: max_pool(2.0),
        r"max_pool kernel_size must be an integer, not float \(2\.0\)",
    ),
    "floats": (lambda: max_pool([2, 2.0]), "max_pool kernel_size must be an integer, not float"),
    "bool": (lambda: max_pool(True), "max_pool kernel_size must be an integer, not bool"),
    "bool without axes": (lambda: max_pool(torch.tensor(True)), "size must be an integer, not b"),
    "stride": (lambda: max_pool(2, 1.5), r"max_pool stride must be an integer, not float \(1\.5\)"),
    "padding": (lambda: avg_pool(2, 2, None), "avg_pool padding must be an integer, not NoneType"),
    "nested": (lambda: max_pool([[2, 2]]), "max_pool kernel_size must be an integer, not list"),
    "ceil_mode": (lambda: avg_pool(2, ceil_mode=0), "avg_pool: ceil_mode must be bool, not int"),
    "rank": (lambda: conv_transpose(2.0), r"conv_transpose rank must be an integer, not float"),
    "bias": (
        lambda: conv_transpose(2, 1.0),
        "conv_transpose: bias must be one of Tensor, str, not",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused_by_name(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        given()


def every_stage() -> list[Stage]:
    """One of each class there is, the internal ones included."""

    def below(kind: type) -> list[type]:
        return [each for sub in kind.__subclasses__() for each in (sub, *below(sub))]

    ready: dict[str, Any] = {"kernel_size": 2, "rank": 2, "key": "k", "function": tanh}
    ready |= {
        "dim": 2,
        "output_size": 2,
        "upscale_factor": 2,
        "made": "group_norm",
        "over": "batch",
    }
    made = []
    for kind in below(Stage):
        if kind.__module__.startswith("transfuse.") and hasattr(kind, "name"):
            needed = [f.name for f in fields(kind) if f.default is f.default_factory]
            made.append(kind(**{name: ready.get(name, "name") for name in needed}))
    return made


@pytest.mark.parametrize("stage", every_stage(), ids=lambda stage: type(stage).__name__)
def test_every_number_of_every_stage_is_seen(stage: Stage) -> None:
    """Also those that a later stage brings: each field is tried with another value.

    Not what a field says of how a stage was made, and not of what it computes.
    """
    assert stage == replace(stage)
    assert hash(stage) == hash(replace(stage))
    for each in fields(stage):
        value = getattr(stage, each.name)
        if not each.compare:
            assert replace(stage, **{each.name: not value}) == stage, each.name
            continue
        if type(value) is bool:
            others: list[Any] = [not value]
        elif type(value) is float:
            others = [0.0, -0.0, nan, inf, value + 1]
        elif type(value) is int:
            others = [value + 1]
        else:
            others = ["other name"] if each.metadata.get("parameter") else []
        variants = {stage, *(replace(stage, **{each.name: other}) for other in others)}
        assert len(variants) == 1 + len([o for o in others if repr(o) != repr(value)]), each.name


# ---- the same bit for bit ----------------------------------------------------------------------

DIFFERENT: list[tuple[list[Stage], list[Stage]]] = [
    ([scale(-0.0), add(0.0)], [scale(0.0), add(-0.0)]),
    ([scale(-0.0), add(0)], [scale(0), add(-0.0)]),
    ([scale(np.float64(-0.0))], [scale(np.float64(0.0))]),
    ([scale(0.0)], [scale(-0.0)]),
    ([clamp(-0.0, 1.0)], [clamp(0.0, 1.0)]),
    ([scale(1)], [scale(1.0)]),
    ([scale(nan)], [scale(inf)]),
    ([sigmoid()], [tanh()]),
    ([max_pool(2)], [avg_pool(2)]),
    ([max_pool(2)], [max_pool((2, 2))]),
    ([max_pool(2)], [max_pool(2, 2)]),
    ([scale("a")], [add("a")]),
    ([group_norm(2, eps=0.0)], [group_norm(2, eps=-0.0)]),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=str)
def test_chains_that_differ(one: list[Stage], other: list[Stage]) -> None:
    first, second = Chain(conv_transpose(2), *one), Chain(conv_transpose(2), *other)
    assert first != second
    assert len({first, second}) == 2
    assert {first: 1}.get(second) is None


@pytest.mark.parametrize("value", [0, 0.0, -0.0, nan, inf, -inf, 1.5, 7, "name"], ids=repr)
def test_stages_that_are_the_same(value: Any) -> None:
    one, other = Chain(conv_transpose(2), scale(value)), Chain(conv_transpose(2), scale(value))
    assert one == other
    assert {one: 1}[other] == 1


def test_not_a_number_by_another_way_is_the_same() -> None:
    assert scale(nan) == scale(np.float64("nan")) == scale(float("nan"))


def test_tensors_are_the_same_by_themselves() -> None:
    """Not by their values, which may change."""
    weight, equal = torch.ones(4), torch.ones(4)
    assert add(weight) == add(weight) != add(equal)
    assert add(weight) != add(id(weight))
    assert len({add(weight), add(weight), add(equal)}) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_of_either_sign_compute_their_own(backend: str) -> None:
    """One after the other, so that what was kept for the first would serve the second."""
    x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 1)
    zeros = (0, 0.0, -0.0)
    for first, second in [*product(zeros, zeros)] * 2:
        y = transfuse.conv_transpose(x, w, then=[scale(first), add(second)], backend=backend)
        assert torch.signbit(y).equal(torch.signbit(x * first + second)), (first, second)


def test_a_stage_of_a_users_own_is_compared_alike() -> None:
    @dataclass(frozen=True)
    class Shift(Stage):
        name: ClassVar[str] = "shift"
        by: float = 0.0
        how: Any = None

    assert Shift(0.0) != Shift(-0.0)
    assert Shift(nan) == Shift(nan)
    assert Shift(np.float32(2)).by == 2.0
    assert Shift(how=1) != Shift(how=True)
    assert Shift(how=(0.0, nan)) == Shift(how=(0.0, nan)) != Shift(how=(-0.0, nan))
    with pytest.raises(TypeError, match="shift: how must be hashable, not list"):
        Shift(how=[])


# ---- copies ------------------------------------------------------------------------------------


def pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, pickled])
def test_copies_are_the_same(through: Callable[[Any], Any]) -> None:
    chain = Chain(conv_transpose(2, "b"), scale(-0.0), max_pool([2, 2]), group_norm(2))
    problem = Problem.parse("n1 ci2 co2 i8x8 k3")
    hash(chain), hash(problem)
    assert through(chain) == chain
    assert hash(through(chain)) == hash(chain)
    assert through(problem) == problem


CHILD = """
import pickle, sys
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, scale
chain, problem = Chain(conv_transpose(2, "b"), scale("a")), Problem.parse("n1 ci2 co2 i8x8 k3")
if sys.argv[1] == "dump":
    hash(chain), hash(problem)
    sys.stdout.buffer.write(pickle.dumps((chain, problem)))
else:
    given = pickle.load(sys.stdin.buffer)
    sys.exit(given[0] not in {chain} or given[1] not in {problem})
"""


def test_chains_and_problems_of_another_process_are_found() -> None:
    """There strings have other hashes."""

    def child(what: str, seed: int, given: bytes | None = None) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", CHILD, what], input=given, capture_output=True, check=True,
            timeout=120, env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout  # fmt: skip

    child("load", 2, child("dump", 1))
