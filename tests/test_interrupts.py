"""Ctrl-C at any moment of a call arrives, and the next call is right."""

import signal
import subprocess
import sys

import pytest

LOOP = """
import gc, random, signal, sys, torch, transfuse
import torch.nn.functional as F
from transfuse.backends.cpu import results, weights
from transfuse.stages import group_norm, sigmoid

wanted = int(sys.argv[1])
fired = arrived = 0

def fire(*_):
    global fired
    fired += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, fire)
torch.manual_seed(0)
x = torch.randn(1, 4, 128, 128)
ws = [torch.randn(4, 8, 2, 2) for _ in range(5)]
norm = [group_norm(2, torch.randn(8), torch.randn(8)), sigmoid()]
kinds = [
    lambda w: transfuse.conv_transpose2d(x, w, stride=2, backend="cpu"),  # 2 MiB
    lambda w: transfuse.conv_transpose2d(x[..., :9, :7], w, stride=2, backend="cpu"),
    lambda w: transfuse.conv_transpose(x, w, stride=2, then=norm, backend="cpu"),
    lambda w: transfuse.conv_transpose2d(x[0], w, stride=2, backend="cpu"),
]
right = [kind(w) for w in ws for kind in kinds]
assert torch.allclose(right[0], F.conv_transpose2d(x, ws[0], stride=2), atol=1e-4)
ready = random.Random(0)

def tensors():
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

before = tensors()
while arrived < wanted:
    try:
        signal.setitimer(signal.ITIMER_REAL, ready.uniform(0.0002, 0.006))
        while fired == arrived:
            if ready.random() < 0.2:
                weights._kept.clear()  # so that packing is interrupted, too
            for w in ws:
                for kind in kinds:
                    kind(w)
        sys.exit(f"interrupt {fired} was lost")
    except KeyboardInterrupt:
        arrived += 1
    if arrived % 10 == 0:
        found = [kind(w) for w in ws for kind in kinds]
        if not all(map(torch.equal, found, right)):
            sys.exit(f"a wrong result after interrupt {arrived}")
        del found
if tensors() > before + 5:
    sys.exit(f"{tensors() - before} tensors were left behind")
held = sum(each.storage.nbytes() for each in results._held.values())
if held > results.MOST or len(results._held) > results.PIECES:
    sys.exit(f"{held} bytes are held in {len(results._held)} storages")
print("all arrived")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs Unix's timers")
@pytest.mark.parametrize("count", [50, pytest.param(800, marks=pytest.mark.long)])
def test_interrupts_arrive(count: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOOP, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all arrived\n", "")
