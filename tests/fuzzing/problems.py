"""Verdicts and plans."""

from tests.fuzzing.calls import ALLOWED
from tests.fuzzing.drawing import Maker, describe
from transfuse.backends import BACKENDS
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    ConvTranspose,
)


def of_problems(make: Maker) -> str:
    """Verdicts and plans: what ``explain`` asks, about problems that no memory holds."""
    rank = make.random.choice((1, 2, 3))
    pool = make.pool(rank)
    numbers = {
        "batch": make.number(0, 4),
        "in_channels": make.number(1, 9),
        "out_channels": make.number(1, 9),
        "spatial": make.axes(rank, 1, 9),
        "kernel": make.axes(rank, 1, 5),
        "groups": make.number(1, 2),
        "device": make.random.choice(("cpu", "cuda:sm90")),
        **make.options(rank),
    }
    describe(f"Problem {numbers} {pool}")
    try:
        problem = Problem(**numbers)  # type: ignore[arg-type]
        chain = Chain(ConvTranspose(rank), pool)
        for each in BACKENDS:
            if each.verdict(chain, problem).ok:
                assert str(each.plan(chain, problem))
        return "planned"
    except ALLOWED as error:
        return type(error).__name__
