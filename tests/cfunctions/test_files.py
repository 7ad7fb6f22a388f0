"""The written files are those that the declarations give, and fit what they are compiled with."""

import pytest

from transfuse.cfunctions.files import SOURCES, files, lines
from transfuse.cfunctions.function import CFunction
from transfuse.chain import Chain
from transfuse.errors import DocumentError
from transfuse.operators import OPERATORS, Operator
from transfuse.problems import parse
from transfuse.stages import Stage, batch_norm, conv_transpose, instance_norm, max_pool, scale


@pytest.mark.parametrize("name", ["problems.cpp", "transfuse.h", "rates.h"])
def test_what_is_committed_is_what_is_written(name: str) -> None:
    assert files()[name] == (SOURCES / name).read_text("utf-8"), "run `make generate`"


def test_every_operator_has_its_functions() -> None:
    written = files()
    for each in OPERATORS.values():
        assert f"DEFINE(TRANSFUSE_{each.__name__.upper()}, {{" in written["problems.cpp"]
        assert f"int transfuse_{each.__name__}_##suffix(" in written["transfuse.h"]


def operator(tensors: str, *then: Stage) -> Operator:
    listed = [(name, "true", "true") for name in tensors.split()] + [("output", "true", "false")]
    head = "slug: conv-transpose1d-of-a-test\ntitle: A test\ndifficulty: EASY\nauthor: a test"
    rows = [f"- {{name: {n}, type: '[VAR]', pointer: {p}, const: {c}}}" for n, p, c in listed]
    sizes = ["batch_size", "in_channels", "out_channels", "width", "kernel_w"]
    rows += [f"- {{name: {name}, type: size_t, pointer: false}}" for name in sizes]
    text = "\n".join(["---", head, "tags: []", "parameters:", *rows, "---", "Text."])
    document = parse(text, "test.md")
    return Operator(document.slug, Chain(conv_transpose(1), *then), document=document)


@pytest.mark.parametrize("name", ["call", "element", "register", "smaller"])
def test_names_that_c_cannot_have(name: str) -> None:
    with pytest.raises(DocumentError, match=f"a parameter of a C function cannot be called {name}"):
        CFunction(operator(f"input kernel {name}", scale(name)))


def test_what_no_document_says_is_refused() -> None:
    """Running statistics are written to, and a document has one output."""
    norm = batch_norm("mean", "var", training=True)
    with pytest.raises(DocumentError, match="cannot move the running statistics mean and var"):
        CFunction(operator("input kernel mean var", norm))


def test_what_call_h_does_not_check_is_refused() -> None:
    with pytest.raises(DocumentError, match="a C function cannot check instance_norm"):
        CFunction(operator("input kernel", instance_norm()))


def test_what_the_core_cannot_run_is_refused() -> None:
    stages = (batch_norm(training=True), max_pool(3, 2))
    with pytest.raises(DocumentError, match=r"cannot run it: windows of max_pool.* overlap"):
        CFunction(operator("input kernel", *stages))


def test_long_statements_are_wrapped_between_brackets() -> None:
    text = f"call.run({{{', '.join(f'f{i}(a, b)' for i in range(30))}}});"
    found = lines(text)
    assert " ".join(found.split()) == text
    assert all(len(line) <= 110 for line in found.splitlines())
    assert not any(line.rstrip().endswith("(a,") for line in found.splitlines())
