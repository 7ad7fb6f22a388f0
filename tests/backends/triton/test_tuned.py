"""Tiles from files: which are taken, which refused, and that no writer loses another's."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton import lower, tuned
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
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
TILES = tiling.Config("rows", (1, 1, 1, 64), 64, 32, 4, 3)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """A user's file of this test's own; nothing is shipped."""
    path = tmp_path / "cache" / "tuned.json"
    monkeypatch.setenv("TRANSFUSE_TUNED", str(path))
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    tuned.refresh()
    return path


def passes(chain: Chain, problem: Problem):
    """(program, core, pass, shape) of every pass that convolves."""
    plan = fused(chain, problem)
    program = lower.program(chain, plan)
    core = plan.chain.core(problem)
    return [
        (program, core, each, tiling.shape_of(program, core, each))
        for each in program.passes
        if each.convolves
    ]


def entry(number: int = 0, **changes) -> tuned.Entry:
    key = tuned.Key(GPU, "portable", "conv > store", f"n{number} ci1 co1 i1 k1 s1 p0", "tf32")
    return tuned.Entry(replace(key, **changes), tuned.encoded(TILES), 0.25, "n1 ci1 co1 i1 k1")


PLAIN = Chain(conv_transpose(2))
PROBLEM = Problem.parse("n8 ci64 co64 i100x120 k3x7 fp32 tf32 cuda:sm90")


def chosen(problem: Problem = PROBLEM, gpu: str = GPU) -> tuned.Choice:
    ((program, core, each, shape),) = passes(PLAIN, problem)
    return tuned.choose(program, core, each, shape, gpu, 90)


def stored(config: tiling.Config, ms: float = 0.5, **changes) -> tuned.Entry:
    ((program, core, each, _),) = passes(PLAIN, PROBLEM)
    key = replace(tuned.key(program, core, each, GPU), **changes)
    return tuned.Entry(key, tuned.encoded(config), ms, str(PROBLEM))


def test_without_files_the_heuristic_decides():
    ((_, _, _, shape),) = passes(PLAIN, PROBLEM)
    assert chosen() == tuned.Choice(tiling.heuristic(shape, 90), "heuristic")
    assert chosen().config != TILES


def test_a_stored_choice_is_taken_for_its_bucket_and_no_other(file):
    tuned.put([stored(TILES)])
    assert chosen() == tuned.Choice(TILES, str(file))
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
    strange = tuned.Entry(stored(TILES, engine="hopper").key, {"halo": 8}, 0.1, str(PROBLEM))
    tuned.put([strange])
    assert chosen().source == "heuristic"
    tuned.put([stored(TILES)])
    assert strange in tuned.read(file).values()
    assert chosen().config == TILES


def test_the_users_file_goes_before_the_shipped_one(file):
    other = replace(TILES, stages=2)
    shipped = tuned.put([stored(other)], tuned.SHIPPED / "gpu.json")
    assert chosen() == tuned.Choice(other, str(shipped))
    tuned.put([stored(TILES)])
    assert chosen() == tuned.Choice(TILES, str(file))


def test_tiles_that_do_not_fit_give_way_to_the_heuristic(file):
    tuned.put([stored(replace(TILES, depth=64))])
    choice = chosen()
    assert choice.source == "heuristic"
    assert choice.note == f"{file} does not fit: 64 channels of 4 bytes pass a line of 128"


def test_a_change_of_the_file_is_seen_without_a_restart(file, monkeypatch):
    tuned.put([stored(TILES)])
    before = tuned.generation()
    assert tuned.generation() == before
    text = tuned.written([stored(replace(TILES, stages=2))])
    command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"]
    subprocess.run([*command, str(file), text], check=True)
    assert tuned.generation() == before, "looked at more often than said"
    monkeypatch.setattr(tuned, "FRESH", 0.0)
    assert tuned.generation() != before
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
    "ms is text": tuned.written([entry()]).replace("0.25", '"fast"'),
    "tiles of text": tuned.written([entry()]).replace("[1, 1, 1, 64]", '"all"'),
    "tiles lack a field": tuned.written([entry()]).replace('"warps": 4, ', ""),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_by_name_and_left_as_it_is(file, text):
    shipped = tuned.put([stored(TILES)], tuned.SHIPPED / "gpu.json")
    file.parent.mkdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    held = file.read_bytes()
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        tuned.refresh()
    (message,) = [str(each.message) for each in caught]
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    tuned.refresh()  # it is said once; here a second warning would be an error
    assert chosen() == tuned.Choice(TILES, str(shipped))
    with pytest.raises(tuned.TunedFileError, match=file.name):
        tuned.put([entry()])
    assert file.read_bytes() == held


def test_a_newer_schema_is_called_by_its_number(file):
    file.parent.mkdir()
    file.write_text(BROKEN["newer"])
    with pytest.raises(tuned.TunedFileError, match="schema 2, and this transfuse reads 1"):
        tuned.read(file)


def test_the_shipped_files_are_valid():
    folder = Path(tuned.__file__).with_suffix("")
    files = sorted(folder.glob("*.json"))
    assert files
    for path in files:
        for each in tuned.read(path).values():
            assert each.key.engine != "portable" or tuned.decoded(each.config)


def test_files_read_back_as_they_were_written(file):
    entries = [entry(i, arithmetic=a) for i in range(3) for a in ("tf32", "fp16")]
    tuned.put(entries[:4])
    tuned.put(entries[2:])
    assert sorted(map(str, tuned.read(file).values())) == sorted(map(str, entries))
    assert json.loads(file.read_text())["schema"] == tuned.SCHEMA
    assert len(file.read_text().splitlines()) == len(entries) + 2
    better = replace(entries[0], ms=0.125)
    tuned.put([better])
    assert tuned.read(file)[better.key] == better


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_writer_that_fails_leaves_the_old_file(file, monkeypatch, call):
    tuned.put([entry(1)])
    real = getattr(os, call)

    def fails(*args, **options):
        if call != "open" or str(args[0]).endswith(".new"):
            raise KeyboardInterrupt
        return real(*args, **options)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(os, call, fails)
        tuned.put([entry(2)])
    assert list(tuned.read(file)) == [entry(1).key]
    tuned.put([entry(3)])
    assert list(tuned.read(file)) == [entry(1).key, entry(3).key]


def test_a_link_to_the_file_stays_one(file, tmp_path):
    target = tmp_path / "elsewhere.json"
    file.parent.mkdir()
    file.symlink_to(target)
    tuned.put([entry()])
    assert file.is_symlink()
    assert tuned.read(target)


WRITER = """
import sys
from pathlib import Path
from transfuse.backends.triton import tuned

path, writer, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = {"form": "rows", "box": [1, 1, 1, 64], "channels": 64, "depth": 32, "warps": 4,
          "stages": 3}
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    key = tuned.Key("gpu", "portable", "conv > store", f"{writer} {i}", "tf32")
    tuned.put([tuned.Entry(key, config, 1.0, "")], path)
    print(i, flush=True)
"""


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
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for victim in writers[:3]:
        time.sleep(draw.uniform(0.02, 0.2))
        tuned.read(path)  # raises where it is not whole
        victim.send_signal(signal.SIGKILL)
    told = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers[3:]] == [0, 0]
    assert all(len(numbers) == count for numbers in told[3:])
    assert any(len(numbers) < count for numbers in told[:3]), "none was killed in time"
    held = {key.shape for key in tuned.read(path)}
    missing = [f"{w} {i}" for w, numbers in enumerate(told) for i in numbers]
    assert not set(missing) - held
    tuned.put([entry()], path)  # no lock outlives its holder
    left = {each.name for each in tmp_path.iterdir()}
    assert left - {"cache", "shipped"} == {"tuned.json", ".tuned.json.lock"}
