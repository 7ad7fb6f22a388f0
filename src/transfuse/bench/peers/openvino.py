"""OpenVINO on CPU: the chain as an ONNX graph, compiled for the latency of one call."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transfuse.arrays import adopt
from transfuse.bench.peers.base import Missing, Runner, Work, library
from transfuse.bench.peers.onnx_graph import onnx_model

ARITHMETIC = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
"""Always said: left alone, OpenVINO computes float32 in bfloat16 where the CPU has it."""


@dataclass(frozen=True)
class OpenVino:
    name: str = "OpenVINO"

    def build(self, work: Work) -> Runner:
        problem = work.problem
        if problem.device != "cpu":
            raise Missing("OpenVINO is compared on CPUs only")
        if problem.dtype not in ARITHMETIC:
            raise Missing("OpenVINO computes float64 in float32 on a CPU")
        openvino = library("openvino")
        core = openvino.Core()
        model = onnx_model(work.chain, problem, work.weight, work.operands)
        compiled = core.compile_model(
            core.read_model(model.SerializeToString()),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": ARITHMETIC[problem.dtype],
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "LOG_LEVEL": "LOG_NONE",
            },
        )

        def adapt(x: Tensor) -> Any:
            request = compiled.create_infer_request()
            request.set_input_tensor(openvino.Tensor(compiled.input(0), _memory(x.contiguous())))
            return request

        def run(request: Any) -> Any:
            request.infer(share_outputs=True)
            return request

        def collect(request: Any) -> Tensor:
            # A copy: the next call writes to the same memory.
            return adopt("y", request.get_output_tensor(0).data).view(work.x.dtype).clone()

        return Runner(run, adapt, collect)


def _memory(x: Tensor) -> "np.ndarray[Any, Any]":
    """The tensor's own memory; NumPy has no bfloat16, so that goes as 16-bit integers."""
    array: np.ndarray[Any, Any] = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


PEERS = (OpenVino(),)
