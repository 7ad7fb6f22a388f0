"""The loader: what it reads, and where and why it refuses. The shipped documents, written out."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from transfuse import problems
from transfuse.errors import DocumentError
from transfuse.problems import Parameter

SMALL = """\
---
slug: "scale-add"
title: "Scale and add"
difficulty: "EASY"
author: "transfuse"
tags: ["pointwise", "sample"]
parameters:
  - name: "input"
    type: "[VAR]"
    pointer: true
    const: true
  - name: "output"
    type: "[VAR]"
    pointer: true
    const: false
  - name: "factor"
    type: "double"
    pointer: false
    const: false
  - name: "size"
    type: "size_t"
    pointer: false
    const: false
---

output = input * factor

---

A rule in the text is no front matter.
"""

# The older style: booleans as text, `constant` for scalars, blank lines between parameters.
OLDER = """\
---
slug: "scale-add"
title: "Scale and add"
difficulty: "EASY"
author: "transfuse"
tags: ["pointwise", "sample"]
parameters:
  - name: "input"
    type: "[VAR]"
    pointer: "true"
    const: "true"

  - name: "output"
    type: "[VAR]"
    pointer: "true"
    const: "false"

  - name: "factor"
    type: "double"
    pointer: "false"
    constant: "false"

  - name: "size"
    type: "size_t"
    pointer: "false"
    constant: "false"
---

output = input * factor

---

