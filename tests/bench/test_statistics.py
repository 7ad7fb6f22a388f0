"""Spreads, ratios and verdicts on samples whose answer is known."""

import numpy as np
import pytest

from transfuse.bench.record import Spread
from transfuse.bench.statistics import ratios, spread, verdict


def test_spread_is_median_with_20th_and_80th_percentile():
    assert spread([5, 1, 4, 2, 3, 6]) == Spread(3.5, 2, 5)
    assert spread([7.0]) == Spread(7, 7, 7)


def test_one_slow_round_does_not_move_the_median():
    assert spread([1.0] * 9 + [100.0]).median == 1.0


def test_ratios_are_taken_round_by_round():
    """A machine that slows down fivefold half-way leaves the ratio as it was."""
    ours = [1.0, 1.0, 5.0, 5.0]
    theirs = [2.0, 2.0, 10.0, 10.0]
    assert ratios(theirs, ours) == Spread(2, 2, 2)
    assert spread(theirs).median / spread(ours).p20 != 2


def test_ratios_of_two_runs_are_refused():
    with pytest.raises(ValueError, match="3 rounds against 2"):
        ratios([1, 2, 3], [1, 2])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (Spread(10, 9, 11), Spread(8, 7, 8.9), "faster"),
        (Spread(10, 9, 11), Spread(12, 11.1, 13), "slower"),
        (Spread(10, 9, 11), Spread(9.1, 8, 10), "no difference"),
        (Spread(10, 9, 11), Spread(9, 8, 9), "no difference"),
        (Spread(10, 9, 11), Spread(10, 9, 11), "no difference"),
    ],
)
def test_a_difference_needs_spreads_that_do_not_meet(old, new, says):
    assert verdict(old, new) == says


def test_noise_alone_gives_no_verdict():
    """Two draws of 20 samples from one distribution are told apart in few of 200 tries."""
    draw = np.random.default_rng(0)
    noisy = [spread(draw.lognormal(0, 0.1, 20)) for _ in range(400)]
    verdicts = [verdict(a, b) for a, b in zip(noisy[::2], noisy[1::2], strict=True)]
    assert verdicts.count("no difference") >= 198


def test_a_real_change_is_seen_through_the_noise():
    draw = np.random.default_rng(1)
    pairs = [(draw.lognormal(0, 0.03, 20), draw.lognormal(-0.2, 0.03, 20)) for _ in range(50)]
    assert all(verdict(spread(old), spread(new)) == "faster" for old, new in pairs)
