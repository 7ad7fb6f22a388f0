"""The command line as a user meets it: tables, JSON, exit status, errors on stderr."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from transfuse import __version__
from transfuse.backends import Verdict
from transfuse.backends.eager import Eager
from transfuse.backends.triton import Triton, lower, tuned, tuned_files
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.cli import COMMANDS, main
from transfuse.operators import OPERATORS

MAX = "conv-transpose3d-max-max-sum"
POOL = "conv-transpose3d-avgpool-clamp-softmax-multiply"


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run a command line; gives exit status, stdout, stderr."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["transfuse", *words])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_list_names_every_operator_and_its_chain(cli):
    status, printed, _ = cli("list", "--json")
    rows = {row["slug"]: row for row in json.loads(printed)}
    assert status == 0
    assert set(rows) == set(OPERATORS)
    assert rows[MAX]["chain"].endswith("max_pool(2) -> max_pool(3) -> sum(channels, keepdim=True)")
    assert cli("list")[0] == 0


@pytest.mark.parametrize("slug", OPERATORS)
def test_show_has_document_signatures_and_chain(cli, slug):
    _, printed, _ = cli("show", slug, "--json")
    facts = json.loads(printed)
    names = [parameter["name"] for parameter in facts["parameters"]]
    for signature in (facts["c"], facts["python"]):
        places = [signature.index(f" {name}") for name in names]
        assert places == sorted(places)
    assert facts["c"].startswith(f"void {slug.replace('-', '_')}(")
    status, text, _ = cli("show", slug)
    assert status == 0
    for word in ("Definition", "void ", "def solution(", "benchmark"):
        assert word in text


@pytest.mark.parametrize("slug", OPERATORS)
def test_explain_gives_problem_rewrites_plan_and_verdicts(cli, slug):
    _, printed, _ = cli("explain", slug, "benchmark", "fp16", "cuda:sm90", "--json")
    facts = json.loads(printed)
    assert facts["case"].startswith(str(OPERATORS[slug].case("benchmark fp16 cuda:sm90").problem))
    assert facts["backends"] == {
        "cpu": "tensors are on cuda:sm90",
        "triton": "yes",
        "eager": "yes",
    }
    assert facts["chosen"] == "triton"
    assert sum(step["flops"] for step in facts["fused"]["passes"]) >= facts["fused"]["work_flops"]
    copy, *passes = facts["plan"]["passes"]
    assert passes == facts["fused"]["passes"], "triton runs the fused plan"
    assert copy["does"].endswith("in the order of the tiles")
    status, text, _ = cli("explain", slug)
    assert status == 0
    assert "least possible" in text


def test_explain_takes_any_sizes(cli):
    line = "n2 ci3 co4 i6x6x8 k3 s2 p1 op1 bf16 cpu pool_kernel=2 clamp_min=0 clamp_max=1"
    _, printed, _ = cli("explain", POOL, *line.split(), "--json")
    facts = json.loads(printed)
    assert facts["case"] == line
    assert [step["name"] for step in facts["rewrites"]] == ["bounded-softmax", "fold-average"]


def test_explain_knows_tf32(cli):
    lines = {}
    for words in (("cuda:sm90",), ("tf32", "cuda:sm90")):
        _, printed, _ = cli("explain", POOL, "benchmark", *words, "--json")
        facts = json.loads(printed)
        lines[words] = facts["case"], facts["fused"]["flops"] > facts["fused"]["work_flops"]
    (ieee, again), (tf32, again_in_tf32) = lines.values()
    assert " fp32 cuda:sm90 " in ieee
    assert " fp32 tf32 cuda:sm90 " in tf32
    assert (again, again_in_tf32) == (False, True)


def test_check_passes_and_says_so(cli):
    status, printed, _ = cli("check", MAX, POOL, "--random", "1", "--dtype", "fp32")
    assert status == 0
    assert "all 12 cases passed" in printed


def test_check_json_has_one_row_per_case_with_its_command(cli):
    status, printed, _ = cli("check", MAX, "--random", "1", "--seed", "3", "--json")
    rows = json.loads(printed)
    assert status == 0
    assert len(rows) == 3 * 4 * 3
    found = {(row["backend"], row["status"], row["why"]) for row in rows}
    here = {("cpu", "passed", ""), ("eager", "passed", "")}
    assert found == here | {("triton", "refused", "tensors are on cpu")}
    words = rows[0]["command"].split("'")
    again = [*words[0].split()[1:], words[1], *words[2].split(), "--json"]
    assert json.loads(cli(*again)[1]) == [rows[0]]


class Wrong(Eager):
    """Right but for one element."""

    def prepare(self, chain, problem):
        right = super().prepare(chain, problem)

        def run(x, weight, operands, out=None):
            y = right(x, weight, operands, out)
            y.view(-1)[-1] += 1e-3
            return y

        return run


class Crashing(Eager):
    def prepare(self, chain, problem):
        raise RuntimeError("out of ideas")


class Refusing(Eager):
    def verdict(self, chain, problem):
        return Verdict("3 axes are too many")


@pytest.fixture
def backend(monkeypatch):
    """Make one backend the only one."""

    def use(backend):
        for module in ("check", "cli.checking", "dispatch"):
            monkeypatch.setattr(f"transfuse.{module}.BACKENDS", (backend,))

    return use


@pytest.mark.parametrize(("broken", "why"), [(Wrong, "budget"), (Crashing, "out of ideas")])
def test_check_fails_a_wrong_backend(cli, backend, broken, why):
    backend(broken())
    status, printed, _ = cli("check", MAX, "--case", "small")
    assert status == 1
    assert "1 of 1 cases failed" in printed
    assert why in printed
    assert f"transfuse check {MAX} --backend eager --case 'n2 ci3 co4" in printed


def test_check_shows_refusals_and_does_not_call_them_passed(cli, backend):
    backend(Refusing())
    status, printed, _ = cli("check", MAX, "--case", "small")
    assert status == 1
    assert "3 axes are too many" in printed
    assert "no case ran: each was refused" in printed
    assert "passed" not in printed.splitlines()[-1]


def test_env_reports_this_machine(cli):
    _, printed, _ = cli("env", "--json")
    facts = json.loads(printed)
    assert torch.__version__.startswith(facts["packages"]["torch"])
    assert facts["backends"] == ["cpu", "triton", "eager"]
    assert facts["threads"] == torch.get_num_threads()


def test_env_has_words_for_what_is_not_there(cli, monkeypatch):
    monkeypatch.setenv("TRANSFUSE_ISA", "sse2")
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)
    status, printed, _ = cli("env")
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert status == 0
    assert lines["TRANSFUSE_ISA"] == ["sse2"]
    assert lines["TRANSFUSE_BACKEND"] == ["not", "set"]
    assert "None" not in printed


def test_env_names_the_files_of_tuned_tiles(cli, tuned_file):
    _, printed, _ = cli("env", "--json")
    user, *shipped = json.loads(printed)["tuned"]
    assert user == {"file": str(tuned_file), "entries": 1}
    assert [each["file"].endswith("tuned/nvidia-h200.json") for each in shipped] == [True]
    tuned_file.write_text("{")
    _, printed, _ = cli("env", "--json")
    assert "not a file of tuned tiles" in json.loads(printed)["tuned"][0]["fault"]
    assert "tuned.json:leftout" in "".join(cli("env")[1].split())


@pytest.fixture
def tuned_file(tmp_path, monkeypatch):
    """A user's file with one entry, for the interpreter."""
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("TRANSFUSE_TUNED", str(path))
    config = tuned_files.encoded(Tiling("rows", (1, 1, 1, 64), 16, 16, 4, 3))
    key = tuned_files.Key(
        "interpreter", "portable", "conv > store", "n2 ci3 co4 i8 k3 s2 p0", "fp32"
    )
    tuned_files.put([tuned_files.Measured(key, config, 0.5, "n2 ci3 co4 i7 k3 s2 p0 fp32 cpu")])
    return path


