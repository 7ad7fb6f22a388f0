"""Run calls of the core on NumPy arrays where torch cannot be imported: LIBRARY, FOLDER."""

import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np

assert "torch" not in sys.modules
sys.modules["torch"] = None  # type: ignore[assignment]  # whoever imports it fails

core = ctypes.CDLL(sys.argv[1])
core.transfuse_message.restype = ctypes.c_char_p
folder = Path(sys.argv[2])
tasks = Path("/proc/self/task")
before = len(list(tasks.glob("*")))
KINDS = {"pointer": ctypes.c_void_p, "size_t": ctypes.c_size_t, "double": ctypes.c_double}
for call in json.loads((folder / "calls.json").read_text()):
    arrays = {name: np.load(folder / file) for name, file in call["arrays"].items()}
    function = getattr(core, call["function"])
    function.argtypes = [KINDS[kind] for _, kind, _ in call["arguments"]]
    arguments = (
        arrays[name].ctypes.data if kind == "pointer" else value
        for name, kind, value in call["arguments"]
    )
    assert function(*arguments) == 0, core.transfuse_message()
    np.save(folder / call["arrays"]["output"], arrays["output"])
if tasks.exists():
    assert len(list(tasks.glob("*"))) - before == int(os.environ["OMP_NUM_THREADS"]) - 1
