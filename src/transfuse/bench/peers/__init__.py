"""The peers: every module in this folder that has ``PEERS`` takes part.

A new peer is one small file here.
"""

from importlib import import_module
from pkgutil import iter_modules

from transfuse.bench.peers.base import Missing, Peer, Runner, Work, in_torch


def peers() -> dict[str, Peer]:
    """Every peer by name, in the order of their files; their libraries are not imported yet."""
    found: dict[str, Peer] = {}
    for module in sorted(iter_modules(__path__), key=lambda m: (m.name != "torch_eager", m.name)):
        for peer in getattr(import_module(f"{__name__}.{module.name}"), "PEERS", ()):
            found[peer.name] = peer
    return found


__all__ = ["Missing", "Peer", "Runner", "Work", "in_torch", "peers"]
