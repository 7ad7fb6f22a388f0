"""The Hopper loop as machine code, made without a GPU: what must be in it, what must not."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="no Triton here")
pytest.importorskip("triton.experimental.gluon", reason="no Gluon in this Triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton.experimental.gluon.language import NVMMASharedLayout  # noqa: E402

from transfuse.backends.triton.engines.hopper_strip import strip_turns  # noqa: E402
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (  # noqa: E402
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import (  # noqa: E402
    SHARED,
    StripTiling,
    choose,
    configs,
    verdict,
)
from transfuse.backends.triton.epilogue.op_table import OpTable  # noqa: E402
from transfuse.backends.triton.epilogue.records import Epilogue  # noqa: E402
from transfuse.backends.triton.installed import any_row  # noqa: E402
from transfuse.backends.triton.segments import Node  # noqa: E402
from transfuse.backends.triton.strides import CHANNELS, WIDTH  # noqa: E402
from transfuse.backends.triton.tap_table import TapTable  # noqa: E402
from transfuse.geometry import Axis  # noqa: E402

FUSING = {"enable_fp_fusion": True}
TARGET = GPUTarget("cuda", 90, 32)
strips = pytest.mark.skipif(not any_row(), reason="Gluon views no rows from any one on")
SOFTMAX = ("add", "softmax", "add", "sigmoid")
VALUE, SLOPE, ZERO = Node("x"), Node("tensor"), Node("number")
PRELU = Node(
    "where", parts=(Node("lt", parts=(ZERO, VALUE)), VALUE, Node("mul", parts=(SLOPE, VALUE)))
)


class Stub:
    """A driver that knows its target and nothing else."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def without_gpu() -> Iterator[None]:
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(Stub())
    yield
    driver._active = before


@dataclass(frozen=True)
class Trial:
    batch: int
    inputs: int
    outputs: int
    axes: tuple[Axis, ...]
    axis: int = 0
    ops: tuple[str, ...] = ()
    cross: bool = True
    late: str = ""
    last: bool = False  # channels lie innermost


PLAIN = Trial(8, 64, 64, (Axis(512, 3), Axis(512, 7)), cross=False)
SOFT = Trial(128, 64, 128, (Axis(64, 4, 2, 1, 1, 1),) * 2, axis=1, ops=SOFTMAX)
TRIALS = {
    "plain tf32": ("fp32", PLAIN),
    "plain fp16": ("fp16", PLAIN),
    "softmax tf32": ("fp32", SOFT),
    "softmax fp16": ("fp16", SOFT),
    "softmax bf16": ("bf16", SOFT),
    "3-D with a statistic": (
        "fp32",
        Trial(4, 32, 64, (Axis(8, 3, 2, 1, 1, 1),) * 3, cross=False, late="exponentials"),
    ),
    "ragged channels": ("fp16", Trial(3, 48, 40, (Axis(19, 3, 2, 1, 3, 1), Axis(23, 3, 1)))),
    "weights held": ("fp16", Trial(128, 64, 128, (Axis(64, 4, 2, 1),) * 2, axis=1, ops=SOFTMAX)),
    "a map": ("fp16", replace(SOFT, ops=(*SOFTMAX, "map"))),
    "many channels": ("fp16", Trial(2, 24, 200, (Axis(9, 3), Axis(30, 4, 2)))),
    "channels last": ("fp16", replace(SOFT, last=True)),
    "channels last, two at a time": (
        "fp32",
        Trial(2, 64, 70, (Axis(30, 3, 1, 1), Axis(40, 3, 1, 1)), axis=1, last=True),
    ),
    "summed": ("bf16", Trial(2, 33, 100, (Axis(50, 4, 2),), axis=1, ops=("sum",))),
}


