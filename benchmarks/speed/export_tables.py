"""`benchmarks/results/export-cpu.json` → `benchmarks/EXPORT.md`. No figure is typed.

python -m benchmarks.speed.export_tables
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.markdown import table
from benchmarks.measurement_file import PAGES
from benchmarks.pages import page_text, write_page
from benchmarks.speed.export import MARIAN, OURS, OURS_INT8, OURS_ONNX
from benchmarks.speed.goals import spread

RESULT, PAGE = "export-cpu.json", PAGES / "EXPORT.md"
# Above this share of a core, other programs took part.
IDLE = 0.5
Result = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    return write_page(render, __doc__, RESULT, PAGE, arguments)


def render(result: Result | None) -> str:
    """The whole page as Markdown."""
    body = None if result is None else _body(result)
    return page_text("An exported model beside PyTorch", "speed.export", body, " --model FOLDER")


def _body(result: Result) -> Iterator[str]:
    yield from (
        *_origin(result),
        "",
        "## Translations",
        "",
        *_translations(result),
        "",
        "## Speed",
        "",
        *_speeds(result),
    )


def _origin(result: Result) -> Iterator[str]:
    machine, versions, settings = result["machine"], result["versions"], result["settings"]
    if result["quick"]:
        yield from ("**A quick run, to try the program: its figures mean nothing.**", "")
    commit = (result["git_commit"] or "unknown")[:12] + (", with local changes" if result["git_dirty"] else "")
    yield (
        f"`{result['command']}` → [{RESULT}](results/{RESULT}): {result['date'][:10]}, commit {commit}, "
        f"{result['seconds'] / 60:.1f} min on {machine['cpu']} ({machine['usable_cores']} cores, load before the start "
        f"{machine['load_average']:.1f}), {settings['threads']} threads each, torch {versions['torch']}, onnxruntime "
        f"{versions['onnxruntime']}. The model has {settings['parameters']:,} parameters."
    )
    if machine["load_average"] > IDLE:
        yield from ("", f"**The minute before the start was not idle (load {machine['load_average']:.1f}).**")


def _translations(result: Result) -> Iterator[str]:
    settings = result["settings"]
    yield f"{settings['sentences']:,} lines of `{settings['source']}`. The files of both graphs:"
    yield ""
    header = ("", "MB", "largest difference of a logit from PyTorch in float64", "what rounding explains")
    yield from table(header, [_export_row(name, result["exports"][name]) for name in (OURS_ONNX, OURS_INT8)])
    yield ""
    first = result["translations"][0]["scores"][OURS]
    score = next(name for name in ("moses_lowercase_bleu", "bleu") if name in first)
    rows = [
        (
            _decoding(row),
            name,
            f"{row['scores'][name][score]:.2f}",
            f"{row['equal'][name]:,} of {settings['sentences']:,}",
        )
        for row in result["translations"]
        for name in row["scores"]
    ]
    yield from table(("decoding", "", f"`{score}`", "translations that are PyTorch's"), rows)
    yield ""
    different = result["translations"][0]["different"]
    if not different:
        yield "No greedy translation in float32 differs from PyTorch's."
        return
    yield "Greedy translations in float32 that differ, with the logits of both candidates at the first token that does:"
    yield ""
    rows = [_difference_row(found) for found in different]
    yield from table(("line", "token", "candidates (PyTorch's first)", "PyTorch", "onnxruntime"), rows)


def _export_row(name: str, found: Result) -> tuple[str, ...]:
    difference = found["difference"]
    explained = f"{difference['allowed']:.1g}" if name == OURS_ONNX else ""
    return name, f"{sum(found['bytes'].values()) / 1e6:.1f}", f"{difference['largest']:.1g}", explained


def _difference_row(found: Result) -> tuple[str, ...]:
    if "alone" in found:
        return str(found["sentence"]), "", found["alone"], "", ""
    candidates = " · ".join(f"`{token}`" for token in found["candidates"])
    logits = (" · ".join(f"{value:.6f}" for value in found["logits"][name]) for name in (OURS, OURS_ONNX))
    return str(found["sentence"]), str(found["token"]), candidates, *logits


def _speeds(result: Result) -> Iterator[str]:
    yield (
        "`generate` on the first lines of the split: sentences a second, by the median of alternating rounds. Every hypothesis "
        f"gets {result['settings']['new_tokens']} new tokens. MarianMTModel has the same shape and random weights, computes "
        "attention by `sdpa` in PyTorch, and is exported by the same functions."
    )
    yield ""
    cells = result["cells"]
    header = ["", *(f"{_decoding(cell)}, {cell['sentences']} at once" for cell in cells)]
    names = sorted(
        cells[0]["times"], key=lambda name: (name.startswith(MARIAN.partition(",")[0]), "onnx" in name, name)
    )
    rows = [(name, *(f"{cell['sentences_a_second'][name]:,.1f}" for cell in cells)) for name in names]
    yield from table(header, rows, numbers=True)
    yield ""
    yield "How often the first is done in the time of one call of the second, P10–P90 of the rounds in brackets:"
    yield ""
    rows = [
        (f"{pair['of']} / {pair['over']}", *(spread(cell["speedups"][at]) for cell in cells))
        for at, pair in enumerate(cells[0]["speedups"])
    ]
    yield from table(header, rows, numbers=True)


def _decoding(found: Result) -> str:
    return "greedy" if found["beams"] == 1 else f"{found['beams']} beams"


if __name__ == "__main__":
    sys.exit(main())
