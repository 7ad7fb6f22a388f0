"""Whole models as what is measured: their inputs, their work, and the truth about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transfuse.bench.model_files import from_file
from transfuse.bench.model_oracle import ModelOracle, results, step
from transfuse.bench.models import MODELS, Shapes, drawn, seeded
from transfuse.bench.peers import Runner
from transfuse.bench.precision import Precision
from transfuse.bench.record import MODEL
from transfuse.elements import ELEMENTS

MODELS_SET = "models"
"""The set of all models that come with us."""


@dataclass(frozen=True)
class Whole:
    """One model on inputs of given shapes."""

    name: str
    make: Callable[[], nn.Module]
    shapes: Shapes
    place: str = ""
    slug: str = MODEL
    axis: str = ""
    at: int = 0

    def on(self, arithmetic: str, device: str) -> "Whole":
        return replace(self, place=f"{arithmetic} {device}")

    @property
    def case(self) -> str:
        sizes = ("x".join(map(str, shape)) for shape in self.shapes)
        return " ".join([self.name, *sizes, self.place])


def models(names: Sequence[str], inputs: Sequence[str], device: str) -> list[Whole]:
    """The models by these names, or of these files (``FILE.py:Name``); all that come with us."""
    given = tuple(_shape(text) for text in inputs)
    if given and len(names) != 1:
        raise ValueError(f"--input is for one --model, not for {len(names)}")
    return [_model(name, given, device) for name in names or MODELS]


def _model(name: str, given: Shapes, device: str) -> Whole:
    if name in MODELS:
        known = MODELS[name]
        return Whole(name, known.make, given or (known.cpu if device == "cpu" else known.gpu))
    if ":" not in name:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(MODELS)}, or FILE.py:Name")
    make = from_file(name)
    if not given:
        raise ValueError(f"{name} needs the shape of each of its inputs: --input 1x3x64x64")
    path, _, what = name.rpartition(":")
    return Whole(f"{Path(path).name}:{what}", make, given)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"--input {text!r} is no shape; 1x3x64x64 is one")
    return tuple(map(int, sizes))


@dataclass(frozen=True)
class ModelWork:
    """A model and its inputs, in one precision class; ``make`` gives another with its weights.

    ``cotangents``: in a step of training, the gradients of the results.
    """

    model: nn.Module
    make: Callable[[], nn.Module]
    x: tuple[Tensor, ...]
    cotangents: list[Tensor] | None = None

    def again(self) -> tuple[Tensor, ...]:
        return tuple(each.clone() for each in self.x)

    def runner(self, call: Callable[..., Any], owner: nn.Module) -> Runner:
        """A way to run the model, whose parameters are ``owner``'s."""
        if self.cotangents is None:
            return Runner(lambda x: call(*x), collect=results)
        parameters, cotangents = list(owner.parameters()), self.cotangents

        def adapted(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(each.detach().requires_grad_() for each in x)

        return Runner(lambda x: step(call, x, parameters, cotangents), adapt=adapted)


@dataclass(frozen=True)
class Counted:
    """Products of a call times two, and the bytes that it reads and writes at least."""

    flops: int
    bytes: int


def work(
    subject: Whole, precision: Precision, device: str, seed: int, training: bool
) -> tuple[ModelWork, Counted]:
    """The model with weights by seed, and its inputs.

    While it trains dropout rests: a mask drawn anew is no result that could be judged.
    """
    dtype, where = ELEMENTS[precision.dtype].dtype, device.partition(":")[0]

    def make() -> nn.Module:
        model = seeded(subject.make, seed).to(where, dtype).train(training)
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        return model

    model, x = make(), tuple(drawn(subject.shapes, seed, dtype, where))
    with FlopCounterMode(display=False) as counter:
        found = results(model(*x))
    held = sum(each.numel() * each.element_size() for each in (*x, *found, *model.parameters()))
    counted = Counted(counter.get_total_flops(), held)
    if not training:
        return ModelWork(model, make, x), counted
    shapes = tuple(tuple(y.shape) for y in found)
    return ModelWork(model, make, x, drawn(shapes, seed + 1, dtype, where)), counted


def oracle(work: ModelWork, precision: Precision) -> ModelOracle:
    twin = work.make().double()
    return ModelOracle(twin, work.x, precision.dtype, precision.ulp, work.cotangents)
