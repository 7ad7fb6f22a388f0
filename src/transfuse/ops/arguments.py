"""What the arguments of an operation stand for: a chain, its problem, its tensors by name."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from torch import Tensor

from transfuse import settings
from transfuse.chain import Chain
from transfuse.checks import sized
from transfuse.line import joined, operands, outline
from transfuse.problem import Problem
from transfuse.remembered import exactly

if TYPE_CHECKING:
    from transfuse.backends.keeping import Keeping


FEWEST = 9
"""Arguments of ``chain_backward`` behind its tensors, without what was kept."""


@dataclass(frozen=True)
class Options:
    """The options of an operation, from ``numbers`` to ``precision``."""

    numbers: Sequence[float]
    line: str
    stride: Sequence[int]
    padding: Sequence[int]
    output_padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    precision: str

    @property
    def chain(self) -> Chain:
        """The chain with its numbers."""
        return joined(self.line, self.numbers)

    @property
    def outline(self) -> Chain:
        """The chain with any numbers: all that shapes depend on."""
        return _outline(self.line)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """It is the same for the same values alone; empty where there is none."""
        sizes = (self.stride, self.padding, self.output_padding, self.dilation)
        found = exactly(*self.numbers, *map(list, sizes), self.groups, self.precision)
        return found and ("transfuse::chain", self.line, found)

    def expect_pure(self) -> None:
        """Refuse a chain that writes to its tensors."""
        if self.outline.updates:
            raise RuntimeError(
                f"{self.line} moves running statistics, and transfuse::chain writes to no tensor; "
                "transfuse::chain_updating returns them"
            )

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """The operands by name."""
        names = _names(self.line)
        if len(names) != len(tensors):
            raise RuntimeError(
                f"{self.line} takes {len(names)} operands ({', '.join(names) or 'none'}), "
                f"but got {len(tensors)}"
            )
        return dict(zip(names, tensors, strict=True))

    def problem(self, chain: Chain, x: Tensor, weight: Tensor, exotic: bool) -> Problem:
        """The problem that a batched input and a weight make."""
        found = sized(
            chain, x, weight, tuple(self.stride), tuple(self.padding), tuple(self.output_padding),
            tuple(self.dilation), self.groups, self.precision, exotic,
        )  # fmt: skip
        if x.dim() != chain.conv.rank + 2:
            raise RuntimeError(
                f"expected {chain.conv.rank + 2}D (batched) input, but got {list(x.shape)}"
            )
        return found


@lru_cache(maxsize=4096)
def _names(line: str) -> list[str]:
    return operands(_outline(line))


@lru_cache(maxsize=4096)
def _outline(line: str) -> Chain:
    return joined(line, [1.0] * outline(line)[1])


def keeping(
    options: Options,
    x: Tensor,
    weight: Tensor,
    named: dict[str, Tensor],
    backend: str,
    device: str = "",
) -> "Keeping | None":
    """The forward call that keeps what gradients read, where that is cheaper.

    None as well where another backend is asked for than the one that finds gradients.
    """
    # Inference needs none of it: an import of the package leaves it alone.
    from transfuse.gradients import keeping as found

    whole = fitted(options.chain, named)
    problem = options.problem(whole, x, weight, exotic=False)
    problem = replace(problem, device=device) if device else problem
    kept = found(whole, problem, settings.backend())
    return kept if kept is not None and backend in ("", kept.backend.name) else None


def fitted(chain: Chain, named: dict[str, Tensor]) -> Chain:
    """A chain, told the shapes of its tensors."""
    return chain.fitted({name: tuple(tensor.shape) for name, tensor in named.items()})
