"""The copies a convolution reads: how input and weights lie in them. Plain integers and names."""

from dataclasses import dataclass
from math import prod

from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.lower import power
from transfuse.backends.triton.strides import Five, Three


@dataclass(frozen=True)
class PackedInput:
    """Rows of channels: (residue, sample, depth, height, width), or samples innermost.

    ``source`` are the sizes of the tensor, ``inputs`` those after the prologue, ``extent`` those
    of the copy, whose first depth is ``low``.
    """

    strides: Five
    source: Three
    inputs: Three
    pool: str
    kernel: Three
    stride: Three
    padding: Three
    residues: Three
    extent: Three
    low: int
    batch_last: bool
    groups: int
    group_channels: int
    kept: int
    before: OpTable
    after: OpTable
    tf32: bool
    wide: bool

    @property
    def channels(self) -> int:
        return self.groups * self.kept

    @property
    def plane(self) -> int:
        return self.extent[1] * self.extent[2]

    @property
    def block_c(self) -> int:
        return min(power(self.channels), 64)

    @property
    def block_p(self) -> int:
        return max(16, min(4096 // self.block_c, power(self.plane)))

    @property
    def run(self) -> int:
        """Elements of a window that lie side by side and are loaded at once."""
        simple = self.kernel[2] == self.stride[2] and prod(self.residues) == 1
        whole = self.padding[2] == 0 and self.inputs[2] * self.kernel[2] <= self.source[2]
        return self.kernel[2] if simple and whole and self.kernel[2] in (2, 4) else 1

    @property
    def members(self) -> int:
        """Loads for one window."""
        return prod(self.kernel) // self.run

    @property
    def samples(self) -> int:
        """Samples of one program: side by side in the copy, if they are innermost there."""
        return 4 if self.batch_last else 1

    @property
    def channel_blocks(self) -> int:
        return -(-self.channels // self.block_c)

    @property
    def plane_blocks(self) -> int:
        return -(-self.plane // self.block_p)

    def rows(self, batch: int) -> int:
        return prod(self.residues) * batch * self.extent[0] * self.plane

    def programs(self, batch: int) -> int:
        planes = prod(self.residues) * -(-batch // self.samples) * self.extent[0]
        return planes * self.plane_blocks * self.channel_blocks


@dataclass(frozen=True)
class PackedWeights:
    """Rows of output channels; a slot of ``kept`` input channels for each tap."""

    strides: Five
    taps: Three
    groups: int
    group_channels: int
    group_outputs: int
    kept: int
    rows: int
    tf32: bool

    @property
    def slots(self) -> int:
        return prod(self.taps)

    @property
    def block_t(self) -> int:
        return min(64, power(self.slots))

    @property
    def block_c(self) -> int:
        return min(64, power(self.kept))

    @property
    def channel_blocks(self) -> int:
        return -(-self.kept // self.block_c)

    @property
    def tap_blocks(self) -> int:
        return -(-self.slots // self.block_t)

    @property
    def programs(self) -> int:
        return self.groups * self.rows * self.tap_blocks * self.channel_blocks
