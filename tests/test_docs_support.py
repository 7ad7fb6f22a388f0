"""docs/support.md says what the backends say, of every stage there is."""

from pathlib import Path

import pytest

from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.report import support
from transfuse.route import Route
from transfuse.stages import conv_transpose, relu
from transfuse.stages.base import Kind, Stage
from transfuse.stages.text import KNOWN, parse

PAGE = Path(__file__).parents[1] / "docs/support.md"
LINE = f"{support.SIZES} fp32 cpu"


def test_page_is_what_the_backends_say() -> None:
    assert PAGE.read_text("utf-8") == support.page(), "`make docs` writes it anew"


def test_examples_are_of_the_stages_they_stand_for() -> None:
    assert support.EXAMPLES.keys() <= KNOWN.keys()
    for name, texts in support.EXAMPLES.items():
        assert all(text.partition("(")[0] == name for text in texts)


def test_every_stage_stands_in_both_tables() -> None:
    tables = support.page().split("\n## ")[1:]
    assert len(tables) == 2
    for table in tables:
        for name in KNOWN:
            for text in support.EXAMPLES.get(name, (name,)):
                assert f"`{text}`" in table


class Torchs(Stage):
    """A stage that torch alone has."""

    kind, name = Kind.AXES, "torchs"


@pytest.mark.parametrize(
    ("stage", "before", "cell"),
    [
        (relu(), False, "kernel"),
        (relu(), True, "kernel"),
        (*parse("log_softmax(-1)"), True, "2 sweeps"),
        (*parse("softmax(-1)"), False, "2 sweeps"),
        (*parse("sum(channels)"), True, "—"),
        (Torchs(), False, "torch"),
        (Torchs(), True, "torch"),
    ],
)
def test_cells(stage: Stage, before: bool, cell: str) -> None:
    assert support._cell(Cpu(), Problem.parse(LINE), stage, before) == cell


def test_types_share_a_column_only_where_all_answers_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cell(backend: Cpu, problem: Problem, stage: Stage, before: bool) -> str:
        odd = backend.name == "cpu" and problem.arithmetic == "fp64" and stage.name == "tanh"
        return "torch" if odd else "kernel"

    monkeypatch.setattr(support, "_cell", cell)
    page = support.page()
    heads = "cpu: fp32, fp16, bf16 | cpu: fp64 | triton: fp32, fp64, fp16, bf16, tf32"
    assert page.count(f"| kind | stage | {heads} |") == 2
    assert page.count("| `tanh` | kernel | torch | kernel |") == 2


def test_cells_come_from_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def swept(self: Cpu, chain: Chain, problem: Problem) -> Route:
        return Route(chain, problem, (), Chain(conv_transpose(2)), (relu(),), (), "asked")

    monkeypatch.setattr(Cpu, "route", swept)
    assert support._cell(Cpu(), Problem.parse(LINE), relu(), before=False) == "1 sweep"
