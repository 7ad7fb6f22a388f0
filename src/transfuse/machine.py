"""What this machine offers, for bug reports."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from transfuse import settings
from transfuse.backends import BACKENDS
from transfuse.backends.cpu import library
from transfuse.backends.triton import tuned_files
from transfuse.backends.triton.store import shelves

PACKAGES = ("transfuse", "torch", "numpy", "triton", "onnxruntime", "openvino", "jax")


def environment() -> dict[str, Any]:
    """Versions, processor, memory and GPUs; nothing is imported that was not needed before."""
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "instructions": _instructions(),
        "gpus": [_gpu(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "backends": [backend.name for backend in BACKENDS],
        "settings": vars(settings.read()),
        "tuned": tuned_files.files(),
        "kernels": shelves.counted(),
    }


def place(device: str) -> str:
    """A device of this machine as problem lines name it: cpu, cuda:sm90."""
    if device == "cpu":
        return "cpu"
    gpus = torch.cuda.device_count()
    if device != "cuda" or not gpus:
        here = "cpu, cuda" if gpus else "cpu"
        raise ValueError(f"device {device!r} is not here; this machine has {here}")
    return f"cuda:{_gpu(0)['capability']}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _instructions() -> str:
    """The instruction set that the CPU core uses, and those it could; or why there is none."""
    try:
        core = library.load()
    except (OSError, RuntimeError, ValueError) as fault:
        return str(fault)
    if core is None:
        return "the compiled core is not installed"
    return f"{core.transfuse_isa().decode()} (of {', '.join(library.isas(core))})"


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "capability": f"sm{properties.major}{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
    }
