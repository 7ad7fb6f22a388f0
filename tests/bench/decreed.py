"""Ceilings by decree, for tests of what is made of them."""

from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import HostClock
from transfuse.bench.precision import PRECISIONS


class FakeCeilings(Ceilings):
    """Ceilings by decree."""

    def __init__(self, copy=1e9, matmul=1e9, special=1e9):
        self.clock = HostClock()
        self.device = "cpu"
        self.copies = {2**20: copy}
        self.moves = {2**20: copy}
        self.special = {"fp32": special}
        self.products = dict.fromkeys(PRECISIONS, matmul)

    def measure(self):
        pass