def geometry_of(trial: Trial, itemsize: int) -> StripGeometry:
    results = tuple(each.size for each in trial.axes)
    tap_table = TapTable.of(trial.axes, ((1, 1, 0),) * len(trial.axes), results, False)
    assert verdict(tap_table, trial.outputs, itemsize, 1, False) == ""
    kept = -(-trial.inputs * itemsize // 16) * 16 // itemsize
    return StripGeometry.of(tap_table, trial.batch, trial.outputs, kept, trial.cross)


def results_of(trial: Trial, geometry: StripGeometry, itemsize: int) -> ResultLayout:
    d, h, w = geometry.results
    channels = 1 if "sum" in trial.ops else trial.outputs
    if trial.last:
        return ResultLayout(
            (channels * d * h * w, 1, channels * h * w, channels * w, channels), itemsize
        )
    return ResultLayout((channels * d * h * w, d * h * w, h * w, w, 1), itemsize)


def after_of(trial: Trial) -> Epilogue:
    ones = (1,) * len(trial.ops)
    at = tuple(1 if i == 2 else 0 for i in range(len(trial.ops)))
    return Epilogue(
        before=OpTable(),
        after=OpTable(
            trial.ops,
            at,
            number=at,
            size=ones,
            count=ones,
            factor=tuple(-1 for _ in ones),
            expr=tuple(PRELU if op == "map" else None for op in trial.ops),
            tensors=tuple(int(op == "map") for op in trial.ops),
            places=tuple((None,) if op == "map" else () for op in trial.ops),
        ),
        sign=0,
        early="",
        late=trial.late,
        summed="sum" in trial.ops,
        stored=True,
        inner=CHANNELS if trial.last else WIDTH,
        unit=4,
        wide=False,
    )


@dataclass(frozen=True)
class Chosen:
    """A trial as it is compiled."""

    geometry: StripGeometry
    after: Epilogue
    results: ResultLayout
    config: StripTiling

    @property
    def room(self) -> int:
        return self.config.room(self.geometry, self.after, self.results)


def chosen(trial: Trial, itemsize: int) -> Chosen:
    geometry, after = geometry_of(trial, itemsize), after_of(trial)
    results = results_of(trial, geometry, itemsize)
    config = choose(geometry, itemsize, after, results)
    assert config is not None
    return Chosen(geometry, after, results, config)


def build(kind: str, each: Chosen) -> Any:
    from transfuse.backends.triton.engines.hopper_strip.strip_kernel import (
        AT_RUN_TIME,
        convolve_strip,
    )

    geometry, config = each.geometry, each.config
    layout = NVMMASharedLayout(config.swizzle, config.itemsize * 8, 2)
    x, halo, w = (
        f"tensordesc<{kind}[{rows}, {config.depth}],{layout!r}>"
        for rows in (config.box, config.halo or config.box, config.channels)
    )
    known = {
        "x": x, "halo": halo, "w": w, "out": f"*{kind}", "tensors": ("*fp32",) * 2,
        "numbers": ("fp32",) * 3, "partials": "*fp32",
        "entries": ("i32",) * 3 * sum(geometry.classes[:2]),
        "P": "constexpr", "C": "constexpr", "A": "constexpr",
    } | dict.fromkeys(AT_RUN_TIME, "i32")  # fmt: skip
    names = convolve_strip.arg_names
    pattern = geometry.pattern(config.channels, each.results.strides)
    static = {(names.index(n),): v for n, v in (("P", pattern), ("C", config), ("A", each.after))}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in ("out", "partials")}
    signature = {name: known[name] for name in names}
    source = GluonASTSource(convolve_strip, signature, static, aligned)
    options = FUSING | {"num_warps": 4, "maxnreg": None if config.consumers == 2 else 128}
    return triton.compile(source, target=TARGET, options=options)


def spilled(ptx: str, folder: Path) -> int:
    """Bytes that the assembler moves out of registers."""
    ptxas = get_ptxas(90).path
    file = folder / "kernel.ptx"
    file.write_text(ptx)
    command = [ptxas, "-v", "--gpu-name=sm_90a", file, "-o", folder / "kernel.cubin"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", told))


def machine_code(cubin: bytes, folder: Path) -> list[str]:
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    told = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True).stdout
    return told.splitlines()


