"""``torch.compile(model, backend="transfuse")``: what can be fused is, the rest is inductor's.

``pyproject.toml`` names :func:`transfuse` to torch as an entry point, so that the installed package
need not be imported.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from transfuse.fusing.rewriting import fuse_graph


def transfuse(
    graph: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    r"""A backend of ``torch.compile``: transposed convolutions fused, and inductor for all else.

    .. math::
        \text{relu}(\text{conv}(x)) \to \text{transfuse::chain}(x)

    Each transposed convolution, with what joins it into one chain, becomes one operation; see
    :func:`transfuse.fuse` for what that is. All else, and graphs without any, is inductor's.

    Args:
        graph: what ``torch.compile`` has captured; it is changed
        inputs: tensors like those it will be called with
        mode: inductor's, as ``torch.compile`` takes it. Default: ``None``
        options: inductor's, as ``torch.compile`` takes them. Default: ``None``

    Returns:
        What runs in place of the graph

    Example::

        >>> model = torch.compile(model, backend="transfuse", dynamic=True)
        >>> y = model(x)
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    if fuse_graph(graph.graph, graph, compiled=True):
        graph.recompile()
    settings = list_mode_options(mode) if mode else {}
    settings |= {name.replace("-", "_"): value for name, value in (options or {}).items()}
    compiled: Any = compile_fx(graph, list(inputs), config_patches=settings)
    return compiled  # type: ignore[no-any-return]
