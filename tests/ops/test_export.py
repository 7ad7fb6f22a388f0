"""torch.export and ONNX: one node that is saved and loaded; decomposed, torch's operations."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import transfuse
from tests.ops.calls import CASES, arguments, tensors
from transfuse.stages import add, batch_norm, group_norm, max_pool, pointwise, scale, sigmoid

X = torch.randn(2, 4, 7, 9)
gated = pointwise(lambda x, gate: x * gate + 0.25)


class Up(torch.nn.Module):
    """A chain with a stage of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(4, 6, 3, 3))
        self.bias = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        norm = group_norm(2, self.bias, self.bias)
        then = [sigmoid(), scale(2.5), norm, gated(self.bias), max_pool(2)]
        return transfuse.conv_transpose(x, self.weight, self.bias, stride=2, then=then)


class Learning(torch.nn.Module):
    """One that moves running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 6, 3, 3))
        self.norm = torch.nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.norm.running_mean, self.norm.running_var
        norm = batch_norm(mean, var, self.norm.weight, self.norm.bias, self.training)
        return transfuse.conv_transpose(x, self.weight, then=[norm])


def called(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def exported(module: torch.nn.Module, strict: bool = False) -> Any:
    sizes = {0: Dim("n"), 2: Dim("h"), 3: Dim("w")}
    return torch.export.export(module, (X,), dynamic_shapes=(sizes,), strict=strict)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_one_node_with_sizes_left_open(strict: bool) -> None:
    module = Up()
    program = exported(module, strict)
    assert [each for each in called(program) if "sym_" not in each] == ["transfuse.chain.default"]
    for shape in ((2, 4, 7, 9), (3, 4, 5, 5), (1, 4, 12, 3)):
        x = torch.randn(shape)
        assert program.module()(x).equal(module(x))


class Skipping(torch.nn.Module):
    """One that is as large as what it is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.up = transfuse.nn.FusedConvTranspose(4, 6, (3, 3), stride=2, then=[add("skip")])

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.up(x, output_size=skip.shape[2:], skip=skip)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sizes_asked_for_are_left_open(strict: bool) -> None:
    module, sizes = Skipping(), ({0: Dim("n"), 2: Dim.AUTO}, {0: Dim("n"), 2: Dim.AUTO})
    given = X, torch.randn(2, 6, 15, 20)
    program = torch.export.export(module, given, dynamic_shapes=sizes, strict=strict)
    for n, high in ((2, 7), (3, 5), (1, 11)):
        x, skip = torch.randn(n, 4, high, 9), torch.randn(n, 6, 2 * high + 1, 20)
        assert program.module()(x, skip).equal(module(x, skip))


LOAD = """
import sys, torch, transfuse
program = torch.export.load(sys.argv[1])
x, y = torch.load(sys.argv[2])
assert program.module()(x).equal(y)
"""


def test_saved_and_loaded_in_a_new_process(tmp_path: Path) -> None:
    module, x = Up(), torch.randn(3, 4, 5, 6)
    program, values = tmp_path / "up.pt2", tmp_path / "values.pt"
    torch.export.save(exported(module), program)
    torch.save((x, module(x).detach()), values)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(program), str(values)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_running_statistics() -> None:
    module = Learning().train()
    program = exported(module)
    assert "transfuse.chain_updating.default" in called(program)
    ran = program.module()
    for _ in range(2):
        x = torch.randn(2, 4, 5, 5)
        with torch.no_grad():  # with gradients a call keeps what a traced one does not
            assert ran(x).equal(module(x))
    moved = dict(ran.named_buffers())
    assert moved["norm.running_mean"].equal(module.norm.running_mean)
    assert moved["norm.running_var"].equal(module.norm.running_var)


@pytest.mark.parametrize("name", CASES)
def test_decomposed(name: str) -> None:
    """Torch's operations give the same sizes and strides, and the values of the eager backend."""
    chain, problem = CASES[name]
    given = arguments(chain, problem, tensors(name))
    decompose = transfuse.ops.decompositions()[torch.ops.transfuse.chain.default]
    found, expected = decompose(*given), torch.ops.transfuse.chain(*given)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def test_a_program_without_our_operations() -> None:
    module = Up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies what it has deprecated
        program = exported(module).run_decompositions(transfuse.ops.decompositions())
    assert not any("transfuse" in each for each in called(program))
    assert any(each.startswith("aten.conv") for each in called(program))
    x = torch.randn(3, 4, 6, 5)
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["at once", "decomposed first"])
def test_onnx(way: str, tmp_path: Path) -> None:
    """Standard operators alone, which onnxruntime runs to the same result."""
    runtime = pytest.importorskip("onnxruntime", reason="nothing here runs ONNX files")
    pytest.importorskip("onnxscript", reason="torch's exporter writes with onnxscript")
    module, file = Up(), str(tmp_path / "up.onnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if way == "at once":
            program = torch.onnx.export(module, (X,), dynamo=True, verbose=False)
        else:
            plain = exported(module).run_decompositions(transfuse.ops.decompositions())
            program = torch.onnx.export(plain, dynamo=True, verbose=False)
    assert program is not None
    program.save(file)
    assert {node.domain for node in program.model_proto.graph.node} <= {"", "ai.onnx"}
    session = runtime.InferenceSession(file)
    for x in (X, 1.5 * X):
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(found), module(x).detach(), rtol=1e-4, atol=1e-4
        )
