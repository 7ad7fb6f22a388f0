"""The command line as a user meets it: tables, JSON, exit status, errors on stderr."""

import json
import os
import subprocess
import sys

import pytest
import torch

from transfuse import __version__
from transfuse.backends import Verdict
from transfuse.backends.eager import Eager
from transfuse.cli import main
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
    assert rows[MAX]["chain"].endswith("max_pool(2) -> max_pool(3) -> sum(channels)")
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
    assert facts["plan"] == facts["fused"], "triton runs the fused plan"
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

    def run(self, chain, problem, x, weight, operands, out=None):
        y = super().run(chain, problem, x, weight, operands, out)
        y.view(-1)[-1] += 1e-3
        return y


class Crashing(Eager):
    def run(self, *args):
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


def test_env_reports_this_machine(cli):
    _, printed, _ = cli("env", "--json")
    facts = json.loads(printed)
    assert torch.__version__.startswith(facts["packages"]["torch"])
    assert facts["backends"] == ["cpu", "triton", "eager"]
    assert facts["threads"] == torch.get_num_threads()
    assert cli("env")[0] == 0


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
    ],
)
def test_bad_arguments_are_one_error_and_status_2(cli, words, message):
    status, printed, error = cli(*words)
    assert status == 2
    assert printed == ""
    assert error.startswith("error: ")
    assert message in error.replace("\n", " ")


def test_python_m_transfuse_and_version():
    words = [sys.executable, "-m", "transfuse", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"transfuse {__version__}\n"
