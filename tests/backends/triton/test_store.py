"""Compiled kernels in files: their names, what is read back, what is left out."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse import log
from transfuse.backends.triton.arguments import Scalar
from transfuse.backends.triton.store import key, shelves
from transfuse.backends.triton.store.entry import MAGIC, Damaged, Entry, dumped, parsed
from transfuse.backends.triton.sweeps.each_launch import EACH as each
from transfuse.backends.triton.sweeps.fold_launch import FOLD as fold

ENTRY = Entry(
    key="a" * 64,
    name="convolve",
    architecture="sm_90",
    triton="3.6.0",
    shared=1024,
    warps=4,
    descriptors=({"map": {"kind": 6, "item": 2, "box": [64, 64], "swizzle": 3}}, {"words": [0]}),
    code=bytes(range(256)) * 40,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, not made yet; no kernels come with the package."""
    monkeypatch.setenv("TRANSFUSE_KERNELS", str(tmp_path / "mine"))
    monkeypatch.setattr(shelves, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(log, "_said", {})
    return tmp_path / "mine"


def test_what_is_written_is_read_back(folder: Path) -> None:
    assert shelves.find(ENTRY.key) is None
    shelves.keep(ENTRY)
    assert shelves.find(ENTRY.key) == ENTRY
    assert [path.name for path in folder.iterdir()] == [f"{ENTRY.key}.kernel"]


def test_the_users_folder_comes_first_then_what_is_shipped(folder: Path, tmp_path: Path) -> None:
    shelves.put(replace(ENTRY, shared=1), tmp_path / "shipped")
    found = shelves.find(ENTRY.key)
    assert found is not None
    assert found.shared == 1
    shelves.keep(ENTRY)
    assert shelves.find(ENTRY.key) == ENTRY


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "not a compiled kernel"),
    "half written": (lambda data: data[: len(data) // 2], "damaged or half written"),
    "a byte short": (lambda data: data[:-1], "damaged or half written"),
    "a byte more": (lambda data: data + b"\0", "damaged or half written"),
    "a bit of its digest": (flipped(len(MAGIC)), "damaged or half written"),
    "a bit of its code": (flipped(-1), "damaged or half written"),
    "of another version": (lambda data: data.replace(b"kernel 1", b"kernel 2"), "another version"),
    "foreign": (lambda data: dumped(replace(ENTRY, key="b" * 64)), "the kernel in it is another"),
    "no kernel": (lambda data: b"\x7fELF" + data, "not a compiled kernel"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_broken_is_left_out_with_one_line(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = FAULTS[name]
    shelves.keep(ENTRY)
    path = shelves.place(folder, ENTRY.key)
    path.write_bytes(change(path.read_bytes()))
    with caplog.at_level(logging.WARNING, logger="transfuse"):
        assert shelves.find(ENTRY.key) is None
        assert shelves.find(ENTRY.key) is None
    (line,) = caplog.messages
    assert line.startswith(f"{path} is left out: ")
    assert reason in line
    shelves.keep(ENTRY)  # compiled again
    assert shelves.find(ENTRY.key) == ENTRY


def test_a_broken_file_of_the_user_does_not_hide_what_is_shipped(
    folder: Path, tmp_path: Path
) -> None:
    shelves.put(ENTRY, tmp_path / "shipped")
    shelves.keep(ENTRY)
    shelves.place(folder, ENTRY.key).write_bytes(b"")
    assert shelves.find(ENTRY.key) == ENTRY


def test_headers_of_another_form_are_damaged() -> None:
    with pytest.raises(Damaged, match="not a compiled kernel: TypeError"):
        parsed(dumped(replace(ENTRY, key=ENTRY.key, descriptors=7)), ENTRY.key)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file is in its place")
    with caplog.at_level(logging.WARNING, logger="transfuse"):
        shelves.keep(ENTRY)
        shelves.keep(replace(ENTRY, key="b" * 64))
        assert shelves.find(ENTRY.key) is None
    (line,) = caplog.messages
    assert line.startswith(f"compiled kernels are not kept in {folder}: ")


def test_readers_find_entries_whole_while_others_write_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [replace(ENTRY, shared=size) for size in range(8)]
    raised: list[BaseException] = []
    shelves.keep(entries[0])

    def write(which: Entry) -> None:
        try:
            for _ in range(25):
                shelves.keep(which)
        except BaseException as error:
            raised.append(error)

    writers = [threading.Thread(target=write, args=(which,)) for which in entries]
    for thread in writers:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in writers):
        seen.append(shelves.find(ENTRY.key))
    assert not raised
    assert seen
    assert all(found in entries for found in seen)
    assert not caplog.messages
    assert len(list(folder.iterdir())) == 1, "something was left beside the entry"


def test_a_writer_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelves.keep(ENTRY)
    monkeypatch.setattr(shelves.os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        shelves.keep(replace(ENTRY, shared=2))
    assert shelves.find(ENTRY.key) == ENTRY
    assert len(list(folder.iterdir())) == 1


class Pair(NamedTuple):
    a: int
    b: int


@dataclass(frozen=True)
class Known:
    a: Any
    b: int = 2


DIFFERENT = (
    1, 1.0, True, "1", None, -0.0, 0.0, (), (1,), ((1,),), (1, 2), Pair(1, 2), Known(1), Known(1.0),
    Known(True), Known(1, 3), Scalar("float16"), Scalar("float32"), torch.float16,
    {"a": 1}, {"a": 2},
)  # fmt: skip


def test_values_have_texts_of_their_own() -> None:
    assert len({key.text(value) for value in DIFFERENT}) == len(DIFFERENT)
    assert key.text([1, 2]) == key.text((1, 2))


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="of set in the name of a compiled kernel"):
        key.text({1})


def test_a_key_changes_with_everything_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ((("*fp16", "D"), ("i32", "")), {"num_warps": 4})
    keys = {
        key.key(each, "sm_90", *given),
        key.key(fold, "sm_90", *given),
        key.key(each, "sm_80", *given),
        key.key(each, "sm_90", (("*fp16", ""), ("i32", "")), {"num_warps": 4}),
        key.key(each, "sm_90", (("*bf16", "D"), ("i32", "")), {"num_warps": 4}),
        key.key(each, "sm_90", (("*fp16", "D"), ("i32", "")), {"num_warps": 8}),
    }
    assert len(keys) == 6
    assert key.key(each, "sm_90", *given) in keys
    monkeypatch.setattr(key, "sources", lambda: "other sources")
    assert key.key(each, "sm_90", *given) not in keys


def test_sources_are_those_of_kernels_and_expressions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {folder.name for folder in key.FOLDERS} == {"triton", "maths"}
    assert all((folder / "__init__.py").is_file() for folder in key.FOLDERS)
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "kernel.py"
    monkeypatch.setattr(key, "FOLDERS", (tmp_path,))
    found = []
    for content in ("a = 1", "a = 2", "a = 1"):
        file.write_text(content)
        key.sources.cache_clear()
        found.append(key.sources())
    file.rename(tmp_path / "kernel.py")
    key.sources.cache_clear()
    found.append(key.sources())
    key.sources.cache_clear()
    assert found[0] == found[2]
    assert len(set(found)) == 3


SCRIPT = """
from transfuse.backends.triton.ahead import Wanted, builds
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, sigmoid
problem = Problem.parse("n2 ci16 co16 i8x8 k2 s2 fp16 cuda:sm90")
for each in builds(Wanted((conv_transpose(2, "bias"), sigmoid()), problem)):
    print(each.kernel.name, each.key)
"""


@pytest.mark.long
def test_keys_are_the_same_in_every_process() -> None:
    def keys(seed: str) -> str:
        command = [sys.executable, "-c", SCRIPT]
        env = {**os.environ, "PYTHONHASHSEED": seed, "TRITON_INTERPRET": "0"}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    found = keys("1")
    assert found.splitlines()
    assert found == keys("2")
