"""What every module here does in ``forward``: it gathers its tensors and makes one call."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import has_torch_function

from transfuse import padding as paddings
from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.front import call
from transfuse.padding import Padding
from transfuse.stages import Number

Place = tuple[str, Module | None, str]
"""A tensor's name in a chain, the module that owns it (None: the one called), its attribute there.
"""


class Told(NamedTuple):
    """What a module computes, but for the tensors.

    ``places``: of all tensors but input and weight. ``names``: what a call gives by name.
    ``counting``: batch norms that count this batch.
    """

    chain: Chain
    places: tuple[Place, ...] = ()
    scalars: Mapping[str, Number] | None = None
    names: frozenset[str] = frozenset()
    counting: tuple[Module, ...] = ()


def attribute(module: Module, name: str) -> Any:
    """An attribute; a parameter or a buffer as it lies in the module itself.

    Python's way to these asks ``Module.__getattr__``. That takes as long as the checks of a small
    call do, and ``torch.fx`` puts another in its place while it traces. Parametrizations, pruning
    and replicas have tensors elsewhere, where Python finds them.
    """
    for held in (module._parameters, module._buffers):
        if name in held:
            return held[name]
    return getattr(module, name)


class Layer(Module):
    """A transposed convolution of torch's with another ``forward``; stands before torch's class.

    Nothing is kept that torch's class does not keep: parameters are read anew for each call, for
    they may have been replaced, and ``front`` knows them and the chain again by their identity.
    """

    rank: ClassVar[int]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    weight: Tensor
    bias: Tensor | None

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
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        read = paddings.read(padding)
        integers = isinstance(read, tuple)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding if integers else 0,
            output_padding, groups, bias, dilation, padding_mode, device, dtype,
        )  # fmt: skip
        if not integers:  # torch's class knows no pairs and no words
            self.padding = read if isinstance(read, str) else tuple(read)

    def _told(self) -> Told:
        """What this module computes; asked for each call."""
        raise NotImplementedError

    def _as_function(
        self,
        chain: Chain,
        input: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, Number],
        options: Mapping[str, Any],
    ) -> Tensor:
        """The call by a public function, which hands it over to ``__torch_function__``."""
        raise NotImplementedError

    def forward(
        self,
        input: Tensor,
        output_size: Sequence[int] | None = None,
        **given: Tensor | Number,
    ) -> Tensor:
        told = self._told()
        chain, places, scalars, names, counting = told
        # What ``attribute`` gives, in line: a small call would notice.
        held: Any = self._parameters
        weight = held["weight"] if "weight" in held else self.weight  # noqa: SIM401 as said
        operands: dict[str, Any] = {}
        for name, owner, key in places:
            module = self if owner is None else owner
            held = module._parameters if key in module._parameters else module._buffers
            operands[name] = held[key] if key in held else getattr(module, key)
        if given or names:
            self._expect(names, given)
            chain = chain.bind({k: v for k, v in given.items() if not isinstance(v, Tensor)})
            operands |= {k: v for k, v in given.items() if isinstance(v, Tensor)}
        # As in torch, an output_size stands in place of what the module was made with.
        more: Size = self.output_padding if output_size is None else 0
        if has_torch_function((input, weight, *operands.values())):
            options = {
                "stride": self.stride, "padding": self.padding, "output_padding": more,
                "dilation": self.dilation, "groups": self.groups, "output_size": output_size,
            }  # fmt: skip
            y = self._as_function(chain, input, weight, operands, scalars or {}, options)
        else:
            y = call(
                chain, input, weight, operands, scalars, self.stride, self.padding, more,
                self.dilation, self.groups, output_size,
            )  # fmt: skip
        for norm in counting:
            attribute(norm, "num_batches_tracked").add_(1)
        return y

    def _expect(self, names: frozenset[str], given: Mapping[str, object]) -> None:
        if names != given.keys():
            takes = ", ".join(sorted(names)) or "nothing"
            raise TypeError(
                f"{type(self).__name__}: by name a call gives {takes}, "
                f"but got {', '.join(sorted(given)) or 'nothing'}"
            )
