"""A transposed convolution with stages around it, as a module that owns all their tensors."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as concat
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Module, ModuleList
from torch.nn.modules.batchnorm import _BatchNorm

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.functions import conv_transpose
from transfuse.nn.base import Layer, Told, attribute
from transfuse.nn.layers import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from transfuse.nn.torch_modules import RANKS, READERS, Held
from transfuse.padding import Padding
from transfuse.stages import ConvTranspose, Number, Stage

BEFORE, THEN = "before", "then"
RESERVED = frozenset({"self", "input", "weight", "output_size"})
"""Names of a call's own arguments, in calls and in messages."""


class _Kept(NamedTuple):
    """What was told last, and all that it was made from."""

    told: Told
    facts: list[object]


class FusedConvTranspose(Layer):
    r"""A transposed convolution with stages around it, in as few kernels as a backend can make it.

    .. math::
        y = \text{then}(\text{conv}(\text{before}(x)))

    To torch it is one layer. ``before`` and ``then`` take

    - stages of ``transfuse.stages``. A ``torch.nn.Parameter`` in one becomes a parameter of this
      module, any other tensor a buffer. A name, such as in ``add("skip")``, is a tensor or a
      number that each call gives: ``layer(x, skip=skip)``.
    - modules of ``torch.nn`` that mean a stage, such as ``nn.BatchNorm2d``, ``nn.ReLU`` or
      ``nn.MaxPool2d``. They stay what they are: their parameters, buffers and attributes are read
      at each call. Batch norm uses and moves its statistics in training and in evaluation as
      torch has it. Their own ``forward`` is not called, and neither are hooks on them. Where x
      lacks the batch axis, they see it as a batch of one.

    Parameters and buffers stand under ``weight``, ``bias``, ``before.0.…`` and ``then.0.…``. It is
    a subclass of the ``torch.nn.ConvTranspose1d`` to ``3d`` of its number of axes, which any
    argument with one value for each axis, or a module such as ``nn.BatchNorm2d``, says.

    Args:
        in_channels: channels of the convolution's input
        out_channels: channels of its output
        kernel_size: size of the kernel; one for all axes, or one for each, and so are the three
            below
        stride: outputs from one input to the next. Default: 1
        padding: outputs that are taken away at both ends of each axis, in any form that
            :func:`transfuse.conv_transpose` takes. Default: 0
        output_padding: outputs that are added at the end of each axis. Default: 0
        groups: channels fall apart into so many convolutions. Default: 1
        bias: whether the convolution has a term for each channel. Default: ``True``
        dilation: inputs between two taps of the kernel. Default: 1
        before: stages and modules on the input. Default: none
        then: stages and modules on the result of the convolution. Default: none
        device: where weight and bias are. Default: torch's
        dtype: their type. Default: torch's

    Shape:
        - x: :math:`(N, C_i, *)` or :math:`(C_i, *)`
        - weight: :math:`(C_i, C_o / \text{groups}, *)`
        - bias: :math:`(C_o)`
        - y: :math:`(N, C_o, *)` or :math:`(C_o, *)` where no stage changes it

    Example::

        >>> layer = transfuse.nn.FusedConvTranspose(
        ...     16, 32, 4, stride=2, padding=1, bias=False,
        ...     then=[torch.nn.BatchNorm2d(32), torch.nn.ReLU()],
        ... )
        >>> layer(torch.randn(8, 16, 10, 10)).shape
        torch.Size([8, 32, 20, 20])
        >>> [name for name, _ in layer.named_parameters()]
        ['weight', 'then.0.weight', 'then.0.bias']
        >>> up = transfuse.nn.FusedConvTranspose(16, 8, (2, 2), stride=2, then=[stages.cat("skip")])
        >>> up(torch.randn(1, 16, 4, 4), skip=torch.randn(1, 8, 8, 8)).shape
        torch.Size([1, 16, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        *,
        before: Sequence[Stage | Module] = (),
        then: Sequence[Stage | Module] = (),
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        around = {BEFORE: _listed(BEFORE, before), THEN: _listed(THEN, then)}
        options = {
            "kernel_size": kernel_size, "stride": stride, "padding": padding,
            "output_padding": output_padding, "dilation": dilation,
        }  # fmt: skip
        rank = _rank(options, [*around[BEFORE], *around[THEN]], getattr(type(self), "rank", None))
        if type(self) is FusedConvTranspose:
            self.__class__ = FUSED[rank]  # as torch's lazy modules become what they are
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, device=device, dtype=dtype,
        )  # fmt: skip
        for name, given in around.items():
            modules = [Held(each) if isinstance(each, Stage) else each for each in given]
            self.add_module(name, ModuleList(modules))
        self._told()  # what makes no chain is refused now

    def _children(self) -> Iterator[Module]:
        modules: Any = self._modules
        return concat(modules[BEFORE]._modules.values(), modules[THEN]._modules.values())

    def _told(self) -> Told:
        if is_dynamo_compiling():  # it sees by itself what may not change
            return self._lifted()
        held = self._parameters
        bias = held["bias"] if "bias" in held else self.bias  # noqa: SIM401 it takes its time
        facts: list[object] = [bias is None]
        for child in self._children():
            facts += child, READERS[type(child)].tell(child)
            if child._parameters or child._buffers:  # which of them there are
                tensors = concat(child._parameters.values(), child._buffers.values())
                facts += map(is_, tensors, repeat(None))
        kept: _Kept | None = self.__dict__.get("_kept")
        if kept is not None and kept.facts == facts:
            return kept.told
        told = self._lifted()
        if all(norm.momentum is not None for norm in told.counting):
            self.__dict__["_kept"] = _Kept(told, facts)
        else:  # its running statistics move by another share at every batch
            self.__dict__.pop("_kept", None)
        return told

    def _lifted(self) -> Told:
        """The chain with names in place of tensors, and where each of these is."""
        before, then = (self._stages(each) for each in (BEFORE, THEN))
        whole = Chain(
            *(stage for stage, _ in before),
            ConvTranspose(self.rank, attribute(self, "bias")),
            *(stage for stage, _ in then),
        )
        chain, tensors = whole.lift()
        owned = [*before, (whole.conv, None), *then]
        places = [
            (owner, key)
            for stage, owner in owned
            for key, value in stage.parameters()
            if isinstance(value, Tensor)
        ]
        named = tuple(
            (name, owner, key) for name, (owner, key) in zip(tensors, places, strict=True)
        )
        names = {name for stage in chain.stages for name in stage.operands} - tensors.keys()
        for name in sorted(names & RESERVED):
            raise ValueError(
                f"{name!r} in {chain} is what a call of the module calls an argument of its own; "
                "call it by another name"
            )
        counting = tuple(filter(_counts, self._children()))
        return Told(chain, named, None, frozenset(names), counting)

    def _stages(self, which: str) -> list[tuple[Stage, Module]]:
        modules: Any = self._modules[which]
        made = ((READERS[type(each)].stage(each), each) for each in modules._modules.values())
        return [(stage, each) for stage, each in made if stage is not None]

    def _as_function(
        self,
        chain: Chain,
        input: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, Number],
        options: Mapping[str, Any],
    ) -> Tensor:
        given: dict[str, Any] = {**scalars, **operands}
        whole = chain.bind(given)
        bias: Any = whole.conv.bias
        return conv_transpose(
            input, weight, bias, before=whole.prologue, then=whole.epilogue, **options
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files hold modules and stages; the chain is made anew of them."""
        return {key: value for key, value in self.__dict__.items() if key != "_kept"}


