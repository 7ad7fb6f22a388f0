"""Which cases there are: declared, of growing sizes, real layers, and any line."""

import pytest

from transfuse.bench.precision import PRECISIONS
from transfuse.bench.subjects import layers, sizes, subjects
from transfuse.operators import OPERATORS

PLAIN = "conv-transpose-2d-square-input-asym-kernel"
NORM = "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"


@pytest.mark.parametrize("name", ["benchmark", "cpu", "small", "ragged"])
def test_every_operator_has_the_declared_sets(name):
    found = subjects([], [name], [], "cpu")
    assert [each.slug for each in found] == list(OPERATORS)
    assert {each.name for each in found} == {name}


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("device", ["cpu", "cuda:sm90"])
def test_sizes_grow_along_one_axis_at_a_time(slug, device):
    steps = list(sizes(slug, device))
    for axis in ("batch", "channels", "spatial"):
        along = [each for each in steps if each.axis == axis]
        assert len(along) >= 3
        work = [each.chain.core(each.case.problem).flops() for each in along]
        assert work == sorted(work)
        assert len(set(work)) == len(work)
        assert [each.at for each in along] == sorted({each.at for each in along})
    base = OPERATORS[slug].case("cpu" if device == "cpu" else "benchmark").problem
    assert base in [each.case.problem for each in steps]


def test_there_are_115_real_layers_and_all_are_legal():
    found = layers()
    assert len(found) == 115
    assert len({each.name for each in found}) == 115
    for each in found:
        assert each.chain.shapes(each.case.problem)[-1].numel > 0
    assert {each.case.problem.rank for each in found} == {1, 2, 3}


def test_layers_can_be_asked_for_by_rank():
    ranks = [len(subjects([f"conv-transpose{r}d"], ["layers"], [], "cpu")) for r in (1, 2, 3)]
    assert sum(ranks) == 115
    assert all(ranks)


def test_any_line_is_a_subject():
    line = "n3 ci4 co6 i5x7 k3 s2 p1 op1 num_groups=3"
    [found] = subjects([NORM], [], [line], "cpu")
    assert found.name == "given"
    assert str(found.on("bf16", "cpu").case) == line.replace(" num", " bf16 cpu num")
    [plain] = subjects(["conv-transpose1d"], [], ["n1 ci2 co3 i9 k4 s2"], "cpu")
    assert str(plain.chain) == "conv_transpose1d(+ bias)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([PLAIN], ["huge"], []), "unknown set of cases 'huge'; known: benchmark, cpu"),
        (([PLAIN], [], ["n1 ci2"]), "lacks co, i, k"),
        ((["conv-transpose1d"], [], ["n1 ci2 co3 i9x9 k4"]), "a problem line of 1 axes"),
        ((["conv-transpose1d"], ["cpu"], []), "nothing to measure"),
    ],
)
def test_what_is_not_there_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        subjects(*arguments, "cpu")


def test_the_line_of_a_subject_says_tf32():
    subject, _ = subjects([PLAIN], ["benchmark"], [], "cuda:sm90")
    lines = {
        each.name: str(subject.on(each.arithmetic, "cuda:sm90").case)
        for each in PRECISIONS.values()
    }
    assert " fp32 cuda:sm90" in lines["fp32"]
    assert " fp32 tf32 cuda:sm90" in lines["tf32"]
    assert len(set(lines.values())) == len(lines) == 5
