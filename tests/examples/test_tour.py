"""The notebook runs from beginning to end, and shows what its text says."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from ..docs.pages import ROOT

BOOK = ROOT / "examples" / "tour.ipynb"


def shown(book):
    """All text that the cells printed, and how many pictures they drew."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    return text, sum("image/png" in output.get("data", {}) for output in outputs)


def check(book):
    text, pictures = shown(book)
    assert pictures == 2 and "station?" in text and "exactly zero" in text
    without, with_ = re.findall(r"λ = [\d.]+: accuracy ([\d.]+)%, entropy [\d.]+ nats, dead rows ([\d.]+)%", text)
    assert min(float(without[0]), float(with_[0])) > 60, "both learn the task; guessing is right in 6 %"
    assert float(with_[1]) < float(without[1]) / 2, "the regulariser keeps rows alive"


def test_the_notebook_holds_its_outputs_and_is_small():
    check(nbformat.read(BOOK, as_version=4))
    assert BOOK.stat().st_size < 400_000


@pytest.mark.slow
def test_the_notebook_runs_without_a_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    book = nbformat.read(BOOK, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(book, timeout=500, resources={"metadata": {"path": str(BOOK.parent)}}).execute()
    check(book)
