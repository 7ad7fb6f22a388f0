"""``transfuse explain``: operators and any chain, in 80 columns and as JSON."""

import json
from functools import partial
from typing import Any

import pytest

from transfuse.explanation import explained
from transfuse.operators import OPERATORS
from transfuse.problem import Problem

MAX = "conv-transpose3d-max-max-sum"
LINE = "n8 ci64 co64 i64x64 k4 s2 p1 fp16 cuda:sm90"


@pytest.fixture
def cli(command_line: Any) -> Any:
    """Run ``transfuse explain``; gives exit status, stdout, stderr."""

    return partial(command_line, "explain")


CHAINS = {
    ("conv_transpose",): "conv_transpose2d",
    ("conv_transpose2d", "--bias"): "conv_transpose2d(+ bias)",
    (
        "conv_transpose", "--then", "sigmoid, group_norm(8)", "--before", "avg_pool(2)",
    ): "avg_pool(2) -> conv_transpose2d -> sigmoid -> group_norm(8)",
    (
        "conv_transpose", "--then", "sigmoid", "--then", "max_pool(2x1, stride 1) -> add(shift)",
    ): "conv_transpose2d -> sigmoid -> max_pool(2x1, stride 1) -> add(shift)",
    ("tanh -> conv_transpose2d(+ b) -> tanh", "--then", "sum(channels)"):
        "tanh -> conv_transpose2d(+ b) -> tanh -> sum(channels)",
}  # fmt: skip


@pytest.mark.parametrize("words", CHAINS)
def test_any_chain(cli: Any, words: tuple[str, ...]) -> None:
    what, *options = words
    status, printed, _ = cli(what, LINE, *options, "--json")
    facts = json.loads(printed)
    assert status == 0
    assert (facts["chain"], facts["problem"], facts["case"]) == (CHAINS[words], LINE, LINE)
    again = json.loads(cli(facts["chain"], facts["problem"], "--json")[1])
    assert again == facts, "what is printed can be pasted"


def test_numbers_by_name(cli: Any) -> None:
    line = "n1 ci4 co4 i8x8 k3 s2 p0 fp32 cpu"
    words = ("conv_transpose", *line.split(), "gain=2", "low=0", "--then")
    status, printed, _ = cli(*words, "scale(gain), clamp(low, 1)", "--json")
    assert status == 0
    assert json.loads(printed)["chain"] == "conv_transpose2d -> scale(2) -> clamp(0, 1)"


def test_an_operator_may_go_on(cli: Any) -> None:
    status, printed, _ = cli(MAX, "small", "--then", "tanh", "--json")
    facts = json.loads(printed)
    assert status == 0
    assert facts["slug"] == MAX
    assert facts["chain"].endswith("max_pool(3) -> sum(channels, keepdim=True) -> tanh")


@pytest.mark.parametrize("slug", OPERATORS)
def test_prints_the_object(cli: Any, slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("transfuse.cli.output.out.width", 80, raising=False)
    status, printed, _ = cli(slug)
    case = OPERATORS[slug].case("benchmark")
    found = explained(OPERATORS[slug].bound(case), case.problem)
    assert status == 0
    assert [line.rstrip() for line in printed.rstrip().splitlines()] == str(found).splitlines()


def test_help_says_how_chains_are_written(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, printed, _ = cli("--help")
    flat = " ".join(printed.replace("│", " ").split())
    assert status == 0
    assert max(map(len, printed.splitlines())) <= 80
    for word in ("--then", "--before", "--bias", "sigmoid, group_norm(8)", LINE, "'add(shift)'"):
        assert word in flat


SMALL = "n2 ci3 co4 i4x4 k3"
WRONG: dict[tuple[str, ...], tuple[str, ...]] = {
    ("conv-transpose3d-max-sum",): (
        "no operator is called 'conv-transpose3d-max-sum'; did you mean 'conv-transpose3d-max-max-",
        "or any chain: transfuse explain conv_transpose ",
    ),
    ("conv_transpose3d_max_max_sum",): ("did you mean 'conv-transpose3d-max-max-sum'?",),
    ("sigmoid", SMALL): ("or any chain: transfuse explain conv_transpose ",),
    (MAX, "bench"): ("has no case 'bench'; it has benchmark, cpu, small, ragged, or give a",),
    (MAX, "bench", "fp16"): ("has no case 'bench'",),
    ("conv_transpose",): ("conv_transpose needs a problem line, such as 'n8 ci64 ",),
    ("conv_transpose", "n2 ci3"): ("problem line lacks co, i, k",),
    ("conv_transpose3d", SMALL): ("conv_transpose3d does not fit a problem line of 2 spatial",),
    ("conv_transpose", SMALL, "--then", "sigmoid, lrn"): (
        "unknown stage 'lrn'; known: abs, adaptive_avg_pool, adaptive_max_pool, add, ",
    ),
    ("conv_transpose", SMALL, "--before", "avgpool(2)"): ("did you mean 'avg_pool'?",),
    ("conv_transpose", SMALL, "--then", "max_pool(k)"): (
        "max_pool(k): 'k' is no number; the problem line may give k=2",
    ),
    ("conv_transpose", SMALL, "gain=2"): ("the problem line gives gain, which no stage of conv",),
    ("conv_transpose", SMALL, "--then", "group_norm(3)"): ("num_groups=3 does not divide the 4",),
    ("conv_transpose2d(+ b)", SMALL, "--bias"): ("has a bias already; leave out --bias",),
    ("conv_transpose, conv_transpose", SMALL): ("exactly one transposed convolution, not 2",),
    ("conv_transpose", SMALL, "--then", "conv_transpose"): ("is the convolution itself",),
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_bad_arguments_are_one_error_and_status_2(cli: Any, words: tuple[str, ...]) -> None:
    status, printed, error = cli(*words)
    assert (status, printed) == (2, "")
    assert error.startswith("error: ")
    for message in WRONG[words]:
        assert message in error.replace("\n", " ")


def test_the_line_in_help_is_a_problem() -> None:
    assert str(Problem.parse(LINE)) == LINE
