"""Results made up: of a CPU and of two runs on a GPU, with everything that can go wrong."""

from dataclasses import replace
from pathlib import Path

from transfuse.bench.record import OURS, Row, Run, Spread

MAX = "conv-transpose3d-max-max-sum"
ASYM = "conv-transpose-2d-square-input-asym-kernel"
BREAKS = "</script><script>window.hacked=1</script>"
TAG = '<img src=x onerror="window.hacked=2">'
LINK = '<a href="//e">p</a>'
RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("[ch]*.jsonl"))
"""The files of the repository, which are not made up."""

CPU = Run(
    id="cpu-1",
    command=f"transfuse bench {TAG}",
    started="2026-11-03T10:12:00+00:00",
    device="cpu",
    seed=7,
    commit="e9c42ae",
    environment={"cpu": TAG, "packages": {"torch": "2.13.0", "jax": None}, "gpus": []},
    copy=[(2**28, 2.13e10), (2**20, 8.1e10)],
    matmul={"fp32": 1.9e11},
)
GPU = replace(
    CPU,
    id="gpu-1",
    command="transfuse bench --device cuda",
    device="cuda:sm90",
    copy=[(2**30, 4.1e12)],
    matmul={"bf16": 7.6e14},
)
GPU_AGAIN = replace(GPU, id="gpu-2", commit=None, copy=[], matmul={"tf32": 3.9e14})


def row(run, slug, name, precision, variant, ms=None, ratio=None, **more):
    """A row of ``ms`` milliseconds, at ``ratio`` (p20, median, p80) times ours."""
    facts = {
        "case": f"n8 ci64 co64 {name} {precision}",
        "status": "ok",
        "flops": 40_000_000,
        "bytes": 2_000_000,
        "floor": 2e-4,
        "floor_of_definition": 1e-4,
    }
    if ms is not None:
        facts["time"] = Spread(ms / 1e3, ms / 1.1e3, ms / 0.9e3)
    if ratio is not None:
        facts["ratio"] = Spread(ratio[1], ratio[0], ratio[2])
    facts |= more
    return Row(run.id, slug, name, facts.pop("case"), precision, run.device, variant, **facts)


def absent(run, slug, name, precision, variant, status, reason, **more):
    return row(run, slug, name, precision, variant, status=status, reason=reason, **more)


ON_CPU = [
    row(CPU, MAX, "benchmark", "fp32", OURS, 1.0, (1, 1, 1), backend="cpu", error=0.25),
    row(CPU, MAX, "benchmark", "fp32", "torch eager", 1.85, (1.8, 1.85, 1.9), error=0.5),
    row(CPU, MAX, "benchmark", "fp32", "torch compile", 0.5, (0.45, 0.5, 0.55), first_call=12.5),
    absent(CPU, MAX, "benchmark", "fp32", "jax", "missing", "jax is not installed"),
    absent(CPU, MAX, "benchmark", "fp32", LINK, "wrong", f"off {TAG}", error=float("inf")),
    row(CPU, ASYM, "benchmark", "fp32", OURS, 12.0, (1, 1, 1), backend="cpu", peak_bytes=3_000_000),
    row(CPU, ASYM, "benchmark", "fp32", "torch eager", 12.1, (0.97, 1.01, 1.04), peak_bytes=10**9),
    row(CPU, ASYM, "benchmark", "fp32", "jax", 0.1, (0.01, 0.01, 0.01), impossible=True),
    row(CPU, ASYM, BREAKS, "fp32", OURS, 3.0, (1, 1, 1), backend="eager", case=BREAKS),
    row(CPU, ASYM, BREAKS, "fp32", LINK, 9.0, (2.9, 3.0, 3.1), case=BREAKS),
    *(
        row(CPU, MAX, "sizes", "fp32", variant, ms * at, ratio, axis="batch", at=at, case=f"n{at}")
        for at in (16, 1, 2)
        for variant, ms, ratio in ((OURS, 1.0, (1, 1, 1)), ("torch eager", 2.5, (2.4, 2.5, 2.6)))
    ),
]
ON_GPU = [
    row(GPU, MAX, "benchmark", "bf16", OURS, 0.02, (1, 1, 1), backend="triton", first_call=0.75),
    row(GPU, MAX, "benchmark", "bf16", "torch eager", 0.13, (6.4, 6.5, 6.6), first_call=0.05),
    absent(GPU, MAX, "benchmark", "bf16", "torch compile", "failed", "RuntimeError: no memory"),
    row(GPU_AGAIN, MAX, "benchmark", "tf32", OURS, 0.03, (1, 1, 1), backend="triton"),
    row(GPU_AGAIN, MAX, "benchmark", "tf32", "torch eager", 0.02, (0.6, 0.7, 0.8)),
]
MODELS = [
    row(CPU, "model", name, "fp32", variant, ms, ratio, peak_bytes=10**7)
    for name, eager, compiled in (("dcgan", 2.0, 1.25), ("unet", 0.5, 3.0))
    for variant, ms, ratio in (
        (OURS, 1.0, (1, 1, 1)),
        ("torch eager", eager, (0.9 * eager, eager, 1.1 * eager)),
        ("torch compile", compiled, (0.9 * compiled, compiled, 1.1 * compiled)),
        ("compile backend", 0.8, (0.7, 0.8, 0.9)),
    )
]
ON_CPU += MODELS
ROWS = ON_CPU + ON_GPU


def resize(browser, width, height):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def scheme(browser, name):
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
