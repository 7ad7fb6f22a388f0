"""What each value has to do with a fold of many: the derivative of every folding, once."""

from collections.abc import Callable, Mapping, Sequence

from transfuse.maths import eq, exp, where
from transfuse.maths.expr import Expr
from transfuse.sweeps import Folding

Share = Callable[[Expr, Sequence[Expr], Expr, int], Sequence[Expr | None]]
"""From a value, the results of its fold, how many values equal the first result, and how many
there are: for each result an expression whose derivative by the value is that of the result.
In it the results are constants. None: that result counts as a constant altogether."""


def _extreme(v: Expr, s: Sequence[Expr], ties: Expr, n: int) -> Sequence[Expr]:
    """Values that meet at the largest or smallest share it evenly, as torch's amax has it."""
    return (where(eq(v, s[0]), v, 0.0) / ties,)


SHARES: Mapping[Folding, Share] = {
    "sum": lambda v, s, ties, n: (v,),
    "mean": lambda v, s, ties, n: (v / n,),
    "max": _extreme,
    "min": _extreme,
    "logsumexp": lambda v, s, ties, n: (exp(v - s[0]),),
    # Whatever is taken off the exponents cancels, so the maximum has no part in any result.
    "exponentials": lambda v, s, ties, n: (None, exp(v - s[0])),
    "moments": lambda v, s, ties, n: (v / n, (v - s[0]) * (v - s[0]) / n),
    "squares": lambda v, s, ties, n: (v * v / n,),
}
EXTREMES: Sequence[Folding] = ("max", "min")
"""Those that ask how many values equal their result."""
