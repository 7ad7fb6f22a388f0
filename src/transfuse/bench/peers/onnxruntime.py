"""ONNX Runtime on CPU: the chain as an ONNX graph, with every graph optimisation it has."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transfuse.arrays import adopt
from transfuse.bench.peers.base import Missing, Runner, Work, library
from transfuse.bench.peers.onnx_graph import INPUT, OUTPUT, onnx_model

FATAL = 4  # the highest log level


@dataclass(frozen=True)
class OnnxRuntime:
    name: str = "onnxruntime"
    trains: bool = False

    def build(self, work: Work) -> Runner:
        if work.problem.device != "cpu":
            raise Missing("onnxruntime is compared on CPUs only")
        ort = library("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = FATAL
        # Between its calls others are timed: its threads must not spin while they are.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        model = onnx_model(work.chain, work.problem, work.weight, work.operands)
        try:
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except ort.capi.onnxruntime_pybind11_state.NotImplemented as error:
            reason = str(error).partition("NOT_IMPLEMENTED : ")[2]
            raise Missing(f"onnxruntime has no {work.problem.dtype} here: {reason}") from error

        def adapt(x: Tensor) -> Any:
            binding = session.io_binding()
            binding.bind_ortvalue_input(INPUT, ort.OrtValue.from_dlpack(x.contiguous()))
            binding.bind_output(OUTPUT)
            return binding

        def run(binding: Any) -> Any:
            session.run_with_iobinding(binding)
            return binding

        def collect(binding: Any) -> Tensor:
            # A copy: the next call may write to the same memory.
            return adopt("y", binding.get_outputs()[0]).clone()

        return Runner(run, adapt, collect)


PEERS = (OnnxRuntime(),)
