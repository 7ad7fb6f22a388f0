"""A build: one kernel for one kind of GPU, with all that its machine code depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transfuse.backends.triton import installed
from transfuse.backends.triton.arguments import Pointer, filled
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.miscompiles import spills_over
from transfuse.backends.triton.specialised import Pair, specialised
from transfuse.backends.triton.store import key
from transfuse.backends.triton.store.entry import Entry
from transfuse.errors import Declined


class Strange(Exception):
    """Why a kernel is not as expected, so that Triton's own launcher has to launch it."""


@dataclass(frozen=True)
class Build:
    """A kernel with its arguments, and as they are seen when it is compiled."""

    kernel: Kernel
    capability: int
    arguments: tuple[Any, ...]
    memory: tuple[Pointer, ...]
    options: Mapping[str, Any]
    seen: tuple[Pair, ...]
    key: str

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        arguments: Sequence[Any],
        memory: Sequence[Pointer],
        options: Mapping[str, Any],
        capability: int,
    ) -> "Build":
        """For tensors by number that are such ``memory``."""
        seen = specialised(kernel, arguments, memory)
        name = key.key(kernel, f"sm_{capability}", seen, dict(options))
        return cls(kernel, capability, tuple(arguments), tuple(memory), options, seen, name)

    @property
    def signature(self) -> tuple[Any, ...]:
        """The type of each argument, a tuple for a tuple."""
        return tuple(kind for kind, _ in self.seen)

    @cached_property
    def compiled(self) -> Any:
        """What Triton compiles it to, or has compiled it to before; nothing is loaded.

        ``Declined`` where it cannot, or where its code is known to be wrong.
        """
        fault = installed.uncompilable(self.kernel)
        if fault:
            raise Declined(fault)
        from transfuse.backends.triton import versions

        given = filled(self.arguments, self.memory)
        found = versions.compiled(self.kernel.function, given, self.options, self.capability)
        if spills_over(found.asm["ptx"]):
            raise Declined(
                f"Triton {installed.version()} makes wrong code of {self.kernel.name}: two "
                "shifts packed into one, where the lower may spill over"
            )
        return found

    def forget(self) -> None:
        """Let go of what was compiled: texts of every level, megabytes that Triton has in files."""
        vars(self).pop("compiled", None)

    def entry(self) -> Entry:
        """The build compiled, as it is stored; ``Strange`` where no other launcher launches it."""
        known = self.compiled.metadata
        extras = (
            known.num_ctas != 1,
            known.launch_cooperative_grid,
            known.launch_pdl,
            known.global_scratch_size,
            known.profile_scratch_size,
        )
        if any(extras):
            raise Strange(f"{known.name} needs more than a grid")
        return Entry(
            key=self.key,
            name=known.name,
            architecture=f"sm_{self.capability}",
            triton=installed.version(),
            shared=known.shared,
            warps=known.num_warps,
            descriptors=tuple(self._descriptors(known.tensordesc_meta)),
            code=self.compiled.asm["cubin"],
        )

    def _descriptors(self, metas: Sequence[Any] | None) -> list[dict[str, Any]]:
        """How each descriptor is passed."""
        from transfuse.backends.triton import versions

        ranks = [kind.partition("[")[2].partition("]")[0].count(",") + 1
                 for kind in self.signature
                 if isinstance(kind, str) and kind.startswith("tensordesc")]  # fmt: skip
        if not metas:
            return [{"words": versions.words(rank)} for rank in ranks]
        return [
            {
                "map": {
                    "kind": versions.map_type(meta),
                    "item": meta["elem_size"],
                    "box": list(meta["block_size"]),
                    "swizzle": meta["swizzle"],
                }
            }
            for meta in metas
        ]
