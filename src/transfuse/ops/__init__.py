"""Chains as operations of torch's dispatcher: what graphs, gradients and profilers know of them.

``torch.ops.transfuse.chain`` computes a chain given by its line (see ``line``); ``chain_updating``
one that moves running statistics, which it returns instead of writing; ``chain_keeping``
one that returns what its gradients would else compute again, too; ``chain_backward`` the
gradients of each. They are registered when the package is imported.
"""

from transfuse.ops import autograd, fake, flops, kernels
from transfuse.ops.decomposition import decompositions
from transfuse.ops.schema import LIBRARY

__all__ = ["decompositions"]

kernels.register(LIBRARY)
fake.register(LIBRARY)
autograd.register(LIBRARY)
flops.register()
