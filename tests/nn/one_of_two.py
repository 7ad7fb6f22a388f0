"""One of two processes that train a model of these modules beside torch's: ``test_distributed``."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch import nn as theirs
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module, Sequential
from torch.nn.parallel import DistributedDataParallel

from transfuse import nn as ours


class Sigmoids(Module):
    """The operator in torch's words, with the parameters of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = theirs.Parameter(torch.empty(8, 4, 2, 2))
        self.conv_bias = theirs.Parameter(torch.empty(4))
        self.add_bias = theirs.Parameter(torch.empty(4))

    def forward(self, x: Tensor) -> Tensor:
        y = theirs.functional.conv_transpose2d(x, self.weight, self.conv_bias, 2)
        return torch.sigmoid((torch.softmax(y, 1) + self.add_bias.view(-1, 1, 1)) * 2.0)


def model_of_ours() -> Sequential:
    return Sequential(
        ours.ConvTranspose2d(4, 8, 3, stride=2, padding=1),
        ours.FusedConvTranspose(
            8, 8, 4, stride=2, padding=1, bias=False,
            then=[theirs.BatchNorm2d(8), theirs.ReLU(), theirs.MaxPool2d(2)],
        ),
        ours.ConvTranspose2dSoftmaxBiasaddScalingSigmoid(8, 4, 2, scaling_factor=2.0, stride=2),
    )  # fmt: skip


class Block(Module):
    """The fused layer in torch's words, under its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = theirs.Parameter(torch.empty(8, 8, 4, 4))
        self.then = theirs.ModuleList([theirs.BatchNorm2d(8), theirs.ReLU(), theirs.MaxPool2d(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = theirs.functional.conv_transpose2d(x, self.weight, None, 2, 1)
        for each in self.then:
            x = each(x)
        return x


def model_of_theirs() -> Sequential:
    return Sequential(theirs.ConvTranspose2d(4, 8, 3, stride=2, padding=1), Block(), Sigmoids())


def by_ddp(model: Module) -> Module:
    return DistributedDataParallel(model)


def by_fsdp(model: Module) -> Module:
    for each in model.children():
        fully_shard(each)
    found: Module = fully_shard(model)
    assert all(isinstance(each, DTensor) for each in found.parameters())
    return found


def state(model: Module) -> list[Tensor]:
    """Copies of all parameters and buffers, put together where they are in pieces."""
    found = model.state_dict().values()
    return [getattr(each, "full_tensor", each.clone)().clone() for each in found]


def trained(
    make: Callable[[], Module], wrap: Callable[[Module], Module], rank: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The state before and after three steps, each process on its own samples."""
    model = make().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn(each.shape, generator=generator, dtype=torch.float64))
    model = wrap(model)
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(4, 4, 5, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(x[rank::2]).square().sum().backward()
        optimizer.step()
    return before, state(model)


def main(how: str, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/met", rank=rank, world_size=2,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    wrap = {"ddp": by_ddp, "fsdp": by_fsdp}[how]
    (before, found), (_, expected) = (
        trained(make, wrap, rank) for make in (model_of_ours, model_of_theirs)
    )
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-11 * (1 + other.abs().max())
    assert not any(a.equal(b) for a, b in zip(found, before, strict=True))
    distributed.barrier()  # none leaves while the other still talks to it
    distributed.destroy_process_group()
    print(f"{len(found)} tensors are the same", flush=True)
    os._exit(0)  # threads of gloo's end when they like, and Python's exit may not wait for them


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
