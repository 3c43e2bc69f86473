"""`benchmarks/results/vision-cpu.json` → `benchmarks/VISION.md`. No figure is typed.

python -m benchmarks.speed.vision_tables
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measurement_file import PAGES, origin
from benchmarks.pages import page_text, write_page
from benchmarks.speed.rivals import rival_table
from benchmarks.speed.vision import DTYPES, PRESETS, TASKS, VIT

RESULT, PAGE = "vision-cpu.json", PAGES / "VISION.md"
Result = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    return write_page(render, __doc__, RESULT, PAGE, arguments)


def render(result: Result | None) -> str:
    """The whole page as Markdown."""
    body = None if result is None else _body(result)
    return page_text("Vision Transformers: images a second", "speed.vision", body)


def _body(result: Result) -> Iterator[str]:
    yield from (*origin(result, RESULT), "", *_contenders(result))
    for task, dtype in itertools.product(TASKS, DTYPES):
        cells = [cell for cell in result["cells"] if (cell["task"], cell["dtype"]) == (task, dtype)]
        columns = [(f"{cell['length']:,}", str(cell["images"]), str(cell["threads"])) for cell in cells]
        yield from ("", f"## {task}, {dtype}", "")
        yield from rival_table(("tokens", "images", "threads"), columns, cells, "images_a_second")


def _contenders(result: Result) -> Iterator[str]:
    settings = result["settings"]
    shape, implementation = settings["shape"], result["cells"][0]["attn_implementation"]
    relu, softmax = (f"`{preset}`, `{implementation[name]}`" for name, preset in PRESETS.items())
    yield (
        f"Width {shape['hidden_size']}, {shape['num_hidden_layers']} layers, {shape['num_attention_heads']} heads, pictures of "
        f"{shape['image_size']} × {shape['image_size']} pixels: the models of the recipes `fashion_mnist_vit_L…` with new "
        f"weights. `ReLU` ({relu}) and `softmax` ({softmax}) have a norm of queries and keys and the mean of the patches; "
        f"`{VIT}` (Transformers', `{implementation[VIT]}`) has no such norm and one token more, CLS."
    )
    yield ""
    yield (
        f"Training is forward, backward and {settings['optimizer']}; inference is forward. A batch has about "
        f"{settings['batch_tokens']:,} tokens; reading and augmenting pictures is not timed, and bfloat16 is autocast. "
        "Images a second are by the median of alternating rounds. The last columns say how often the first is done in the time "
        "of one call of the second: the median over the rounds, with P10–P90 in brackets."
    )


if __name__ == "__main__":
    sys.exit(main())
