"""Operators by their short names, in tables of 80 columns and as arguments of every command."""

import sys
from collections.abc import Callable

import pytest

from transfuse.cli import main, output
from transfuse.operators import OPERATORS, operator, short, solution

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "width", 80)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["transfuse", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def widest(text: str) -> int:
    return max(len(line.rstrip()) for line in text.splitlines())


@pytest.mark.parametrize("op", OPERATORS.values(), ids=lambda op: op.short)
def test_an_operator_answers_to_both_names(op) -> None:
    assert len(op.short) <= 20
    assert operator(op.short) is operator(op.slug) is op
    assert solution(op.short) is op.solution
    assert short(op.slug) == op.short


def test_other_slugs_have_no_shorter_name() -> None:
    assert short("conv-transpose2d") == "conv-transpose2d"


def test_no_two_names_are_alike() -> None:
    names = [name for op in OPERATORS.values() for name in (op.slug, op.short)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "words",
    [
        ("show", "max-max-sum"),
        ("explain", "max-max-sum", "small"),
        ("check", "max-max-sum", "--case", "small", "--backend", "eager"),
        ("compile", "max-max-sum", "--case", "small", "--for", "sm_7"),
        ("bench", "max-max-sum", "--case", "none"),
    ],
)
def test_every_command_takes_the_short_name(cli: Cli, words: tuple[str, ...]) -> None:
    """Two of them are stopped by what comes after the name."""
    code, _, error = cli(*words)
    assert "no operator is called" not in error
    assert code == 0 or "sm_7" in error or "has no case 'none'" in error


def test_list_has_both_names_whole(cli: Cli) -> None:
    code, printed, _ = cli("list")
    assert code == 0
    assert widest(printed) <= 80
    for op in OPERATORS.values():
        assert f"{op.short}  {op.slug}\n" in printed


def test_a_table_of_checks_fits(cli: Cli) -> None:
    code, printed, _ = cli("check", "--random", "8", "max-max-sum", "--backend", "eager")
    assert code == 0
    assert widest(printed) <= 80
    assert "max-max-sum" in printed
