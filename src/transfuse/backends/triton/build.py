"""A build: one kernel for one kind of GPU, with all that its machine code depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import triton

from transfuse.backends.triton import versions
from transfuse.backends.triton.miscompiles import spills_over
from transfuse.backends.triton.store import key
from transfuse.backends.triton.store.entry import Entry
from transfuse.backends.triton.versions import Specialised
from transfuse.errors import Declined


class Strange(Exception):
    """Why a kernel is not as expected, so that Triton's own launcher has to launch it."""


@dataclass(frozen=True)
class Build:
    """A kernel with its arguments as they are seen when it is compiled."""

    kernel: Any
    capability: int
    specialised: Specialised
    key: str

    @classmethod
    def of(
        cls, kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any], capability: int
    ) -> "Build":
        found = versions.specialised(kernel, arguments, options, capability)
        name = key.key(kernel, f"sm_{capability}", found.given, dict(options))
        return cls(kernel, capability, found, name)

    @cached_property
    def compiled(self) -> Any:
        """What Triton compiles it to, or has compiled it to before; nothing is loaded.

        ``Declined`` where it cannot, or where its code is known to be wrong.
        """
        fault = versions.uncompilable(self.kernel)
        if fault:
            raise Declined(fault)
        source, options = self.specialised.source, self.specialised.options.__dict__
        found = triton.compile(source, target=versions.target(self.capability), options=options)
        if spills_over(found.asm["ptx"]):
            raise Declined(
                f"Triton {triton.__version__} makes wrong code of {self.kernel.__name__}: two "
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
            triton=triton.__version__,
            shared=known.shared,
            warps=known.num_warps,
            descriptors=tuple(self._descriptors(known.tensordesc_meta)),
            code=self.compiled.asm["cubin"],
        )

    def _descriptors(self, metas: Sequence[Any] | None) -> list[dict[str, Any]]:
        """How each descriptor is passed."""
        ranks = [kind.partition("[")[2].partition("]")[0].count(",") + 1
                 for kind in self.specialised.signature
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
