"""OpenVINO on CPU: the chain as an ONNX graph, compiled for the latency of one call."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transfuse.arrays import adopt
from transfuse.bench.peers.base import Missing, Runner, Work, library
from transfuse.bench.peers.onnx_graph import onnx_model

TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


@dataclass(frozen=True)
class OpenVino:
    name: str = "OpenVINO"
    trains: bool = False

    def build(self, work: Work) -> Runner:
        problem = work.problem
        if problem.device != "cpu":
            raise Missing("OpenVINO is compared on CPUs only")
        if problem.dtype not in TYPES:
            raise Missing("OpenVINO computes float64 in float32 on a CPU")
        openvino = library("openvino")
        core = openvino.Core()
        wanted = _arithmetic(core, problem.dtype)
        model = onnx_model(work.chain, problem, work.weight, work.operands)
        compiled = core.compile_model(
            core.read_model(model.SerializeToString()),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": wanted,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "LOG_LEVEL": "LOG_NONE",
            },
        )
        arithmetic = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if arithmetic != wanted:
            raise Missing(f"OpenVINO computes {problem.dtype} in {arithmetic} here, not {wanted}")

        def adapt(x: Tensor) -> Any:
            request, port = compiled.create_infer_request(), compiled.input(0)
            memory = _memory(x.contiguous())
            request.set_input_tensor(openvino.Tensor(memory, port.shape, port.element_type))
            return request, memory  # the request does not keep the memory alive

        def run(native: Any) -> Any:
            request, _ = native
            request.infer(share_outputs=True)
            return request

        def collect(request: Any) -> Tensor:
            # A copy: the next call writes to the same memory.
            return adopt("y", request.get_output_tensor(0).data).view(work.x.dtype).clone()

        return Runner(run, adapt, collect, note=f"{arithmetic} arithmetic")


def _arithmetic(core: Any, dtype: str) -> str:
    """The storage type's own where the CPU has it, else float32.

    Always said: left alone, OpenVINO computes float32 in bfloat16 where the CPU has that, and
    float16, too, where the CPU lacks it.
    """
    capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return TYPES[dtype] if dtype.upper() in capabilities else "f32"


def _memory(x: Tensor) -> np.ndarray:
    """The tensor's own memory; NumPy has no bfloat16, so that goes as 16-bit integers."""
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


PEERS = (OpenVino(),)
