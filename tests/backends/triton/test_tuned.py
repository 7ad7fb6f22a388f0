"""Tiles from files: which are taken, which refused, and that no writer loses another's."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transfuse import fills
from transfuse.accuracy import Oracle, longest_sum
from transfuse.backends.triton import Triton, lower, tuned, tuned_files
from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.workload import Workload, workload_of
from transfuse.backends.triton.segments import power
from transfuse.chain import Chain
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import (
    add,
    avg_pool,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    softmax,
    sum,
)

GPU = "NVIDIA H200"
TILES = tiling.Tiling("rows", (1, 1, 1, 64), 64, 32, 4, 3)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """A user's file of this test's own; nothing is shipped."""
    path = tmp_path / "cache" / "tuned.json"
    monkeypatch.setenv("TRANSFUSE_TUNED", str(path))
    monkeypatch.setattr(tuned_files, "SHIPPED", tmp_path / "shipped")
    tuned_files.refresh()
    return path


def passes(chain: Chain, problem: Problem):
    """(lowered, core, pass, shape) of every pass that convolves."""
    plan = fused(chain, problem)
    lowered = lower.lowered(chain, plan)
    core = plan.chain.core(problem)
    return [
        (lowered, core, each, workload_of(lowered, core, each))
        for each in lowered.segments
        if each.convolves
    ]


def entry(number: int = 0, **changes) -> tuned_files.Measured:
    key = tuned_files.Key(GPU, "portable", "conv > store", f"n{number} ci1 co1 i1 k1 s1 p0", "tf32")
    return tuned_files.Measured(
        replace(key, **changes), tuned_files.encoded(TILES), 0.25, "n1 ci1 co1 i1 k1"
    )


PLAIN = Chain(conv_transpose(2))
PROBLEM = Problem.parse("n8 ci64 co64 i100x120 k3x7 fp32 tf32 cuda:sm90")


def chosen(problem: Problem = PROBLEM, gpu: str = GPU) -> tuned.ChosenTiling:
    ((lowered, core, each, shape),) = passes(PLAIN, problem)
    return tuned.choose(lowered, core, each, shape, gpu, 90)


def stored(config: tiling.Tiling, ms: float = 0.5, **changes) -> tuned_files.Measured:
    ((lowered, core, each, _),) = passes(PLAIN, PROBLEM)
    key = replace(tuned.key(lowered, core, each, GPU), **changes)
    return tuned_files.Measured(key, tuned_files.encoded(config), ms, str(PROBLEM))


def test_without_files_the_heuristic_decides():
    ((_, _, _, shape),) = passes(PLAIN, PROBLEM)
    assert chosen() == tuned.ChosenTiling(tiling.heuristic(shape, 90), "heuristic")
    assert chosen().config != TILES


def test_a_stored_choice_is_taken_for_its_bucket_and_no_other(file):
    tuned_files.put([stored(TILES)])
    assert chosen() == tuned.ChosenTiling(TILES, str(file))
    near = replace(PROBLEM, batch=5, spatial=(65, 128))
    assert chosen(near).config == TILES
    for other in (
        replace(PROBLEM, batch=9),
        replace(PROBLEM, spatial=(100, 129)),
        replace(PROBLEM, padding=(1, 1)),
        replace(PROBLEM, dilation=(2, 1)),
        replace(PROBLEM, in_channels=65),
        replace(PROBLEM, precision="ieee"),
        replace(PROBLEM, dtype="fp16", precision="ieee"),
    ):
        assert chosen(other).source == "heuristic", str(other)
    assert chosen(gpu="NVIDIA A100").source == "heuristic"


def test_an_entry_of_another_engine_is_kept_and_not_taken(file):
    strange = tuned_files.Measured(
        stored(TILES, engine="hopper").key, {"halo": 8}, 0.1, str(PROBLEM)
    )
    tuned_files.put([strange])
    assert chosen().source == "heuristic"
    tuned_files.put([stored(TILES)])
    assert strange in tuned_files.read(file).values()
    assert chosen().config == TILES


def test_the_users_file_goes_before_the_shipped_one(file):
    other = replace(TILES, stages=2)
    shipped = tuned_files.put([stored(other)], tuned_files.SHIPPED / "gpu.json")
    assert chosen() == tuned.ChosenTiling(other, str(shipped))
    tuned_files.put([stored(TILES)])
    assert chosen() == tuned.ChosenTiling(TILES, str(file))


def test_tiles_that_do_not_fit_give_way_to_the_heuristic(file):
    tuned_files.put([stored(replace(TILES, depth=64))])
    choice = chosen()
    assert choice.source == "heuristic"
    assert choice.note == f"{file} does not fit: 64 channels of 4 bytes pass a line of 128"


def test_a_change_of_the_file_is_seen_without_a_restart(file, monkeypatch):
    tuned_files.put([stored(TILES)])
    before = tuned_files.generation()
    assert tuned_files.generation() == before
    text = tuned_files.written([stored(replace(TILES, stages=2))])
    command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"]
    subprocess.run([*command, str(file), text], check=True)
    assert tuned_files.generation() == before, "looked at more often than said"
    monkeypatch.setattr(tuned_files, "FRESH", 0.0)
    assert tuned_files.generation() != before
    assert chosen().config.stages == 2
    file.unlink()
    assert chosen().source == "heuristic"


BROKEN = {
    "cut off": '{"schema": 1, "entries": [',
    "empty": "",
    "a list": "[]",
    "newer": '{"schema": 2, "entries": []}',
    "no schema": '{"entries": []}',
    "entry lacks fields": '{"schema": 1, "entries": [{"gpu": "x"}]}',
    "not text": "\udcff",
    "ms is text": tuned_files.written([entry()]).replace("0.25", '"fast"'),
    "tiles of text": tuned_files.written([entry()]).replace("[1, 1, 1, 64]", '"all"'),
    "tiles lack a field": tuned_files.written([entry()]).replace('"warps": 4, ', ""),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_by_name_and_left_as_it_is(file, text):
    shipped = tuned_files.put([stored(TILES)], tuned_files.SHIPPED / "gpu.json")
    file.parent.mkdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    held = file.read_bytes()
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        tuned_files.refresh()
    (message,) = [str(each.message) for each in caught]
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    tuned_files.refresh()  # it is said once; here a second warning would be an error
    assert chosen() == tuned.ChosenTiling(TILES, str(shipped))
    with pytest.raises(tuned_files.TunedFileError, match=file.name):
        tuned_files.put([entry()])
    assert file.read_bytes() == held


def test_a_newer_schema_is_called_by_its_number(file):
    file.parent.mkdir()
    file.write_text(BROKEN["newer"])
    with pytest.raises(tuned_files.TunedFileError, match="schema 2, and this transfuse reads 1"):
        tuned_files.read(file)


def test_the_shipped_files_are_valid():
    folder = Path(tuned.__file__).with_suffix("")
    files = sorted(folder.glob("*.json"))
    assert files
    for path in files:
        for each in tuned_files.read(path).values():
            assert each.key.engine != "portable" or tuned_files.decoded(each.config)


def test_files_read_back_as_they_were_written(file):
    entries = [entry(i, arithmetic=a) for i in range(3) for a in ("tf32", "fp16")]
    tuned_files.put(entries[:4])
    tuned_files.put(entries[2:])
    assert sorted(map(str, tuned_files.read(file).values())) == sorted(map(str, entries))
    assert json.loads(file.read_text())["schema"] == tuned_files.SCHEMA
    assert len(file.read_text().splitlines()) == len(entries) + 2
    better = replace(entries[0], ms=0.125)
    tuned_files.put([better])
    assert tuned_files.read(file)[better.key] == better


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_writer_that_fails_leaves_the_old_file(file, monkeypatch, call):
    tuned_files.put([entry(1)])
    real = getattr(os, call)

    def fails(*args, **options):
        if call != "open" or str(args[0]).endswith(".new"):
            raise KeyboardInterrupt
        return real(*args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails)
        with pytest.raises(KeyboardInterrupt):
            tuned_files.put([entry(2)])
    assert list(tuned_files.read(file)) == [entry(1).key]
    tuned_files.put([entry(3)])
    assert list(tuned_files.read(file)) == [entry(1).key, entry(3).key]


def test_a_link_to_the_file_stays_one(file, tmp_path):
    target = tmp_path / "elsewhere.json"
    file.parent.mkdir()
    file.symlink_to(target)
    tuned_files.put([entry()])
    assert file.is_symlink()
    assert tuned_files.read(target)


WRITER = """
import sys
from pathlib import Path
from transfuse.backends.triton import tuned, tuned_files