class FusedConvTranspose1d(FusedConvTranspose, ConvTranspose1d):
    __doc__ = str(FusedConvTranspose.__doc__)


class FusedConvTranspose2d(FusedConvTranspose, ConvTranspose2d):
    __doc__ = str(FusedConvTranspose.__doc__)


class FusedConvTranspose3d(FusedConvTranspose, ConvTranspose3d):
    __doc__ = str(FusedConvTranspose.__doc__)


FUSED: dict[int, type[FusedConvTranspose]] = {
    1: FusedConvTranspose1d,
    2: FusedConvTranspose2d,
    3: FusedConvTranspose3d,
}


def _listed(name: str, given: object) -> list[Stage | Module]:
    """Stages and modules as a list; what is neither is refused by its name."""
    if not isinstance(given, Sequence | ModuleList) or isinstance(given, str):
        raise TypeError(f"{name} must be a list of stages and modules, not {type(given).__name__}")
    for each in given:
        if not isinstance(each, Stage | Module):
            raise TypeError(
                f"{name} takes stages and modules of torch.nn, not {type(each).__name__}: {each!r}"
            )
        if isinstance(each, Module):
            READERS[type(each)]
    return list(given)


def _rank(options: Mapping[str, Any], around: Sequence[object], known: int | None) -> int:
    """How many spatial axes all that tells it says there are."""
    said = {
        f"{name}={given!r}": len(given)
        for name, given in options.items()
        if isinstance(given, list | tuple)
    }
    said |= {type(each).__name__: RANKS[type(each)] for each in around if type(each) in RANKS}  # type: ignore[index]
    if known is not None:
        said = {"the class": known, **said}
    ranks = {*said.values()}
    if not ranks:
        size = options["kernel_size"]
        raise ValueError(
            f"kernel_size={size!r} does not tell how many spatial axes there are; give one size "
            f"for each, such as ({size!r}, {size!r}), or take FusedConvTranspose1d, 2d or 3d"
        )
    if len(ranks) > 1 or not ranks <= {1, 2, 3}:
        told = ", ".join(f"{rank} by {what}" for what, rank in said.items())
        raise ValueError(f"FusedConvTranspose has 1, 2 or 3 spatial axes, but got {told}")
    return ranks.pop()


def _counts(module: Module) -> bool:
    """Whether it counts the batches it has seen, and this is one."""
    return (
        isinstance(module, _BatchNorm)
        and module.training
        and module.track_running_stats
        and module.num_batches_tracked is not None
    )
