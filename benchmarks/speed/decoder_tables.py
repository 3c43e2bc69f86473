"""`benchmarks/results/decoder-cpu.json` → `benchmarks/DECODER.md`. No figure is typed.

python -m benchmarks.speed.decoder_tables
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.markdown import table
from benchmarks.measurement_file import PAGES, origin
from benchmarks.pages import page_text, write_page
from benchmarks.speed.decoder import DTYPES, LIBRARIES, TASKS
from benchmarks.speed.decoder_models import GPT2, LLAMA, RELU, SOFTMAX, UNREGULARIZED
from benchmarks.speed.rivals import rival_table

RESULT, PAGE = "decoder-cpu.json", PAGES / "DECODER.md"
Result = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    return write_page(render, __doc__, RESULT, PAGE, arguments)


def render(result: Result | None) -> str:
    """The whole page as Markdown."""
    body = None if result is None else _body(result)
    return page_text("Language models: tokens a second, and memory", "speed.decoder", body)


def _body(result: Result) -> Iterator[str]:
    yield from (*origin(result, RESULT), "", *_contenders(result))
    for task, dtype in itertools.product(TASKS, DTYPES):
        yield from ("", f"## {task}, {dtype}")
        for library in LIBRARIES:
            wanted = (task, dtype, library)
            cells = [cell for cell in result["cells"] if (cell["task"], cell["dtype"], cell["library"]) == wanted]
            columns = [(f"{cell['context']:,}", str(cell["rows"])) for cell in cells]
            yield ""
            yield from rival_table(("context", "rows"), columns, cells, "tokens_a_second")
    yield from ("", "## Memory", "", *_memory(result))


def _contenders(result: Result) -> Iterator[str]:
    settings = result["settings"]
    shape, implementation = settings["shape"], result["cells"][0]["attn_implementation"]
    parameters = {cell["library"]: cell["parameters"][cell["library"]] for cell in reversed(result["cells"])}
    yield (
        f"Width {shape['hidden_size']}, {shape['num_hidden_layers']} layers, {shape['num_attention_heads']} heads, "
        f"{shape['vocab_size']:,} tokens of vocabulary, as in the recipe `{settings['recipe']}`, with new weights and without "
        f"dropout. `{GPT2}` has {parameters[GPT2]:,} parameters at the shortest context, `{LLAMA}` {parameters[LLAMA]:,}, with "
        f"two thirds of GPT-2's FFN; both compute attention by `{implementation[GPT2]}`. The others are `ReLUFormerForCausalLM`, "
        f"converted from them: `{SOFTMAX}` (`{implementation[SOFTMAX]}`), `{RELU}` (`{implementation[RELU]}`) with the "
        f"regulariser in the loss, and `{UNREGULARIZED}` without it."
    )
    yield ""
    yield (
        f"Training is forward, backward and {settings['optimizer']}, bfloat16 by autocast; ours without logits, as `reluformer "
        "train` does. Prefill is one prompt as long as the context, with its cache and its last logits. Generation is "
        "`generate`, greedy, one row, with a growing cache that holds the prompt before it starts and ends at the context. In "
        "prefill and generation bfloat16 is that of the weights. Tokens a second are by the median of alternating rounds. The "
        "last columns say how often the first is done in the time of one call of the second: the median over the rounds, with "
        "P10–P90 in brackets."
    )


def _memory(result: Result) -> Iterator[str]:
    memory = result["settings"]["memory"]
    yield (
        f"What one training step (forward and backward, float32) of one sequence raises the peak of resident memory by: width "
        f"{memory['hidden_size']}, {memory['num_hidden_layers']} layers, {memory['num_attention_heads']} heads, "
        f"{memory['vocab_size']:,} tokens of vocabulary, preset `{memory['preset']}`, without logits. Method: {memory['method']}"
    )
    yield ""
    lengths = sorted({cell["length"] for cell in result["memory"]})
    cells = {(cell["contender"], cell["length"]): cell for cell in result["memory"]}
    rows = [
        (name, *(_megabytes(cells[name, length]) for length in lengths))
        for name in dict.fromkeys(name for name, _ in cells)
    ]
    yield from table(("MB", *(f"{length:,} tokens" for length in lengths)), rows, numbers=True)
    yield ""
    yield f"Tensors of queries by keys that were made, looked for at {min(lengths):,} tokens: {_square_tensors(result)}."


def _megabytes(cell: Result) -> str:
    return cell["not_run"] if "not_run" in cell else f"{cell['extra_bytes'] / 1e6:,.0f}"


def _square_tensors(result: Result) -> str:
    made = {
        cell["contender"]: cell["queries_by_keys_tensors"]
        for cell in result["memory"]
        if cell.get("queries_by_keys_tensors")
    }
    return "; ".join(f"{name}: {', '.join(shapes)}" for name, shapes in made.items()) or "none"


if __name__ == "__main__":
    sys.exit(main())
