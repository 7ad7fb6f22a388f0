"""``fuse`` and ``unfuse``: models with fused forwards, and without."""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, jit, nn
from torch._subclasses import fake_tensor
from torch.nn.parameter import is_lazy

from transfuse.fusing.by_size import sizes_alone
from transfuse.fusing.calling import Arguments, arguments, positional
from transfuse.fusing.explaining import Explain, explain
from transfuse.fusing.forwards import remove, settle

M = TypeVar("M", bound=nn.Module)

UNKNOWN = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    NotImplementedError,
)
"""Raised where sizes alone do not tell what a model computes: no fault of its inputs."""


def fuse(model: M, example_inputs: Any = None, inplace: bool = False) -> M:
    r"""Makes the transposed convolutions of a model faster; the model stays what it is.

    .. math::
        \text{fuse}(f)(x) = f(x)

    Finds every transposed convolution with the operations before and after it that
    :mod:`transfuse.stages` has a stage for, as modules, functions, methods of tensors or Python's
    operators, and computes each such chain in as few kernels as possible. All else runs as it
    was written. Fused are calls in training and in evaluation, with any sizes.

    The model has the same class, parameters, buffers, ``state_dict`` and hooks: tensors are
    shared with the model given, not copied, and are read anew at each call. ``train()``,
    ``to()``, ``load_state_dict()``, ``copy.deepcopy`` and ``pickle`` work as before. An attribute
    that changes, another submodule or a new hook make that part be looked at again.

    A forward that decides by the values of tensors, sets attributes or cannot be read in another
    way is left as it is, and its submodules are fused each by itself; where it decides by sizes, it
    is looked at in the first call. So is a part that is called by itself, as a decoder by
    ``model.decode(z)``. ``transfuse.fuse(model).explain()`` tells what became of each transposed
    convolution, and why. What a forward reads of objects other than modules, and of global
    variables, is taken to be constant. Fuse a model before it is wrapped for distributed training;
    replicas of ``torch.nn.DataParallel`` are not served, and ``torch.jit.script``, which reads
    source code, takes the model that :func:`unfuse` gives back.

    Args:
        model: any module; one that is fused already is fused anew
        example_inputs: what the model would be called with: a tensor, a tuple of positional
            arguments, or a dict of named ones. Only sizes matter: decisions by sizes are made
            now, and ``explain`` can tell of them. Default: ``None``
        inplace: whether to change this very model rather than a copy of its modules.
            Default: ``False``

    Returns:
        torch.nn.Module: the model, with forwards that are fused

    Raises:
        ValueError: no transposed convolution is there, or none can be fused; it says why for each

    Example::

        >>> model = torch.nn.Sequential(
        ...     torch.nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
        ...     torch.nn.BatchNorm2d(8),
        ...     torch.nn.ReLU(),
        ... )
        >>> fused = transfuse.fuse(model)
        >>> fused(torch.randn(1, 16, 8, 8)).shape
        torch.Size([1, 8, 16, 16])
        >>> fused[0].weight is model[0].weight
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse takes a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, jit.ScriptModule):
        raise TypeError("fuse takes a module that Python runs; this one is compiled by torch.jit")
    lazy = [name for name, tensor in model.named_parameters() if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"{', '.join(lazy)}: lazy parameters have no sizes yet; call the model once, then fuse"
        )
    example = _example(model, example_inputs)
    mine = model if inplace else _copied(model)
    unfuse(mine)
    settle(mine, example)
    try:
        _expect_fused(mine)
    except ValueError:
        unfuse(mine)
        raise
    if not hasattr(mine, "explain"):
        vars(mine)["explain"] = Explain(mine)
    return mine


def unfuse(model: M) -> M:
    """Gives a fused model its own forwards back, in place; one that is not fused stays as it is.

    Args:
        model: a module

    Returns:
        torch.nn.Module: the model, of which nothing is fused any more

    Example::

        >>> fused = transfuse.fuse(torch.nn.Sequential(torch.nn.ConvTranspose1d(4, 2, 3)))
        >>> "forward" in vars(transfuse.unfuse(fused))
        False
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unfuse takes a torch.nn.Module, not {type(model).__name__}")
    for module in model.modules():
        remove(module)
        if isinstance(vars(module).get("explain"), Explain):
            del vars(module)["explain"]
    return model


def _copied(model: M) -> M:
    """The modules copied, with every tensor shared."""
    memo = {id(tensor): tensor for module in model.modules() for tensor in _tensors(vars(module))}
    try:
        return deepcopy(model, memo)
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied ({type(error).__name__}: {error}); "
            "fuse(model, inplace=True) makes no copy"
        ) from error


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in a value and in containers in it."""
    if isinstance(value, Tensor):
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _tensors(each)


def _example(model: nn.Module, inputs: Any) -> Arguments | None:
    """The example as arguments; refused if the model does not take it."""
    if inputs is None:
        return None
    args, kwargs = positional(inputs)
    found = arguments(args, kwargs)
    try:
        sizes_alone(model, found)
    except UNKNOWN:
        pass
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} does not take these example_inputs: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found


def _expect_fused(model: nn.Module) -> None:
    """Refuse a model of which nothing is fused, nor may be at its first call.

    Where torch is faster at all of it, the model is as fast as it can be.
    """
    rows = explain(model).rows
    if any(row.fused or row.pending or row.left for row in rows):
        return
    name = type(model).__name__
    if not rows:
        leaves = (each for each in model.modules() if not any(True for _ in each.children()))
        kinds = Counter(type(each).__name__ for each in leaves)
        has = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))
        raise ValueError(f"{name} has no transposed convolution; it has {has or 'no submodules'}")
    lines = "\n".join(f"  {row.name}: {row.why}" for row in rows)
    raise ValueError(f"no transposed convolution of {name} can be fused:\n{lines}")
