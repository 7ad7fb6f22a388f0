"""The portable kernels as machine code, made without a GPU: for Hopper (sm_90), Ampere (sm_80).

What makes them fast shows in the code: tensor cores fed from shared memory, boxes loaded by the
copy engine, nothing spilled, neighbours stored together.
"""

from typing import Any

import pytest

from transfuse.backends.triton.gpu import SHARED
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, group_norm, max_pool, softmax, tanh
from transfuse.stages import sum as channel_sum

Launches = list[dict[str, Any]]


def hot(launches: Launches) -> Launches:
    """The launches that take the time: all but the careful ones, which return at once."""
    return [each for each in launches if each["kernel"] == "convolve"]


def compiled(
    compiler: Any, slug: str, arithmetic: str, capability: int, tuned_on: str = ""
) -> Launches:
    case = OPERATORS[slug].case("benchmark").on(arithmetic, "cuda:sm90")
    found: Launches = compiler(
        stages=OPERATORS[slug].bound(case).stages,
        problem=case.problem,
        capability=capability,
        tuned_on=tuned_on,
    )
    for each in found:
        assert each["shared"] <= SHARED[capability] + 5_500, each
        assert each["warps"] <= 32
    assert hot(found)
    return found


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_hopper(slug: str, arithmetic: str, compiler: Any) -> None:
    for each in hot(compiled(compiler, slug, arithmetic, 90)):
        assert each["wgmma"] > 0, each
        assert each["mma"] == 0, each
        assert each["tma"] > 0, each
        # Operands go from shared memory to the tensor cores, never through registers.
        assert each["local_loads"] == 0, each
        assert each["spilled"] <= 128, each


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
def test_boxes_leave_room_for_programs(arithmetic: str, compiler: Any) -> None:
    """A thread has 32 registers beside its sums, and lives on them: 2**16 are shared."""
    slug = "conv-transpose3d-avgpool-clamp-softmax-multiply"
    launches = hot(compiled(compiler, slug, arithmetic, 90, tuned_on="NVIDIA H200"))
    assert len(launches) == 2
    for each in launches:
        assert each["form"] == "box", each
        threads = 32 * each["warps"]
        given_out = -(-each["registers"] // 8) * 8
        assert 2**16 // (threads * given_out) >= 2**16 // (each["sums"] + 32 * threads), each
        assert each["spilled"] <= 128, each


@pytest.mark.parametrize("slug", list(OPERATORS)[1:3])
def test_hopper_float32(slug: str, compiler: Any) -> None:
    """Three products of tf32 for one of float32."""
    for each in hot(compiled(compiler, slug, "fp32", 90)):
        assert each["wgmma"] > 0, each
        assert each["tma"] > 0, each


@pytest.mark.long
@pytest.mark.parametrize("slug", OPERATORS)
def test_ampere(slug: str, compiler: Any) -> None:
    """No copy engine, no warpgroups: the same kernels by other instructions."""
    for each in hot(compiled(compiler, slug, "fp16", 80)):
        assert each["mma"] > 0, each
        assert each["wgmma"] == each["tma"] == 0, each


@pytest.mark.parametrize("slug", OPERATORS)
def test_small_cases(slug: str, compiler: Any) -> None:
    """Sizes and channels that fill no tile: no code of theirs is refused for a compiler's fault."""
    case = OPERATORS[slug].case("small").on("fp16", "cuda:sm90")
    chain = OPERATORS[slug].bound(case)
    assert hot(compiler(stages=chain.stages, problem=case.problem, capability=90, verbose=False))


ODD = [
    ("n3 ci5 co7 i9 k3 s3 fp64", ()),
    ("n2 ci3 co5 i4x5 k3 s8 p1 op7 bf16", (softmax("channels"),)),
    ("n2 ci6 co6 i5x6x7 k3 s2 g6", (tanh(), max_pool(2))),
    (
        "n2 ci6 co9 i5x6 k3 s3 d2 g3 fp16",
        (batch_norm(weight="w", bias="b", training=True), group_norm(3)),
    ),
    (
        "n2 ci6 co9 i5x6 k3 s2 fp64",
        (max_pool(3, 2, 1), softmax("space"), channel_sum("channels", keepdim=True)),
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("line", "then"), ODD, ids=[line for line, _ in ODD])
def test_odd_shapes(line: str, then: tuple[Any, ...], capability: int, compiler: Any) -> None:
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(problem.rank, "bias"), *then)
    found = compiler(stages=chain.stages, problem=problem, capability=capability, verbose=False)
    assert hot(found)
    assert all(each["shared"] <= SHARED[capability] + 5_500 for each in found)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(("width", "bits"), [(64, 128), (63, 0)])
def test_rows_are_stored_by_vectors(width: int, bits: int, dtype: str, compiler: Any) -> None:
    """Kernel 1: rows follow each other as results do, and a thread stores 16 bytes at once.

    One element at a time, where a plane of results is no multiple of them.
    """
    # Of two groups: one is a matrix product, and another engine's.
    problem = Problem.parse(f"n4 ci64 co64 i63x{width} k1 g2 {dtype} cuda:sm90")
    for capability in (80, 90):
        found = compiler(
            stages=Chain(conv_transpose(2)).stages,
            problem=problem,
            capability=capability,
            verbose=False,
        )
        (each,) = hot(found)
        assert each["even"] == (bits > 0)
        stored = {int((vector or "v1")[1:]) * int(wide) for vector, wide in each["stores"]}
        assert stored == {bits or 8 * ELEMENTS[dtype].itemsize}
