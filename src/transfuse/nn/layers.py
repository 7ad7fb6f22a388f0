"""torch's own three layers, drop-in: everything but ``forward`` is torch's."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.functions import ALONE, BIAS, conv_transpose1d, conv_transpose2d, conv_transpose3d
from transfuse.nn.base import Layer, Told
from transfuse.stages import Number

_TOLD = {
    (rank, bias): Told(chain, ((BIAS, None, "bias"),) if bias else ())
    for (rank, bias), chain in ALONE.items()
}
_FUNCTIONS = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}


class PlainLayer(Layer):
    """The convolution without other stages."""

    def _told(self) -> Told:
        held = self._parameters
        bias = held["bias"] if "bias" in held else self.bias  # noqa: SIM401 it takes its time
        return _TOLD[self.rank, bias is not None]

    def _as_function(
        self,
        chain: Chain,
        input: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, Number],
        options: Mapping[str, Any],
    ) -> Tensor:
        return _FUNCTIONS[self.rank](input, weight, operands.get(BIAS), **options)


_DOC = r"""``torch.nn.ConvTranspose{rank}d``, computed by :func:`transfuse.conv_transpose{rank}d`.

.. math::
    y[n, c_o, o] = \text{{bias}}[c_o]
        + \sum_{{c_i, k}} x[n, c_i, i] \cdot \text{{weight}}[c_i, c_o, k]
    \quad\text{{with}}\quad
    o = i \cdot \text{{stride}} - \text{{padding}} + k \cdot \text{{dilation}}

along each axis. It is a subclass of torch's: constructor, initial values, ``state_dict``, what it
prints and ``output_size`` in ``forward`` are torch's own.{lazily}

Args:
{in_channels}    out_channels: channels of the output
    kernel_size: size of the kernel; one for all axes, or one for each, and so are the three below
    stride: outputs from one input to the next. Default: 1
    padding: outputs that are taken away at both ends of each axis, in any form that
        :func:`transfuse.conv_transpose` takes. Default: 0
    output_padding: outputs that are added at the end of each axis. Default: 0
    groups: channels fall apart into so many convolutions. Default: 1
    bias: whether there is a term for each channel. Default: ``True``
    dilation: inputs between two taps of the kernel. Default: 1
    padding_mode: ``"zeros"``; torch knows no other for transposed convolutions
    device: where the parameters are. Default: torch's
    dtype: their type. Default: torch's

Shape:
    - x: :math:`(N, C_i, {sizes})` or :math:`(C_i, {sizes})`
    - weight: :math:`(C_i, C_o / \text{{groups}}, {kernel})`
    - bias: :math:`(C_o)`
    - y: :math:`(N, C_o, {outputs})` or :math:`(C_o, {outputs})`, where along each axis

      .. math::
          L_o = (L - 1) \cdot \text{{stride}} - 2 \cdot \text{{padding}}
              + \text{{dilation}} \cdot (K - 1) + \text{{output\_padding}} + 1

Example::

    >>> layer = transfuse.nn.{lazy}ConvTranspose{rank}d({channels}8, 4, stride=2, padding=1)
    >>> layer(torch.randn(2, 3, {input})).shape
    torch.Size([2, 8, {output}])
    >>> layer(torch.randn(2, 3, {input}), output_size=({larger})).shape
    torch.Size([2, 8, {more}])
"""


def document(rank: int, lazy: bool) -> str:
    """The docstring of the layer with so many spatial axes."""

    def each(text: str) -> str:
        return ", ".join(text.format(axis) for axis in "DHW"[3 - rank :])

    return _DOC.format(
        rank=rank,
        lazy="Lazy" * lazy,
        lazily=" ``in_channels`` are those of the first input." * lazy,
        in_channels="" if lazy else "    in_channels: channels of the input\n",
        channels="" if lazy else "3, ",
        sizes=each("{}"),
        kernel=each("K_{}").lower().replace("k_", "K_"),
        outputs=each("{}_o"),
        input=each("5"),
        output=each("10"),
        larger=each("11") + ("," if rank == 1 else ""),
        more=each("11"),
    )


class ConvTranspose1d(PlainLayer, torch.nn.ConvTranspose1d):
    __doc__ = document(1, lazy=False)
    rank: ClassVar[int] = 1


class ConvTranspose2d(PlainLayer, torch.nn.ConvTranspose2d):
    __doc__ = document(2, lazy=False)
    rank: ClassVar[int] = 2


class ConvTranspose3d(PlainLayer, torch.nn.ConvTranspose3d):
    __doc__ = document(3, lazy=False)
    rank: ClassVar[int] = 3


# torch's lazy class comes first: at the first call it turns into ``cls_to_become``.


class LazyConvTranspose1d(torch.nn.LazyConvTranspose1d, ConvTranspose1d):  # type: ignore[misc]
    __doc__ = document(1, lazy=True)
    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(torch.nn.LazyConvTranspose2d, ConvTranspose2d):  # type: ignore[misc]
    __doc__ = document(2, lazy=True)
    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(torch.nn.LazyConvTranspose3d, ConvTranspose3d):  # type: ignore[misc]
    __doc__ = document(3, lazy=True)
    cls_to_become = ConvTranspose3d


LAYERS: dict[int, type[PlainLayer]] = {1: ConvTranspose1d, 2: ConvTranspose2d, 3: ConvTranspose3d}
