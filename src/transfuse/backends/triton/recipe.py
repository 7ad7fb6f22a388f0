"""A program as launches made ready once: what is left for a call is memory and addresses."""

from collections.abc import Callable

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton.draft import OUT, Draft, Place, X, apart, gathered, kind_of
from transfuse.backends.triton.launch import UNREAD
from transfuse.backends.triton.launches import (
    convolve,
    finish,
    hopper,
    hopper_window,
    prepare,
    statistics,
)
from transfuse.backends.triton.lower import Pass
from transfuse.backends.triton.sequence import Sequence
from transfuse.backends.triton.tile import Tile


class Recipe(Sequence):
    """The launches of one program for tensors that lie in one way."""

    def __init__(self, draft: Draft, choose: Callable[[Pass, tiling.Shape], tiling.Config]) -> None:
        self.engines = _write(draft, choose)  # of the passes that convolve
        super().__init__(draft.device, draft.launches, draft.scratch, draft.bytes)


def _write(draft: Draft, choose: Callable[[Pass, tiling.Shape], tiling.Config]) -> list[str]:
    """The launches of every pass in turn; the engine of each that convolves."""
    engines = []
    stored = Place(X, draft.x_strides)
    passes = draft.program.passes
    for at, each in enumerate(passes):
        out = Place(OUT, draft.out_strides)
        between = each.stores and at + 1 < len(passes)
        if not each.convolves:
            if between:
                out = draft.between(each.result)
            finish.add(draft, each, stored, out)
        elif hopper_window.add(draft, each, out, between):
            engines.append("hopper")
        else:
            config = choose(each, draft.shape(each))
            if between:
                out = draft.between(each.result, config.form)
            engines.append(_convolve(draft, each, out, config))
        if each.stores:
            stored = out
    return engines


def _convolve(draft: Draft, each: Pass, out: Place, config: tiling.Config) -> str:
    """A pass that convolves; the engine that serves it."""
    if config.split == 1:
        return _tiles(draft, each, out, config)
    # Several programs meet the members of a window; their results meet in a second pass.
    alone, rest = apart(each, draft.core.out_channels)
    shares = draft.between(alone.result, config.form, config.split)
    engine = _tiles(draft, alone, shares, config)
    finish.add(draft, rest, shares, out)
    return engine


def _tiles(draft: Draft, each: Pass, out: Place, config: tiling.Config) -> str:
    """The convolution and what follows; once more for weights that are not finite."""
    shape = draft.shape(each)
    fast = hopper.add(draft, each, out, shape)
    engine = "portable" if fast is None else "hopper"
    wild = None
    if fast is None:
        tile = Tile.of(shape, config, kind_of(each.window))
        again = shape.lattice.leaves and not tile.depthwise
        fast = careful = convolve.add(draft, each, out, shape, config, tile)
    else:
        config, tile = hopper.rows(draft, shape)
        again = hopper.leaves(shape, tile)
        careful = fast
        if again and fast.partials != UNREAD:
            careful = convolve.gather(draft, each, shape, config, tile)
            wild = prepare.add(draft, shape.lattice, tile).wild
    if again:
        convolve.add(draft, each, out, shape, config, tile, careful=True, gathered=careful)
    statistic = gathered(each)
    if statistic is not None:
        statistics.add(draft, statistic, fast, careful, wild)
    return engine