path, writer, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = {"form": "rows", "box": [1, 1, 1, 64], "channels": 64, "depth": 32, "warps": 4,
          "stages": 3}
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    key = tuned_files.Key("gpu", "portable", "conv > store", f"{writer} {i}", "tf32")
    tuned_files.put([tuned_files.Measured(key, config, 1.0, "")], path)
    print(i, flush=True)
"""


@pytest.mark.long
def test_writers_killed_at_any_time_lose_nothing_that_was_written(tmp_path):
    """Five write for themselves; three are killed in the midst of it, each at a time of its own."""
    path, count, draw = tmp_path / "tuned.json", 60, Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(writer), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for writer in range(5)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for victim in writers[:3]:
            time.sleep(draw.uniform(0.02, 0.2))
            tuned_files.read(path)  # raises where it is not whole
            victim.send_signal(signal.SIGKILL)
        told = [writer.communicate(timeout=120)[0].split() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers[3:]] == [0, 0]
    assert all(len(numbers) == count for numbers in told[3:])
    assert any(len(numbers) < count for numbers in told[:3]), "none was killed in time"
    held = {key.shape for key in tuned_files.read(path)}
    missing = [f"{w} {i}" for w, numbers in enumerate(told) for i in numbers]
    assert not set(missing) - held
    tuned_files.put([entry()], path)  # no lock outlives its holder
    left = {each.name for each in tmp_path.iterdir()}
    assert left - {"cache", "shipped"} == {"tuned.json", ".tuned.json.lock"}


CHAINS = {
    "plain": (PLAIN, "n2 ci3 co5 i3x5 k3 s1 p1"),
    "one tap of three": (PLAIN, "n1 ci2 co3 i2x3 k1x2 s3x2 p0 op1x0"),
    "grouped": (PLAIN, "n2 ci4 co6 i3x3 k2 s2 p0 g2"),
    "depthwise": (PLAIN, "n2 ci3 co6 i3x4 k3 s2 p1 g3"),
    "softmax": (
        Chain(conv_transpose(2, bias="b"), softmax("channels")),
        "n2 ci3 co5 i3x3 k4 s2 p1",
    ),
    "pooled": (
        Chain(conv_transpose(2), max_pool(2), sum("channels", keepdim=True)),
        "n3 ci3 co5 i3x4 k3 s2 p1",
    ),
    "averaged": (Chain(conv_transpose(1), avg_pool(4, 2), add("a")), "n2 ci3 co5 i9 k3 s2 p1"),
    "over the batch": (
        Chain(conv_transpose(1), batch_norm(weight="w", bias="b", training=True)),
        "n3 ci3 co4 i7 k3 s2 p1",
    ),
    "over a sample": (Chain(conv_transpose(1), group_norm(2, "w", "b")), "n3 ci3 co4 i7 k3 s2"),
    "deep": (Chain(conv_transpose(3), max_pool(2)), "n2 ci2 co3 i2x3x2 k2 s1 p0"),
}


def case(name: str, dtype: str = "fp32") -> tuple[Chain, Problem]:
    chain, line = CHAINS[name]
    return chain, Problem.parse(f"{line} {dtype}")


@st.composite
def shapes(draw) -> Workload:
    """The shape of a pass that convolves: of any chain above, at any size."""
    chain, problem = case(draw(st.sampled_from(list(CHAINS))), draw(st.sampled_from(DTYPES)))
    size = st.integers(1, 200)
    groups = 1 if problem.groups == 1 else draw(st.integers(1, 40))
    each = draw(st.integers(1, 70))
    problem = replace(
        problem,
        batch=draw(size),
        groups=groups,
        in_channels=groups * (1 if problem.groups == problem.in_channels else draw(size)),
        out_channels=groups * each * (2 if groups == 1 else 1),
        spatial=tuple(draw(st.integers(4, 300)) for _ in problem.spatial),
        stride=tuple(draw(st.integers(1, 8)) for _ in problem.stride),
        kernel=tuple(draw(st.integers(3, 9)) for _ in problem.kernel),
        output_padding=(0,) * problem.rank,
    )
    return draw(st.sampled_from(passes(chain, problem)))[3]


DTYPES = ("fp32", "fp64", "fp16", "bf16")
CAPABILITIES = (80, 86, 89, 90, 100, 120)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(shape=shapes(), capability=st.sampled_from(CAPABILITIES))
def test_what_the_heuristic_considers_is_valid(shape, capability):
    candidates = list(tiling.candidates(shape, capability))
    faults = {tiling.fault(shape, each, capability) for each in candidates}
    assert faults == {""}
    assert tiling.heuristic(shape, capability) in candidates


def test_there_are_tiles_where_the_largest_are_the_smallest():
    """All of 130 channels and four width classes at once leave room for 16 positions."""
    chain, _ = case("pooled")
    problem = Problem.parse("n1 ci1 co130 i4x4 k3x3 s1x8 p1 fp32")
    work = next(each[3] for each in passes(chain, problem))
    assert set(tiling._positions(work, "rows")) == {16}
    assert tiling.heuristic(work, 80).positions == 16


def test_the_space_is_valid_has_the_heuristic_first_and_nothing_twice():
    for name in CHAINS:
        for _, _, _, shape in passes(*case(name)):
            space = list(tiling.space(shape, 90))
            assert space[0] == tiling.heuristic(shape, 90)
            assert set(tiling.candidates(shape, 90)) < set(space)
            assert len(set(space)) == len(space)
            assert all(tiling.valid(shape, each, 90) for each in space)


WIDE = {"channels": 128, "box": (1, 1, 1, 256), "depth": 32, "warps": 8}
INVALID = {
    "not a power": ({"channels": 48}, "plain", "power of two"),
    "box not of powers": ({"box": (1, 1, 1, 48)}, "plain", "four powers of two"),
    "a box too long": ({"box": (1, 1, 1, 512), "warps": 16}, "plain", "passes 256"),
    "no such form": ({"form": "ring"}, "plain", "form 'ring'"),
    "rows of two lines": ({"box": (1, 1, 2, 32)}, "plain", "larger than what it tiles"),
    "a box of two samples": ({"form": "box", "box": (2, 1, 4, 8)}, "plain", "larger than"),
    "a box past the result": ({"form": "box", "box": (1, 1, 4, 32)}, "plain", "larger than"),
    "depthwise box": ({"form": "box", "box": (1, 1, 2, 8)}, "depthwise", "form 'box'"),
    "samples in one tile": ({"form": "batch", "box": (1, 1, 4, 4)}, "over a sample", "one sample"),
    "channels too few": ({"channels": 16}, "softmax over 40", "16 channels where a tile takes 64"),
    "channels too many": ({"channels": 32}, "plain", "32 channels where a tile takes 16"),
    "too few positions": ({"box": (1, 1, 1, 8)}, "plain", "at least 16"),
    "too shallow": ({"depth": 8}, "plain", "at least 16"),
    "too deep": ({"depth": 64}, "plain", "pass a line of 128"),
    "padded": ({"depth": 32}, "plain", "pad 3 channels too far"),
    "shared by two": ({"split": 2}, "plain", "2 programs"),
    "no stages": ({"stages": 0}, "plain", "in 0 stages"),
    "shared memory": ({**WIDE, "stages": 8}, "wide", "8 stages take 393216 bytes of shared memory"),
    "shared memory, thrice": (
        {"channels": 64, "box": (1, 1, 1, 256), "depth": 32, "warps": 4, "stages": 5},
        "wide, fp32",
        "5 stages take 229376 bytes",
    ),
    "registers of many threads": (
        {**WIDE, "form": "box", "box": (1, 1, 4, 128), "warps": 16, "stages": 2},
        "wide",
        "16 warps do not hold 65536",
    ),
    "registers": ({**WIDE, "warps": 4}, "wide", "4 warps do not hold 32768"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "name", "why"), INVALID.values(), ids=INVALID)
def test_what_no_kernel_can_do_is_not_valid(changes, name, why):
    if name.startswith("wide"):
        chain, problem = PLAIN, replace(PROBLEM, out_channels=128)
        if name.endswith("fp32"):
            problem = replace(problem, precision="ieee")
    elif name == "softmax over 40":
        chain, problem = case("softmax")
        problem = replace(problem, out_channels=40)
    else:
        chain, problem = case(name)
    shape = passes(chain, problem)[0][3]
    good = tiling.Tiling("rows", (1, 1, 1, 16), max(16, power(shape.outputs)), 16, 4, 2)
    assert tiling.fault(shape, good, 90) == ""
    assert why in tiling.fault(shape, replace(good, **changes), 90)


@cache
def any_tiles(name: str) -> tuple[tuple[tiling.Tiling, ...], ...]:
    """For each pass of a case, valid ones among choices at random; nothing of ``space`` in it."""
    draw, found = Random(name), []
    for _, _, _, shape in passes(*case(name)):
        valid: set[tiling.Tiling] = set()
        while len(valid) < 60:
            box = tuple(2 ** max(0, draw.randint(-3, 6)) for _ in range(4))
            config = tiling.Tiling(
                draw.choice(tiling.FORMS),
                box if draw.random() < 0.8 else (1, 1, 1, box[3]),
                2 ** draw.randint(4, 6),
                2 ** draw.randint(3, 6),
                2 ** draw.randint(0, 4),
                draw.randint(1, 8),
                draw.choice((1, 1, 2, 3)),
            )
            if tiling.valid(shape, config, 90) and config.positions <= 128:
                valid.add(config)
        found.append(tuple(sorted(valid, key=str)))
    return tuple(found)


@pytest.fixture(scope="module")
def interpreter():
    """Runs a chain with given tiles; Triton interprets, in a process of its own."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("tiles.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    def run(chain, *job):
        pickle.dump((chain.stages, *job), process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
        assert isinstance(answer, torch.Tensor), answer
        return answer

    yield run
    process.communicate(timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("name", CHAINS)
def test_valid_tiles_compute_what_they_should(interpreter, name):
    chain, problem = case(name)
    tensors = fills.real(chain, problem, 0)
    oracle = Oracle(chain, problem, *tensors, Triton().ulp(problem), longest_sum(chain, problem))

    @settings(max_examples=5, database=None)
    @given(tiles=st.tuples(*map(st.sampled_from, any_tiles(name))))
    def compare(tiles):
        accuracy = oracle.judge(interpreter(chain, problem, tensors, tiles))
        assert accuracy.ok, f"{accuracy.fault} with {tiles}"

    compare()
