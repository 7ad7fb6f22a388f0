"""torch.compile of the chain as a user would write it, in its two usual modes."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType

import torch
from torch import Tensor

from transfuse.bench.peers.base import Missing, Runner, Work, in_torch
from transfuse.bench.peers.torch_eager import as_written


@dataclass(frozen=True)
class TorchCompile:
    name: str
    cpu: str
    cuda: str
    trains: bool = True

    def build(self, work: Work) -> Runner:
        on_cpu = work.problem.device == "cpu"
        require_compiler(on_cpu)
        function = _with_code_of_its_own(as_written(work))
        # fullgraph: a part that would fall back to eager raises instead.
        mode = self.cpu if on_cpu else self.cuda
        compiled = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
        return in_torch(work, compiled)


def require_compiler(on_cpu: bool) -> None:
    if not on_cpu:
        if find_spec("triton") is None:
            raise Missing("torch.compile needs Triton on a GPU, which is not installed")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise Missing(f"torch.compile needs a C++ compiler on a CPU: {error}") from error


def _with_code_of_its_own(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function over a copy of its code.

    torch keeps what it compiled with the code object, which all chains share: after
    ``recompile_limit`` cases it would give up. torch._dynamo.reset() would help, and would make
    the runners built before compile again, in the midst of their timing.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    return FunctionType(code, function.__globals__, function.__name__, None, closure)


PEERS = (
    TorchCompile("torch.compile", cpu="default", cuda="default"),
    # On a GPU without CUDA graphs: a replay first copies its input into the graph's own memory,
    # which costs more than the launches it saves wherever a call takes longer than they do.
    TorchCompile(
        "torch.compile max-autotune", cpu="max-autotune", cuda="max-autotune-no-cudagraphs"
    ),
)
