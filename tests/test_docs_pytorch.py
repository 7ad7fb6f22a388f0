"""docs/pytorch.md says what came of every feature on every backend: each cell is run here."""

from pathlib import Path

import pytest

from transfuse.errors import UnsupportedError
from transfuse.report import pytorch

PAGE = Path(__file__).parents[1] / "docs/pytorch.md"
COMPILED = next(name for name in pytorch.FEATURES if "torch.compile" in name)


def cells(backend: str) -> dict[str, str]:
    """What the page says of a backend."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    at = 1 + pytorch.COLUMNS.index(backend)
    return {row[0]: row[at] for row in rows if row[0] in pytorch.FEATURES}


@pytest.mark.parametrize("backend", ["cpu", "eager"])
@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(name, marks=pytest.mark.long if name == COMPILED else ())
        for name in pytorch.FEATURES
    ],
)
def test_cell(feature: str, backend: str) -> None:
    assert cells(backend)[feature] == pytorch.cell(feature, backend)


@pytest.mark.long
def test_cells_of_triton() -> None:
    """In a process of their own, with Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed")
    assert [*cells("triton").values()] == pytorch.column("triton")


def test_the_page_is_written_so() -> None:
    """Text and rows are the generator's; the cells are those that the other tests run."""
    columns = [[*cells(backend).values()] for backend in pytorch.COLUMNS]
    expected = "\n".join([pytorch.HEAD, *pytorch._rows(columns)]) + "\n"
    assert PAGE.read_text("utf-8") == expected


def test_a_feature_that_does_not_work_is_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: pytorch.Call) -> None:
        pytorch._same(call(*pytorch._tensors()), 2 * pytorch.torchs(*pytorch._tensors()))

    def refused(call: pytorch.Call) -> None:
        raise UnsupportedError("nobody runs it")

    monkeypatch.setitem(pytorch.FEATURES, "wrong", wrong)
    monkeypatch.setitem(pytorch.FEATURES, "refused", refused)
    with pytest.raises(AssertionError):
        pytorch.cell("wrong", "cpu")
    with pytest.raises(UnsupportedError):
        pytorch.cell("refused", "cpu")
