"""Medians with their spread, ratios inside a run, and a verdict that knows about noise."""

from collections.abc import Sequence

import numpy as np

from transfuse.bench.record import Spread


def spread(samples: Sequence[float]) -> Spread:
    """Median, 20th and 80th percentile."""
    p20, median, p80 = np.percentile(np.asarray(samples, dtype=float), (20, 50, 80))
    return Spread(float(median), float(p20), float(p80))


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """Their time over ours, round by round: what slows one round slows both alike."""
    if len(theirs) != len(ours):
        raise ValueError(f"{len(theirs)} rounds against {len(ours)}: not of one run")
    return spread([t / o for t, o in zip(theirs, ours, strict=True)])


def verdict(old: Spread, new: Spread) -> str:
    """Which of two times is lower, or neither where their spreads meet."""
    if new.p80 < old.p20:
        return "faster"
    return "slower" if new.p20 > old.p80 else "no difference"


def outcome(theirs: Spread, ours: Spread, ratio: Spread) -> str:
    """Whether ours is faster than theirs in the same rounds, slower, or within the noise.

    A difference counts where neither the two times nor the ratio's p20 to p80 and 1 meet.
    """
    found = verdict(theirs, ours)
    if found == "faster" and ratio.p20 > 1:
        return found
    return found if found == "slower" and ratio.p80 < 1 else "no difference"
