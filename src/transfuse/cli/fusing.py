"""fuse: what becomes of a model's transposed convolutions."""

import re
from typing import Annotated

import torch
import typer
from torch import Tensor

from transfuse.bench.model_files import from_file
from transfuse.cli.output import Json, out, print_json
from transfuse.elements import ELEMENTS
from transfuse.fusing import explain
from transfuse.fusing import fuse as fuse_model

SIZES = re.compile(r"\d+(x\d+)*")


def fuse(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:MODEL",
            help="A class of modules, a function that makes one, or a module; called without "
            "arguments.",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SIZES",
            help="Sizes of an input, such as 1x3x64x64; once for each. The model is then called, "
            "and each convolution measured.",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE", help=f"Element type of model and inputs: {', '.join(ELEMENTS)}."
        ),
    ] = "fp32",
    training: Annotated[
        bool, typer.Option("--training", help="In training mode, not in evaluation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Which transposed convolutions of a model are fused, with what; which are not, and why.

    Predicted: the time of the plan, and of torch's operations one by one, by
    their products and bytes on two cores or an H200. Measured: on this machine.
    """
    if dtype not in ELEMENTS:
        raise ValueError(f"unknown element type {dtype!r}; known: {', '.join(ELEMENTS)}")
    element = ELEMENTS[dtype].dtype
    examples = tuple(_drawn(each, element) for each in inputs or ()) or None
    made = from_file(model)().to(element).train(training)
    found = explain(fuse_model(made, examples, inplace=True), examples)
    if as_json:
        return print_json(found.as_dict())
    out.print(found)


def _drawn(sizes: str, dtype: torch.dtype) -> Tensor:
    if not SIZES.fullmatch(sizes):
        raise ValueError(f"--input {sizes}: sizes are written as 1x3x64x64")
    generator = torch.Generator().manual_seed(0)
    return torch.randn([int(each) for each in sizes.split("x")], generator=generator).to(dtype)
