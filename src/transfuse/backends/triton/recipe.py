"""A program as launches made ready once: what is left for a call is memory and addresses."""

from collections.abc import Callable

import torch
from torch import Tensor

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton.draft import OUT, Draft, Place, X, apart, gathered, kind_of
from transfuse.backends.triton.frame import Frames, watched
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
from transfuse.backends.triton.tile import Tile


class Recipe:
    """The launches of one program for tensors that lie in one way."""

    def __init__(self, draft: Draft, choose: Callable[[Pass, tiling.Shape], tiling.Config]) -> None:
        self.engines = _write(draft, choose)  # of the passes that convolve
        self.device, self.launches = draft.device, draft.launches
        self.scratch, self.bytes = draft.scratch, draft.bytes
        self.ready = False
        self.frames: Frames | None = None

    def __call__(self, tensors: list[Tensor]) -> None:
        """Run on x, weight, out and the operands."""
        scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        if not self.ready:
            self._first(tensors, scratch)
            return
        given, base = [tensor.data_ptr() for tensor in tensors], scratch.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self.frames is not None and not watched():
            self.frames(given, base, stream)
            return
        memory = [*given, *(base + at for at, _, _ in self.scratch)]
        for launch in self.launches:
            launch.again(memory, stream)

    def _first(self, tensors: list[Tensor], scratch: Tensor) -> None:
        """The first call compiles, from tensors; later ones need no more than addresses."""
        memory = list(tensors)
        for at, size, dtype in self.scratch:
            memory.append(scratch[at : at + size * dtype.itemsize].view(dtype))
        for launch in self.launches:  # all of them before one runs: none may be known to be wrong
            launch.compile(memory)
        for launch in self.launches:
            launch.first(memory)
        if self.device.type == "cuda":
            given, offsets = [t.data_ptr() for t in tensors], [at for at, _, _ in self.scratch]
            self.frames = Frames.of(self.launches, given, offsets, scratch.data_ptr())
            self.ready = True


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
