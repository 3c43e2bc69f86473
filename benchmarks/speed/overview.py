"""ReLU attention beside softmax in whole models, one line a task, from the files of the benchmarks: for docs/when_to_use.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS

DTYPES = ("float32", "bfloat16")
Cells = Iterable[dict[str, Any]]


def overview_table() -> str:
    """How often a step with ReLU is done in the time of the same step of the same class with softmax, by task and dtype."""
    lines = [*_translation(), *_pictures(), *_language_models()]
    header = ["model", "machine", "training, float32", "bfloat16", "use, float32", "bfloat16"]
    return "\n".join(table(header, lines)) + "\n"


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
