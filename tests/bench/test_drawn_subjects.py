"""The set of drawn chains: as many as it says, each once, larger on a GPU."""

from transfuse.bench.subjects import CHAINS, DRAWN, subjects


def test_drawn_chains_are_a_set_of_their_own() -> None:
    here = subjects([CHAINS], ["chains"], [], "cpu")
    there = subjects([CHAINS], ["chains"], [], "cuda")
    assert len({each.name for each in here}) == len(here) == DRAWN
    assert {each.slug for each in here} == {CHAINS}
    sizes = [sum(s.case.problem.output().numel for s in each) for each in (here, there)]
    assert sizes[0] < sizes[1]