A rule in the text is no front matter.
"""


def test_reads_every_field() -> None:
    got = problems.parse(SMALL, "scale-add.md")
    assert got.slug == "scale-add"
    assert got.title == "Scale and add"
    assert got.difficulty == "EASY"
    assert got.author == "transfuse"
    assert got.tags == ("pointwise", "sample")
    assert got.parameters == (
        Parameter("input", "[VAR]", pointer=True, const=True),
        Parameter("output", "[VAR]", pointer=True, const=False),
        Parameter("factor", "double", pointer=False, const=False),
        Parameter("size", "size_t", pointer=False, const=False),
    )
    assert got.body.startswith("output = input * factor\n\n---\n\nA rule")
    assert got.body.endswith("front matter.\n")


def test_groups_parameters() -> None:
    got = problems.parse(SMALL, "scale-add.md")
    assert [p.name for p in got.pointers] == ["input", "output"]
    assert [p.name for p in got.inputs] == ["input"]
    assert got.output.name == "output"
    assert [p.name for p in got.scalars] == ["factor", "size"]


def test_older_style_reads_the_same() -> None:
    assert problems.parse(OLDER, "old.md") == problems.parse(SMALL, "new.md")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("    pointer: true\n", "    pointer: True\n", id="capital"),
        pytest.param("    pointer: true\n", "    pointer: 'TRUE'\n", id="quoted-capital"),
        pytest.param("    pointer: false\n    const: false\n", "    pointer: false\n", id="absent"),
        pytest.param("\n", "\r\n", id="crlf"),
    ],
)
def test_spellings_read_the_same(old: str, new: str) -> None:
    assert old in SMALL
    assert problems.parse(SMALL.replace(old, new), "x.md") == problems.parse(SMALL, "x.md")


def test_c_signature() -> None:
    got = problems.parse(SMALL, "scale-add.md")
    assert got.c_signature("float") == (
        "void scale_add(\n"
        "    const float* input,\n"
        "    float* output,\n"
        "    double factor,\n"
        "    size_t size\n"
        ");"
    )
    assert "const [VAR]* input" in got.c_signature()


def test_python_signature() -> None:
    assert problems.parse(SMALL, "scale-add.md").python_signature() == (
        "def solution(\n"
        "    input: Tensor,\n"
        "    output: Tensor,\n"
        "    factor: float,\n"
        "    size: int,\n"
        ") -> None"
    )


# Each breaks SMALL by one replacement (of the first occurrence): the line blamed, the reason given.
BROKEN = {
    "no front matter": ("---\nslug", "slug", 1, "no front matter"),
    "text before front matter": ("---\nslug", "\n---\nslug", 1, "no front matter"),
    "front matter left open": (SMALL[3:], "\nslug: a\n", 1, "not closed"),
    "front matter empty": (SMALL[4:], "---\n", 1, "must be a mapping, not nothing"),
    "front matter a list": (SMALL[4:], "- a\n---\n", 2, "must be a mapping, not a list"),
    "yaml: colon in a value": ("Scale and add", 'a" : "b', 3, "invalid YAML"),
    "yaml: bracket left open": ('"sample"]', '"sample"', 7, "invalid YAML"),
    "yaml: tab": ("    const: true", "\tconst: true", 11, "invalid YAML"),
    "yaml: control character": ("EASY", "EA\x07SY", 4, "invalid YAML: special characters"),
    "yaml: alias of nothing": ('"EASY"', "*easy", 4, "invalid YAML: found undefined alias"),
    "field missing": ('difficulty: "EASY"\n', "", 2, "front matter lacks 'difficulty'"),
    "field unknown": ("author:", "auther:", 5, "unknown field 'auther'"),
    "field twice": ('title: "Sc', 'slug: "b"\ntitle: "Sc', 3, "'slug' twice"),
    "field name a list": ("author:", "[a]:", 5, "must be text, not a list"),
    "title a number": ('"Scale and add"', "3", 3, "title must be text, not an int"),
    "title a list": ('"Scale and add"', "[a]", 3, "title must be text, not a list"),
    "title a list tagged as text": ('"Scale and add"', "!!str [a]", 3, "not a list"),
    "author a boolean": ('"transfuse"', "yes", 5, "author must be text, not a bool"),
    "author nothing": (' "transfuse"', "", 5, "author must be text, not nothing"),
    "author blank": ('"transfuse"', '" "', 5, "author is empty"),
    "tags text": ('["pointwise", "sample"]', '"a"', 6, "tags must be a list, not text"),
    "tag a float": ('"sample"', "1.5", 6, "tag must be text, not a float"),
    "slug upper case": ("scale-add", "Scale-add", 2, "not lowercase words joined by dashes"),
    "slug underscore": ("scale-add", "scale_add", 2, "not lowercase words joined by dashes"),
    "slug two dashes": ("scale-add", "scale--add", 2, "not lowercase words joined by dashes"),
    "slug digit first": ("scale-add", "2-scale", 2, "not lowercase words joined by dashes"),
    "slug newline": ("scale-add", "scale-add\\n", 2, "not lowercase words joined by dashes"),
    "parameters text": (
        SMALL[SMALL.index("\n  - name") : SMALL.index("---\n\noutput")],
        " none\n",
        7,
        "parameters must be a list, not text",
    ),
    "parameters empty": (
        SMALL[SMALL.index("\n  - name") : SMALL.index("---\n\noutput")],
        " []\n",
        7,
        "parameters is empty",
    ),
    "parameter text": ('  - name: "input"', '  - input\n  - name: "input"', 8, "not text"),
    "parameter without name": ('name: "factor"\n    ', "", 16, "parameter lacks 'name'"),
    "parameter without type": ('    type: "double"\n', "", 16, "parameter lacks 'type'"),
    "parameter without pointer": ("    pointer: true\n", "", 8, "parameter lacks 'pointer'"),
    "parameter field unknown": ("const: true", "cnst: true", 11, "unknown field 'cnst'"),
    "const and constant": (
        "const: true",
        "const: true\n    constant: true",
        12,
        "parameter 'input' has both const and constant",
    ),
    "name with a dash": ('"factor"', '"the-factor"', 16, "'the-factor' is not an identifier"),
    "name not ascii": ('"factor"', '"größe"', 16, "'größe' is not an identifier"),
    "name a keyword": ('"factor"', '"lambda"', 16, "'lambda' is a Python keyword"),
    "name a number": ('"factor"', "7", 16, "name must be text, not an int"),
    "name twice": ('"factor"', '"input"', 16, "parameter 'input' is declared twice"),
    "type unknown": ('"double"', '"half"', 17, "unknown type 'half'; known: [VAR], size_t, int,"),
    "type a bare [VAR]": ('"[VAR]"', "[VAR]", 9, "type must be text, not a list"),
    "pointer to a scalar type": ('"[VAR]"', '"float"', 9, "'input' must be [VAR], not float"),
    "scalar of elements": ('"double"', '"[VAR]"', 17, "scalar 'factor' cannot be [VAR]"),
    "pointer not a boolean": ("pointer: true", "pointer: 1", 10, "true or false, not '1'"),
    "pointer yes": ("pointer: true", "pointer: yes", 10, "true or false, not 'yes'"),
    "const nothing": ("const: true", "const:", 11, "const must be true or false, not nothing"),
    "const a list": ("const: true", "const: [true]", 11, "true or false, not a list"),
    "constant not a boolean": ("const: true", "constant: no", 11, "true or false, not 'no'"),
    "no output": (
        "pointer: true\n    const: false",
        "pointer: true\n    const: true",
        8,
        "no output",
    ),
    "two outputs": ("const: true", "const: false", 12, "two outputs: 'input' and 'output'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_document_names_line_and_reason(case: str) -> None:
    old, new, line, reason = BROKEN[case]
    assert old in SMALL
    with pytest.raises(DocumentError) as caught:
        problems.parse(SMALL.replace(old, new, 1), "some.md")
    message = str(caught.value)
    assert message.startswith(f"some.md:{line}: ")
    assert reason in message


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scale-add.md"
    path.write_text("\ufeff" + SMALL, encoding="utf-8")
    assert problems.load(path) == problems.parse(SMALL, "scale-add.md")


@pytest.mark.parametrize(
    ("stem", "text", "line", "reason"),
    [
        pytest.param(
            "other", SMALL, 2, "'scale-add' differs from the file name 'other'", id="name"
        ),
        pytest.param("scale-add", SMALL.replace("EASY", "\xe9"), 4, "not UTF-8", id="encoding"),
    ],
)
def test_load_refuses(tmp_path: Path, stem: str, text: str, line: int, reason: str) -> None:
    path = tmp_path / f"{stem}.md"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DocumentError) as caught:
        problems.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert reason in str(caught.value)


# Slug -> its parameters in order: inputs, output, scalars. Scalars are size_t unless typed here.
SHIPPED = {
    "conv-transpose-2d-square-input-asym-kernel": (
        "input kernel",
        "batch_size in_channels out_channels height width kernel_h kernel_w stride_h stride_w "
        "padding_h padding_w output_padding_h output_padding_w dilation_h dilation_w groups",
    ),
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": (
        "input kernel bn_weight bn_bias gn_weight gn_bias",
        "batch_size in_channels out_channels height width kernel_h kernel_w stride_h stride_w "
        "padding_h padding_w output_padding_h output_padding_w groups num_groups",
    ),
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": (
        "input kernel conv_bias add_bias",
        "scaling_factor:double batch_size in_channels out_channels height width kernel_h kernel_w "
        "stride_h stride_w padding_h padding_w output_padding_h output_padding_w",
    ),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (
        "input kernel scale",
        "batch_size in_channels out_channels depth height width kernel_d kernel_h kernel_w "
        "stride_d stride_h stride_w padding_d padding_h padding_w "
        "output_padding_d output_padding_h output_padding_w "
        "pool_kernel clamp_min:double clamp_max:double",
    ),
    "conv-transpose3d-max-max-sum": (
        "input kernel conv_bias",
        "batch_size in_channels out_channels depth height width kernel_d kernel_h kernel_w "
        "stride_d stride_h stride_w padding_d padding_h padding_w",
    ),
}


def test_slugs_are_the_five_in_order() -> None:
    assert problems.slugs() == tuple(SHIPPED)


@pytest.mark.parametrize("slug", SHIPPED)
def test_shipped_document(slug: str) -> None:
    inputs, scalars = SHIPPED[slug]
    expected = [Parameter(name, "[VAR]", pointer=True, const=True) for name in inputs.split()]
    expected.append(Parameter("output", "[VAR]", pointer=True, const=False))
    for scalar in scalars.split():
        name, _, kind = scalar.partition(":")
        expected.append(Parameter(name, kind or "size_t", pointer=False, const=False))

    got = problems.document(slug)
    assert got.slug == slug
    assert got.author == "transfuse"
    assert got.title
    assert "convolution" in got.tags
    assert got.parameters == tuple(expected)
    assert got.body.count("\n") <= 45
    assert max(len(line) for line in got.body.splitlines()) <= 100


@pytest.mark.parametrize("slug", SHIPPED)
def test_shipped_signatures(slug: str) -> None:
    got = problems.document(slug)
    (solution,) = ast.parse(got.python_signature() + ": ...").body
    assert isinstance(solution, ast.FunctionDef)
    assert [a.arg for a in solution.args.args] == [p.name for p in got.parameters]
    assert got.c_signature("float").startswith(f"void {slug.replace('-', '_')}(\n    const float* ")


def test_document_is_cached() -> None:
    slug = "conv-transpose3d-max-max-sum"
    assert problems.document(slug) is problems.document(slug)


def test_unknown_slug_suggests_the_nearest() -> None:
    with pytest.raises(
        KeyError, match="no operator is called 'conv-transpose3d-max-sum'"
    ) as caught:
        problems.document("conv-transpose3d-max-sum")
    message = str(caught.value)
    assert "did you mean 'conv-transpose3d-max-max-sum'?" in message
    assert all(slug in message for slug in SHIPPED)


def test_unknown_slug_far_from_all_suggests_nothing() -> None:
    with pytest.raises(problems.UnknownSlugError, match="known operators:") as caught:
        problems.document("../zebra")
    assert "did you mean" not in str(caught.value)


def test_import_leaves_yaml_alone() -> None:
    # The package itself may import torch, which may import yaml; this module must not add it.
    code = (
        "import sys, transfuse; before = 'yaml' in sys.modules; "
        "import transfuse.problems.document; sys.exit(('yaml' in sys.modules) != before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
