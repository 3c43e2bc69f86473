"""What the benchmarks of whole models say, one line a model: ReLU attention beside softmax for docs/when_to_use.md, and decoding
with zeros for docs/sparse_decoding.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS
from benchmarks.speed.goals import SPARSE_SHARE
from benchmarks.speed.sparse_models import OURS

DTYPES = ("float32", "bfloat16")
# Contenders of sparse_models.py: whose gain is told over which other.
_SPENT = {
    "zeros over PyTorch": ("float32 zeros", "float32 torch"),
    "PyTorch's int8 over PyTorch": ("int8 torch", "float32 torch"),
    "zeros in int8 over PyTorch's int8": ("int8 zeros", "int8 torch"),
    "`both` over PyTorch's int8": ("int8 both", "int8 torch"),
}
Cells = Iterable[dict[str, Any]]


def overview_table() -> str:
    """How often a step with ReLU is done in the time of the same step of the same class with softmax, by task and dtype."""
    lines = [*_translation(), *_pictures(), *_language_models()]
    header = ["model", "machine", "training, float32", "bfloat16", "use, float32", "bfloat16"]
    return "\n".join(table(header, lines)) + "\n"


def zeros_table() -> str:
    """How often PyTorch's milliseconds of a new token hold those of zeros and of int8, one row, with 1 and with 2 threads."""
    made, trained = _measured("sparse-models-cpu.json"), _measured("sparse-trained-cpu.json")
    cells = [cell for cell in made["models"] if (cell["zeros"], cell["beams"]) == (SPARSE_SHARE, 1)]
    groups = [
        (shape, made, [(cell["measured_zeros"], cell) for cell in cells if cell["shape"] == shape])
        for shape in dict.fromkeys(cell["shape"] for cell in cells)
    ]
    last = trained["states"][-1]["name"]
    of_trained = [(cell["generated_zeros"], cell) for cell in trained["cells"] if cell["state"] == last]
    groups.append((f"{OURS}, trained", trained, of_trained))
    header = ["model", "machine", "zeros", *_SPENT]
    return "\n".join(table(header, [_spent(*group) for group in groups])) + "\n"


def _spent(name: str, measured: dict[str, Any], cells: Sequence[tuple[float, dict[str, Any]]]) -> list[str]:
    by_threads = [cell["token_ms"] for _, cell in sorted(cells, key=lambda each: each[1]["threads"])]
    gains = (" / ".join(f"{ms[rival] / ms[ours]:.2f}" for ms in by_threads) for ours, rival in _SPENT.values())
    return [name, measured["machine"]["cpu"], f"{cells[0][0]:.1%}", *gains]


def _translation() -> Iterator[list[str]]:
    measured = _measured("end-to-end-cpu.json")
    for inputs, name in (("multi30k-like", "short sentences"), ("1,024 tokens", "documents of 1,024 tokens")):
        cells = [cell for cell in measured["cells"] if (cell["shape"], cell["inputs"]) == ("wide", inputs)]
        cells = [cell for cell in cells if "vanilla" in cell["speedups"].get("ReLUFormer", {})]
        yield _line(f"translation, {name}", measured, cells, "generation", ours="ReLUFormer", softmax="vanilla")


def _pictures() -> Iterator[list[str]]:
    measured = _measured("vision-cpu.json")
    for length in sorted({cell["length"] for cell in measured["cells"]}):
        cells = [cell for cell in measured["cells"] if (cell["length"], cell["threads"]) == (length, 2)]
        yield _line(f"pictures in {length} patches", measured, cells, "inference")


def _language_models() -> Iterator[list[str]]:
    measured = _measured("decoder-cpu.json")
    for context in sorted({cell["context"] for cell in measured["cells"]}):
        cells = [c for c in measured["cells"] if (c["context"], c["library"]) == (context, "GPT2LMHeadModel")]
        yield _line(f"language model, context of {context:,}", measured, cells, "generation")


def _line(
    name: str, measured: dict[str, Any], cells: Cells, use: str, ours: str = "ReLU", softmax: str = "softmax"
) -> list[str]:
    ratios = {(c["task"], c["dtype"]): f"{c['speedups'][ours][softmax]['median']:.2f}" for c in cells}
    return [name, measured["machine"]["cpu"], *(ratios[task, dtype] for task in ("training", use) for dtype in DTYPES)]


def _measured(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))