def test_tune_lists_what_is_tuned(cli, tuned_file, monkeypatch):
    monkeypatch.setattr(tuned_files, "SHIPPED", tuned_file.with_name("none"))  # no file is shipped
    tuned_files.refresh()
    status, printed, _ = cli("tune", "--list", "--json")
    (row,) = json.loads(printed)
    assert status == 0
    assert (row["gpu"], row["ms"], row["file"]) == ("interpreter", 0.5, str(tuned_file))
    status, printed, _ = cli("tune", "--list")
    assert status == 0
    assert "conv > store" in printed
    tuned_file.unlink()
    tuned_files.refresh()
    assert "nothing is tuned" in cli("tune", "--list")[1]


def test_tune_says_that_there_is_no_gpu(cli, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    status, printed, error = cli("tune", MAX)
    assert (status, printed) == (2, "")
    assert error == "error: tune times kernels on a GPU, and there is none here\n"


@pytest.mark.long
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_tune_measures_and_keeps(tmp_path):
    """Interpreted: two candidates for the one pass that convolves."""
    path = tmp_path / "some" / "tuned.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_INTERPRET": "1",
        "TRANSFUSE_TUNED": str(path),
    }

    def run(*words):
        command = [sys.executable, "-W", "ignore", "-m", "transfuse", "tune", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    line = ("--problem", "n2 ci3 co4 i5x4 k3 s2 p1", "--then", "max_pool(2)", "--then", "tanh")
    done = run(*line, "--most", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["chain"] == "conv > max_pool k2x2 s2x2 p0x0 > tanh > store"
    assert row["shape"] == "n2 ci3 co4 i8x4 k3 s2 p1"
    assert (row["tried"], row["faults"], row["file"]) == (2, [], str(path))
    assert 0 < row["ms"] <= row["heuristic_ms"]
    (entry,) = tuned_files.read(path).values()
    assert (entry.key.gpu, entry.config) == ("interpreter", row["config"])
    done = run(*line, "--most", "1", "--dtype", "fp64")
    assert done.returncode == 0, done.stderr
    assert "kept in" in done.stdout
    assert {key.arithmetic for key in tuned_files.read(path)} == {"fp32", "fp64"}
    path.write_text("{}")
    done = run(*line, "--most", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert str(path) in done.stderr


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_explain_says_which_tiles_and_why(cli, monkeypatch, tuned_file):
    monkeypatch.setattr("transfuse.dispatch.BACKENDS", (Triton(),))
    slug = "conv-transpose-2d-square-input-asym-kernel"
    words = ("explain", slug, "benchmark", "cuda:sm80", "--json")
    (row,) = json.loads(cli(*words)[1])["tiles"]
    assert row["pass"] == "conv > store"
    assert row["tiles"].endswith("(heuristic)")
    config = Tiling("rows", (1, 1, 1, 64), 64, 32, 4, 3)
    case = OPERATORS[slug].case("benchmark cuda:sm80")
    plan = Triton().plan(OPERATORS[slug].bound(case), case.problem)
    lowered = lower.lowered(plan.chain, plan)
    key = tuned.key(lowered, case.problem, lowered.segments[0], "")
    tuned_files.put([tuned_files.Measured(key, tuned_files.encoded(config), 1.0, "")])
    (row,) = json.loads(cli(*words)[1])["tiles"]
    tiles = "rows 1x1x1x64 channels 64 depth 32 warps 4 stages 3 split 1"
    assert row["tiles"] == f"portable: {tiles} ({tuned_file})"
    deeper = tuned_files.encoded(replace(config, stages=6, depth=64))
    tuned_files.put([tuned_files.Measured(key, deeper, 1.0, "")])
    assert "does not fit: 64 channels of 4 bytes" in " ".join(cli(*words[:-1])[1].split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune", MAX, "--problem", "n2 ci3 co4 i4 k3"), "an operator or --problem, not both"),
        (("tune", MAX, "--then", "tanh"), "--then goes with --problem"),
        (
            ("tune", "--problem", "n2 ci3 co4 i4 k3", "--then", "tan"),
            "did you mean 'tanh'? known",
        ),
        (("tune", "--problem", "n2 ci3 co4 i4 k3", "--then", "a b"), "'a b' is no list of stages"),
        (("tune", "--problem", "n2 ci3"), "problem line lacks co, i, k"),
        (("tune", MAX, "--dtype", "fp8"), "known: fp32, fp64, fp16, bf16"),
        (("tune", MAX, "--device", "tpu"), "device 'tpu' is not here"),
    ],
)
def test_bad_arguments_of_tune(cli, monkeypatch, words, message):
    """As on a machine with Triton interpreting; nothing is run, and Triton not asked."""
    interpreting = "tpu" not in words
    monkeypatch.setattr("transfuse.settings.interpreted", lambda: interpreting)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    status, printed, error = cli(*words)
    assert (status, printed) == (2, "")
    assert message in error.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "conv-transpose3d-max-sum"), "did you mean 'conv-transpose3d-max-max-sum'"),
        (("explain", MAX, "n2", "ci3"), "problem line lacks co, i, k"),
        (("explain", MAX, "n2", "ci3", "co4", "i4x4", "k5"), "has 3 spatial axes"),
        (("explain", MAX, "n2", "ci3", "co4", "i4x4x4", "k5", "q7"), "unknown word 'q7'"),
        (("explain", MAX, "n2", "ci3", "co4", "i1x1x1", "k5"), "smaller than a window"),
        (("explain", POOL, "small", "clamp_min=2"), "clamp_min is given twice"),
        (("explain", POOL, "n2", "ci3", "co4", "i4x4x4", "k3", "a=1"), "takes pool_kernel"),
        (("check", MAX, "--dtype", "fp8"), "known: fp32, fp64, fp16, bf16, tf32"),
        (("check", MAX, "--dtype", "tf32"), "tf32 is for fp32 on cuda, not for fp32 on cpu"),
        (
            ("check", MAX, "--backend", "magic"),
            "unknown backend 'magic'; known: cpu, triton, eager",
        ),
        (("check", MAX, "--device", "tpu"), "device 'tpu' is not here"),
        (("bench", "--set", "all"), "unknown set of cases 'all'; known: benchmark, cpu, small"),
        (("bench", "--set", "all"), "chains, models"),
        (("report", "nothing.jsonl"), "nothing.jsonl: no such file or directory"),
        (("bench", "--compare", "old", "new"), "old: no such file or directory"),
    ],
)
def test_bad_arguments_are_one_error_and_status_2(cli, words, message):
    status, printed, error = cli(*words)
    assert status == 2
    assert printed == ""
    assert error.startswith("error: ")
    assert message in error.replace("\n", " ")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_names_values_and_nothing_beside_flags(cli, monkeypatch, command):
    """No types of Python's, no braces, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    status, printed, _ = cli(*command.split(), "--help")
    assert status == 0
    assert max(map(len, printed.splitlines())) <= 80
    assert not re.search(r"<|\bstr\b|\bbool\b|[{}]", printed)
    assert re.search(r"--help +Show this message", printed)


def test_help_has_names_for_arguments_and_values(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = cli("bench", "--help")[1]
    assert " bench [OPTIONS] [OPERATOR]..." in printed
    for words in (
        "--peer +NAME",
        "--rounds +N \\[x>=1\\]",
        "--compare +OLD NEW",
        "--training  +St",
    ):
        assert re.search(words, printed), words
    assert " report [OPTIONS] FILE..." in cli("report", "--help")[1]


def test_python_m_transfuse_and_version():
    words = [sys.executable, "-m", "transfuse", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"transfuse {__version__}\n"
