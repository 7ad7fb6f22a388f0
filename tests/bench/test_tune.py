"""Tuning, in processes in which Triton interprets: right results only, nothing measured is lost."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

HEAD = """
import json, sys
from pathlib import Path
import torch
from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.workload import workload_of
from transfuse.backends.triton import calls, lower, tuned, tuned_files
from transfuse.bench import tune
from transfuse.bench.clock import HostClock
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, group_norm

def tuner(chain=Chain(conv_transpose(1)), line="n2 ci3 co8 i9 k3 s2", **options):
    return tune.Tuner(chain, Problem.parse(line), HostClock(), 600.0, **options)

file = Path(tuned_files.settings.tuned())
"""


@pytest.fixture
def child(tmp_path):
    """Run a script after ``HEAD``; gives what it prints, as JSON."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "TRANSFUSE_TUNED": str(tmp_path / "tuned.json"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }

    def run(script):
        words = [sys.executable, "-W", "ignore", "-c", HEAD + script]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_the_fastest_is_kept_and_then_taken(child):
    """Times are made up: the third candidate is the fastest."""
    found = child("""
times = {}
class Made(tune.Tuner):
    def _times(self, configs, rounds):
        for config in configs:
            times.setdefault(config, abs(len(times) - 2) + 1.0)
        return {config: times[config] for config in configs}

problem = Problem.parse("n2 ci3 co8 i9 k3 s2")
(outcome,) = Made(Chain(conv_transpose(1)), problem, HostClock(), 600.0, 5)
wanted = list(times)[2]
one = tuner()
(each,) = one.segments
shape = workload_of(one.lowered, one.core, each)
choice = tuned.choose(one.lowered, one.core, each, shape, "interpreter", 90)
entry = tuned_files.read(file)[outcome.key]
print(json.dumps([
    outcome.tried, outcome.best.config == wanted, outcome.heuristic.seconds, outcome.gain,
    choice.config == wanted, choice.source == str(file), entry.ms, entry.problem,
    next(iter(times)) == tiling.heuristic(shape, 90),
]))
""")
    line = "n2 ci3 co8 i9 k3 s2 p0 fp32 cpu"
    assert found == [5, True, 3.0, 3.0, True, True, 1000.0, line, True]


def test_a_wrong_or_a_failing_candidate_does_not_win(child):
    """One gives zeros at once, one writes nothing, one raises."""
    found = child("""
prepare, made = calls.prepare, []

class Quick:
    launches = ()
    def __init__(self, value):
        self.value = value
    def __call__(self, tensors):
        if self.value is not None:
            tensors[2].fill_(self.value)

def other(*args):
    result = prepare(*args)
    if args[6] is not None:  # not the one that asks which engine serves
        made.append(result)
        if len(made) == 2:
            return calls.Ready(Quick(0.0), result.plan)
        if len(made) == 3:
            return calls.Ready(Quick(None), result.plan)
        if len(made) == 4:
            raise RuntimeError("out of resource: shared memory\\nand more")
    return result

calls.prepare = other
(outcome,) = tuner(most=4)
print(json.dumps([outcome.tried, outcome.faults, outcome.best.config == outcome.heuristic.config]))
""")
    tried, (zeros, nothing, raised), heuristic = found
    assert tried == 4
    assert zeros.endswith(" of 304 elements differ from the first")
    assert nothing == "304 of 304 elements differ from the first"
    assert raised == "RuntimeError: out of resource: shared memory"
    assert heuristic


@pytest.mark.long
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "RuntimeError"])
def test_what_an_interrupt_leaves_is_kept(child, error):
    """Two passes convolve, since so few products cost less than to store their sums; the interrupt
    comes at the second candidate of the second.
    """
    found = child(
        f"Error = {error}"
        + """
heard, done = [], []
def tell(trial, best):
    heard.append(trial)
    if len(heard) == 4:
        raise Error

one = tuner(Chain(conv_transpose(1), group_norm(2)), "n2 ci1 co8 i40 k3 s2", most=2, tell=tell)
try:
    for outcome in one:
        done.append(outcome)
    interrupted = False
except Error:
    interrupted = True
print(json.dumps([interrupted, len(one.segments), [each.tried for each in done],
                  [key.chain for key in tuned_files.read(file)]]))
"""
    )
    interrupted, passes, tried, chains = found
    assert (interrupted, passes, tried) == (True, 2, [2, 2])
    assert len(chains) == 2
    assert chains[0] != chains[1]


def test_a_running_process_takes_new_tiles(child):
    found = child("""
from transfuse import conv_transpose as call
from transfuse.backends.triton.engines.portable.tile import Tile

tuned_files.FRESH = 0.0
generator = torch.Generator().manual_seed(0)
x, w = (torch.randn(*s, generator=generator) for s in ((2, 3, 9), (3, 8, 3)))

def tiles():
    made = list(calls._ready.values())[-1].launch_plan
    return [a.box for launch in made.launches for a in launch.arguments if isinstance(a, Tile)]

before = call(x, w, stride=2, backend="triton")
first, made = tiles()[0], len(calls._ready)
call(x, w, stride=2, backend="triton")
again = len(calls._ready)
one = tuner()
config = tiling.Tiling("rows", (1, 1, 1, 32), 16, 16, 4, 2)
key = tuned.key(one.lowered, one.core, one.segments[0], "interpreter")
entry = tuned_files.Measured(key, tuned_files.encoded(config), 1.0, "")
file.write_text(tuned_files.written([entry]))  # as another process does
after = call(x, w, stride=2, backend="triton")
close = torch.allclose(before, after, atol=1e-5)
print(json.dumps([made, again, first == config.box, tiles()[0] == config.box, close]))
""")
    assert found == [1, 1, False, True, True]
