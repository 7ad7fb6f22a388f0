"""Exact identities on chains: each has a name, its conditions, and a proof in docs/maths.md.

A rewrite looks at a chain whose scalars are bound and gives the better chain, or None where its
conditions do not hold. ``rewrite`` applies them until none holds any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from transfuse.chain import Chain
from transfuse.stages import Kind, Stage, add

EXPONENTS = 40.0
"""How far from 0 a softmax may go unshifted: exp(40) leaves room for 1e21 terms in float32."""

LEAST, MOST = 2.0**-126, 2.0**127
"""Numbers that float32, the narrowest arithmetic, holds as they are: not as 0, not as Inf."""


@dataclass(frozen=True)
class Rewrite:
    """A named identity. ``assumes`` states what it takes for granted about values, if anything."""

    name: str
    says: str
    apply: Callable[[Chain], Chain | None]
    assumes: str = ""


@dataclass(frozen=True)
class Rewritten:
    """One application: which rewrite, and the chain it gave."""

    rewrite: Rewrite
    chain: Chain


def rewrite(chain: Chain, assume: bool = True) -> tuple[Rewritten, ...]:
    """Every rewrite that applies, in order, each to the result of the one before.

    ``assume=False`` leaves out those that take something for granted about values.
    """
    steps: list[Rewritten] = []
    while True:
        current = steps[-1].chain if steps else chain
        usable = (each for each in REWRITES if assume or not each.assumes)
        found = ((each, each.apply(current)) for each in usable)
        step = next((Rewritten(each, better) for each, better in found if better is not None), None)
        if step is None:
            return tuple(steps)
        steps.append(step)


def rewritten(chain: Chain, assume: bool = True) -> Chain:
    """The chain after all rewrites."""
    steps = rewrite(chain, assume)
    return steps[-1].chain if steps else chain


def _neighbours(chain: Chain) -> Iterator[tuple[int, Stage, Stage]]:
    for i, (first, second) in enumerate(zip(chain.stages, chain.stages[1:], strict=False)):
        yield i, first, second


def merge_max_pools(chain: Chain) -> Chain | None:
    """max_pool a then max_pool b, both tiling, is max_pool a*b: ⌊⌊n/a⌋/b⌋ = ⌊n/(ab)⌋."""
    for i, first, second in _neighbours(chain):
        merged = first.merged(second)
        if merged is not None:
            return chain.swap(i, 2, merged)
    return None


def pool_before_monotone(chain: Chain) -> Chain | None:
    """max_pool after a rising map is the map after max_pool: fewer elements to map."""
    for i, first, second in _neighbours(chain):
        if second.largest and _rises(first):
            return chain.swap(i, 2, second, first)
    return None


def _rises(stage: Stage) -> bool:
    """Whether a stage is pointwise and never falls, also in rounded arithmetic, Inf included.

    A number that a narrow type rounds to 0 or Inf would make one value of many, or NaN of Inf.
    """
    each = stage.elementwise
    return (
        each is not None
        and not each.tensors
        and each.rises
        and all(LEAST <= abs(factor) <= MOST for factor in each.operated("mul", "div"))
        and all(abs(term) <= MOST for term in each.operated("add", "sub"))
    )


def pool_before_batch_norm(chain: Chain) -> Chain | None:
    """max_pool after batch_norm pools first: max where the weight is >= 0, min where it is < 0.

    The statistics still cover every position, so batch_norm falls into its two halves.
    """
    for i, first, second in _neighbours(chain):
        halves = first.halves(f"statistics{i}")
        if halves is not None and second.largest:
            gathering, applying = halves
            weight = dict(applying.parameters()).get("weight")
            pool = second if weight is None else second.by_sign(weight)
            return chain.swap(i, 2, gathering, pool, applying)
    return None


def bias_after_max_pool(chain: Chain) -> Chain | None:
    """A per-channel bias before max_pool can be added after it: rounding keeps order."""
    for i, first, second in _neighbours(chain):
        if not second.largest:
            continue
        if i == chain.at and chain.conv.bias is not None:
            return chain.swap(i, 2, replace(chain.conv, bias=None), second, add(chain.conv.bias))
        each = first.elementwise
        if each is not None and each.tensors and each.per_channel and each.rises:
            return chain.swap(i, 2, second, first)
    return None


def drop_bias_before_batch_norm(chain: Chain) -> Chain | None:
    """A conv bias moves a channel and its mean alike, so batch_norm takes it out again.

    Not where a running mean is kept: the bias belongs to it.
    """
    norm = chain.epilogue[:1]
    dropped = norm and norm[0].halves("") is not None and not norm[0].updates
    if chain.conv.bias is not None and dropped:
        return chain.swap(chain.at, 1, replace(chain.conv, bias=None))
    return None


def bounded_softmax(chain: Chain) -> Chain | None:
    """What bounds the exponents, such as a clamp, leaves no maximum to look for and take off."""
    for i, first, second in _neighbours(chain):
        each, simpler = first.elementwise, second.unshifted()
        over_space = second.sees(chain.conv.rank) is Kind.WHOLE
        if simpler is not None and over_space and each is not None and each.within(EXPONENTS):
            return chain.swap(i, 2, first, simpler)
    return None


def fold_average(chain: Chain) -> Chain | None:
    """The 1/k^n of an average pool goes into the weights: exact where k^n is a power of two."""
    last = chain.prologue[-1:]
    found = last[0].undivided(chain.conv.rank) if last and not last[0].operands else None
    if found is not None:
        pool, divisor = found
        if divisor > 1 and not divisor & (divisor - 1):
            conv = replace(chain.conv, weight_scale=chain.conv.weight_scale / divisor)
            return chain.swap(chain.at - 1, 2, pool, conv)
    return None


REWRITES = (
    Rewrite("merge-max-pools", "max_pool a ∘ max_pool b = max_pool ab", merge_max_pools),
    Rewrite(
        "pool-before-monotone",
        "max(f(x)) = f(max(x)) for every rising f",
        pool_before_monotone,
    ),
    Rewrite(
        "drop-bias-before-batch-norm",
        "(y + b) - mean(y + b) = y - mean(y)",
        drop_bias_before_batch_norm,
        assumes="the bias is finite",
    ),
    Rewrite(
        "pool-before-batch-norm",
        "max(g·y + b) = g·max(y) + b where g >= 0, g·min(y) + b where g < 0",
        pool_before_batch_norm,
        assumes="weight and bias are finite",
    ),
    Rewrite(
        "bias-after-max-pool",
        "max(y + b) = max(y) + b",
        bias_after_max_pool,
        assumes="the bias is finite",
    ),
    Rewrite(
        "bounded-softmax",
        "softmax(y) = exp(y) / Σ exp(y) where |y| <= 40, after a clamp, say",
        bounded_softmax,
    ),
    Rewrite(
        "fold-average",
        "conv(sum/k^n, w) = conv(sum, w/k^n), exact for k^n a power of two",
        fold_average,
        assumes="w / k^n does not underflow, the window's sum does not overflow",
    ),
)