def early(cubin: bytes, folder: Path) -> list[str]:
    """Instructions that touch sums between a product and the wait for it.

    ``ptxas`` 12.8 makes such, under register pressure, of code that waits behind a loop.
    """
    flying: set[int] = set()
    found = []
    for line in machine_code(cubin, folder):
        if product := re.search(r"HGMMA\.64x(\d+)x\S+ R(\d+),", line):
            wide, first = int(product[1]), int(product[2])
            flying |= set(range(first, first + wide // 2))
        elif "DEPBAR.LE gsb0, 0x0" in line:
            flying = set()
        elif flying & {int(n) for n in re.findall(r"\bR(\d+)\b", line)}:
            found.append(line.strip())
    return found


@strips
@pytest.mark.parametrize(
    "name",
    [
        each
        if each in ("plain tf32", "softmax fp16", "a map", "channels last")
        else pytest.param(each, marks=pytest.mark.long)
        for each in TRIALS
    ],
)
def test_machine_code(name: str, tmp_path: Path) -> None:
    kind, trial = TRIALS[name]
    itemsize = 4 if kind == "fp32" else 2
    each = chosen(trial, itemsize)
    assert each.config.axis == trial.axis
    assert_fast(kind, trial, each, tmp_path)


def assert_fast(kind: str, trial: Trial, each: Chosen, tmp_path: Path) -> None:
    """Operands go from shared memory to the tensor cores, sums and results stay in registers."""
    geometry, config = each.geometry, each.config
    itemsize = config.itemsize
    kernel = build(kind, each)
    ptx, ttgir = kernel.asm["ptx"], kernel.asm["ttgir"]
    steps = config.depth * itemsize // 32
    rows = config.channels if config.axis == 0 else config.positions
    biased = config.bias(geometry.channels <= config.channels, each.after.after) >= 0
    assert biased == (itemsize == 2 and trial.ops[:1] == ("add",))
    products = len(geometry.taps) * steps + biased * geometry.joined
    assert ptx.count("wgmma.mma_async") == config.consumers * products * (rows // 64)
    assert "cp.async.bulk.tensor.2d.shared" in ptx
    assert "ttg.local_load" not in ttgir
    assert kernel.metadata.shared <= each.room <= SHARED
    assert spilled(ptx, tmp_path) <= 64
    assert early(kernel.asm["cubin"], tmp_path) == []
    if config.store != "tile":
        stores = re.findall(r"st\.global\.(?:v(\d)\.)?b(\d+)", ptx)
        assert 8 * itemsize * config.vector in {int(many or 1) * int(bits) for many, bits in stores}


TANH = Trial(8, 64, 64, (Axis(256, 4, 2, 1, 1, 1),) * 2, ops=("add", "tanh"))
TURNS = {
    "softmax tf32": ("fp32", SOFT),  # more than half of the weights stay
    "tanh fp16": ("fp16", TANH),  # all of them
    "softmax last": ("fp32", replace(SOFT, last=True)),
    "tanh tf32": ("fp32", TANH),
    "a statistic": ("bf16", Trial(4, 32, 64, (Axis(60, 4, 2, 1),) * 2, late="moments")),
}


@strips
@pytest.mark.parametrize(
    "name",
    [
        each if each == "softmax tf32" else pytest.param(each, marks=pytest.mark.long)
        for each in TURNS
    ],
)
def test_consumers_take_turns(name: str, tmp_path: Path) -> None:
    kind, trial = TURNS[name]
    each = chosen(trial, 4 if kind == "fp32" else 2)
    found = strip_turns.configs(each.geometry, each.config.itemsize, each.after, each.results)
    config = next(found)
    assert config.own
    assert config.back == name.startswith("softmax")
    assert_fast(kind, trial, replace(each, config=config), tmp_path)


@pytest.mark.long
@strips
def test_rows_are_stored_from_few_addresses() -> None:
    """A row of 129: no vectors, but channels lie at one distance: an addition each."""
    each = chosen(SOFT, 4)
    first = next(configs(each.geometry, 4, each.after, each.results))
    ptx = build("fp32", replace(each, config=first)).asm["ptx"]
    stores = len(re.findall(r"st\.global\.b32", ptx))
    added = Counter(re.findall(r"add\.s64\s+%rd\d+, %rd\d+, (%rd\d+);", ptx))
    assert sum(count for _, count in added.most_common(2)) >= 0.9 * stores > 200


@pytest.mark.long
@strips
@pytest.mark.parametrize(("kind", "additions"), [("fp16", 0), ("fp32", 128 * 2)])
def test_sums_start_from_the_bias(kind: str, additions: int, tmp_path: Path) -> None:
    """In 16 bits a bias takes no additions; otherwise one for each of a thread's 128 results."""
    counts = []
    for ops in (SOFTMAX, SOFTMAX[1:]):
        each = chosen(replace(SOFT, ops=ops), 4 if kind == "fp32" else 2)
        code = machine_code(build(kind, each).asm["cubin"], tmp_path)
        counts.append(sum(" FADD" in line for line in code))
    assert counts[0] - counts[1] == additions


@pytest.mark.long
@strips
def test_sums_are_waited_for(tmp_path: Path) -> None:
    """Where registers are short, the assembler may round sums before they are there."""
    axes = (Axis(5, 3, 1, 1), Axis(7, 2), Axis(9, 5, 1, 2))
    each = chosen(Trial(1, 96, 17, axes, cross=False), 2)
    assert not each.geometry.linear(each.results.strides)
    kernel = build("fp16", replace(each, config=replace(each.config, store="tile", w_stages=8)))
    assert early(kernel.asm["cubin"], tmp_path) == []


def test_window(tmp_path: Path) -> None:
    """Two members of a window at once: three accumulators, none of them spilled."""
    from transfuse.backends.triton.engines.hopper_window.window_kernel import (
        AT_RUN_TIME,
        convolve_window,
    )
    from transfuse.backends.triton.engines.hopper_window.window_layout import (
        choose as choose_window,
    )

    tap_table = TapTable.of((Axis(32, 5, 2, 2),) * 3, ((6, 6, 0),) * 3, (10, 10, 10), False)
    chosen = choose_window(tap_table, 16, 64, 32, 32, 4, "max", 132)
    assert chosen is not None
    geometry, rings = chosen
    after = replace(after_of(SOFT), after=OpTable(), inner=CHANNELS)
    layouts = [NVMMASharedLayout(rings.swizzle, 32, rank) for rank in (5, 2)]
    box = ", ".join(map(str, (*geometry.box, rings.depth)))
    known = {
        "x": f"tensordesc<fp32[{box}],{layouts[0]!r}>",
        "w": f"tensordesc<fp32[{geometry.padded}, {rings.depth}],{layouts[1]!r}>",
        "out": "*fp32", "tensors": ("*fp32",), "numbers": ("fp32",),
        "entries": ("i32",) * 3 * sum(geometry.members[:2]), "tops": ("i32",) * len(geometry.tops),
        "P": "constexpr", "C": "constexpr", "A": "constexpr",
    } | dict.fromkeys(AT_RUN_TIME, "i32")  # fmt: skip
    names = convolve_window.arg_names
    signature = {name: known[name] for name in names}
    static = (("P", geometry.pattern), ("C", rings), ("A", after))
    static = {(names.index(name),): value for name, value in static}
    source = GluonASTSource(convolve_window, signature, static, {})
    kernel = triton.compile(source, target=TARGET, options=FUSING | {"num_warps": 4})
    ptx = kernel.asm["ptx"]
    assert ptx.count("wgmma.mma_async") == 2 * 5 * 4
    assert "cp.async.bulk.tensor.5d.shared" in ptx
    assert "ttg.local_load" not in kernel.asm["ttgir"]
    assert kernel.metadata.shared <= SHARED
    assert spilled(ptx, tmp_path) == 0
    assert early(kernel.asm["cubin"], tmp_path) == []
