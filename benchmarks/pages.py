"""benchmarks/ATTENTION.md, MODELS.md and SPARSE.md with their pictures, from the result files; only goals are typed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.attention import (
    DTYPES,
    EAGER,
    FLEX_RELU,
    HEAD_DIM,
    LENGTHS,
    OURS,
    PASSES,
    PLAIN,
    SDPA,
    SPARSE,
    WITH_STATISTICS,
)
from benchmarks.markdown import table
from benchmarks.measurement_file import RESULTS, read_result
from benchmarks.translating import CTRANSLATE2, OURS_BY_TYPE
from benchmarks.translation import MARIAN, MARIAN_SMOOTHED, OURS_UNREGULARIZED, VANILLA
from benchmarks.translation import OURS as RELUFORMER
from reluformer.analysis.drawing import RELU, SOFTMAX, shade

Result = Mapping[str, Any]
# What a cell holds besides its settings.
NO_SETTINGS = ("unit", "device", "best", "tokens", "source_tokens", "new_tokens", "parameters")
SHORT = (16, 32, 64, 128, 256)
# Colour, marker, label; lines of ReLU are shades of its colour.
SPEED_LINES = {
    PLAIN: (RELU, "o", "ReLU, fused"),
    WITH_STATISTICS: (shade(RELU, 0.5), "^", "ReLU, fused, with S and T"),
}


def goal_table(goals: Iterable[Mapping[str, Any]], results: Mapping[str, Result | None]) -> list[str]:
    """One line a goal: in how many cells it is met, and the lowest value with its cell. goals.yaml says what a goal is."""
    rows = [row for goal in goals if (row := _goal_row(goal, results[goal["file"]]))]
    return table(("what", "over", "goal", "met in", "lowest"), rows)


def _goal_row(goal: Mapping[str, Any], result: Result | None) -> list[str]:
    ours, rivals, at_least = goal["ours"], goal["rivals"], goal["at_least"]
    found = []
    for cell in () if result is None else result["cells"]:
        speedups = [cell["speedups"].get(ours, {}).get(rival) for rival in rivals]
        if None not in speedups and all(cell[name] in values for name, values in goal["where"].items()):
            found.append((min(speedup["median"] for speedup in speedups), cell))
    if not found:
        return []
    lowest, cell = min(found, key=lambda each: each[0])
    what = ", ".join(" / ".join(map(_text, values)) for values in goal["where"].values())
    facts = {name: value for name, value in cell.items() if name not in NO_SETTINGS}
    where = ", ".join(_setting(name, value) for name, value in facts.items() if not isinstance(value, dict | float))
    count = sum(value >= at_least for value, _ in found)
    met = f"{count} of {len(found)}" if count == len(found) else f"**{count} of {len(found)}**"
    return [f"{ours}: {what}", " or ".join(rivals), f"≥ {at_least}×", met, f"{lowest:.2f}× ({where})"]


def _setting(name: str, value: Any) -> str:
    """A text tells what it is, a number does not."""
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {_text(value)}"


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    return "met" if (value <= goal if at_most else value >= goal) else "**missed**"


def cell_table(
    cells: Sequence[Result],
    facts: Sequence[str],
    shown: Sequence[str] | None = None,
    compared: Mapping[str, Iterable[str]] | None = None,
    value: Callable[[Result, str], str] | None = None,
) -> list[str]:
    """A cell a row: what it is, what was measured of each contender, and how often one is done in the time of another.

    Args:
        facts: names of those that tell one cell from the other.
        shown: contenders, by default all.
        compared: contender → rivals, by default all that were compared.
        value: of a contender in a cell; by default its speed, where the cells have one, or its time in ms.
    """
    shown = shown or tuple(dict.fromkeys(name for cell in cells for name in cell["times"]))
    measured = {(ours, rival): 0 for cell in cells for ours, of in cell["speedups"].items() for rival in of}
    wanted = list(measured) if compared is None else [(ours, rival) for ours, of in compared.items() for rival in of]
    pairs = [pair for pair in wanted if pair in measured]
    value = value or _speed_or_time
    rows = []
    for cell in cells:
        values = (value(cell, name) if name in cell["times"] else "–" for name in shown)
        ratios = (spread(cell["speedups"].get(ours, {}).get(rival)) for ours, rival in pairs)
        rows.append([*(_text(cell[name]) for name in facts), *values, *ratios])
    header = [name.replace("_", " ") for name in facts]
    return table([*header, *shown, *(f"{ours} over {rival}" for ours, rival in pairs)], rows, numbers=True)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _speed_or_time(cell: Result, name: str) -> str:
    value = cell["speeds"][name] if "speeds" in cell else cell["times"][name]["median_ms"]
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spread(values: Mapping[str, float] | None) -> str:
    """Median (P10–P90)."""
    return "–" if values is None else f"{values['median']:.2f} ({values['p10']:.2f}–{values['p90']:.2f})"


def tables_of(result: Result, split: Sequence[str], facts: Sequence[str], **of_table: Any) -> Iterator[str]:
    """A table for each combination of values of the facts `split`, in the order of the cells."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for cell in result["cells"]:
        groups.setdefault(tuple(cell[name] for name in split), []).append(cell)
    for values, cells in groups.items():
        names = (
            f"{name} {_text(value)}" if isinstance(value, bool | int) else value
            for name, value in zip(split, values, strict=True)
        )
        unit = f", {cells[0]['unit']}" if "unit" in cells[0] else ", ms"
        yield from ("", f"### {', '.join(names)}{unit}", "", *cell_table(cells, facts, **of_table))


def origin(result: Result, file: str) -> list[str]:
    """Where values are from: command, file, commit, machine, versions."""
    machine, versions = result["machine"], result["versions"]
    commit = (result["git_commit"] or "unknown")[:12] + (", with local changes" if result["git_dirty"] else "")
    threads = result["settings"].get("threads", machine["torch_threads"])
    environment = " ".join(f"{name}={value}" for name, value in result["environment"].items()) or "none of note"
    minutes = f"{result['seconds'] / 60:.1f} min " if "seconds" in result else ""
    lines = [
        f"`{result['command']}` → [{file}-cpu.json](results/{file}-cpu.json)",
        f": {result['date'][:10]}, commit {commit}, {minutes}on {machine['cpu']} ({threads} threads, "
        f"{machine['usable_cores']} cores, {machine['memory_gb']:.0f} GB, load before the start {machine['load_average']:.1f}), "
        f"torch {versions['torch']}, transformers {versions['transformers']}, Python {machine['python']}; "
        f"loop: {result['loop']}; environment: {environment}.",
    ]
    return ["**A quick run, to try the programs: its values mean nothing.**", "", *lines] if result["quick"] else lines


def _one_table(*facts: str) -> Callable[[Result], list[str]]:
    return lambda result: cell_table(result["cells"], facts)


def _attention(result: Result) -> Iterator[str]:
    yield from ("![speedup over softmax by length](results/attention-cpu.png)", "")
    yield from ("### A call by itself: n = 1, ms", "")
    calls = [cell for cell in result["cells"] if cell["length"] == 1]
    yield from cell_table(calls, ["dtype", "pass"], compared={})
    rivals = [SDPA, FLEX_RELU, *EAGER, *list(OURS)[1:]]
    with_row = [cell for cell in result["cells"] if SPARSE[0] in cell["times"] or cell["length"] > SHORT[-1]]
    compared = {PLAIN: rivals, WITH_STATISTICS: [SDPA]}
    facts = ["length", "batch", "heads"]
    yield from tables_of({"cells": with_row}, ["dtype", "pass", "causal"], facts, shown=[PLAIN], compared=compared)
    yield from ("", "### Error against float64, float32, forward: root mean square over that of the result", "")
    erring = {"shown": [PLAIN, FLEX_RELU], "compared": {}, "value": lambda cell, name: f"{cell['errors'][name]:.1e}"}
    yield from cell_table([cell for cell in result["cells"] if "errors" in cell], ["length"], **erring)


def _memory(result: Result) -> Iterator[str]:
    """By contender, in MB."""
    settings, cells = result["settings"], result["cells"]
    yield f"How: {settings['method']}"
    for what in dict.fromkeys(cell["what"] for cell in cells):
        row = "vocabulary" if what == "vocabulary" else "length"
        chosen = {(cell["contender"], cell[row]): cell for cell in cells if cell["what"] == what}
        contenders, values = (list(dict.fromkeys(key[place] for key in chosen)) for place in (0, 1))
        yield from ("", f"### {what}: {', '.join(f'{key} {value}' for key, value in settings[what].items())}", "")
        rows = ([f"{value:,}", *(_megabytes(chosen.get((name, value))) for name in contenders)] for value in values)
        yield from table((row, *contenders), rows, numbers=True)


def _megabytes(cell: Result | None) -> str:
    if cell is None:
        return "–"
    return f"not run: {cell['not_run']}" if "not_run" in cell else f"{cell['extra_bytes'] / 1e6:,.0f} MB"


def _translation(result: Result) -> Iterator[str]:
    facts = ["shape", "inputs", "dtype", "attention_dropout"]
    rivals = (MARIAN, MARIAN_SMOOTHED, VANILLA)
    yield from tables_of(result, ["task"], facts, compared={RELUFORMER: rivals, OURS_UNREGULARIZED: rivals[:2]})
    reasons = [item for cell in result["cells"] for item in cell.get("left_out", {}).items()]
    yield from ("", *dict.fromkeys(f"- {name} is left out: {text}" for name, text in reasons))


def _translating(result: Result) -> Iterator[str]:
    if instruction_set := result["settings"].get("instruction_set"):
        yield f"Torch, oneDNN, MKL, CTranslate2 and our own loops were held to {instruction_set}."
    yield (
        "In a row of the tables by shape both have as many threads. With few sentences CTranslate2 is often faster with one "
        "thread than with two; where both were measured, the first table takes each program at its better number."
    )
    yield from _at_better_threads(result)
    compared = {OURS_BY_TYPE["float32"]: [CTRANSLATE2["float32"], MARIAN], OURS_BY_TYPE["int8"]: [CTRANSLATE2["int8"]]}
    yield from tables_of(result, ["shape", "inputs"], ["beams", "sentences", "threads"], compared=compared)


def _at_better_threads(result: Result) -> Iterator[str]:
    """Ours over CTranslate2, each at the number of threads with which it takes the least time, where several were measured."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for cell in result["cells"]:
        groups.setdefault(tuple(cell[name] for name in ("shape", "inputs", "beams", "sentences")), []).append(cell)
    rows = []
    for names, cells in groups.items():
        ratios = []
        for compute, rival in CTRANSLATE2.items():
            ours, theirs = (
                min(cell["times"][name]["median_ms"] for cell in cells) for name in (OURS_BY_TYPE[compute], rival)
            )
            ratios.append(f"{theirs / ours:.2f}")
        rows.append([*map(_text, names), *ratios])
    if len(rows) < len(result["cells"]):
        header = (
            "shape",
            "inputs",
            "beams",
            "sentences",
            *(f"{OURS_BY_TYPE[c]} over {CTRANSLATE2[c]}" for c in CTRANSLATE2),
        )
        yield from ("", "### Each at its better number of threads", "", *table(header, rows, numbers=True))


def _types(result: Result) -> Iterator[str]:
    yield (
        "The models that come with the package, on Multi30k's test split: BLEU, how many translations are those of `generate`, "
        "and CPU seconds of one thread. Types differ where two continuations are close. In float32 the others do not end: "
        "`generate` cuts them at 128 tokens, the `Translator` at twice the source's + 16, up to where they are equal."
    )
    rows = []
    for cell in result["cells"]:
        for name, found in cell["types"].items():
            equal = f"{found['equal']:,} of {cell['sentences']:,}"
            figures = (f"{found['bleu']:.2f}", equal, f"{found['cpu_seconds']:.1f}")
            rows.append([cell["model"], cell["beams"], name, *figures])
    yield from ("", *table(("model", "beams", "computed by", "BLEU", "equal", "seconds"), rows))


def _trained(result: Result) -> Iterator[str]:
    state, twin, settings = result["states"][-1], result["twin"], result["settings"]
    yield (
        "A language model of Python sources with ReLU and a gate in its feed-forward networks, trained with an L1 weight: "
        f"perplexity {state['perplexity']:.3f}, {state['zeros']:.1%} zeros. Its twin has SiLU, no zeros and a perplexity of "
        f"{twin['perplexity']:.3f}, on {settings['text']['contexts_read']:,} contexts of held-out text. Milliseconds of "
        f"{settings['new_tokens']} new tokens."
    )
    cells = [{**cell, "zeros while decoding": f"{cell['generated_zeros']:.1%}"} for cell in result["cells"]]
    yield from ("", *cell_table(cells, ["zeros while decoding", "threads"]))


def _zeros_models(result: Result) -> Iterator[str]:
    yield "Milliseconds of a new token of `generate` behind a short prompt. Weights are new, and a bias makes the zeros."
    cells = [{**cell, "zeros": f"{cell['measured_zeros']:.1%}"} for cell in result["cells"]]

    def a_token(cell: Result, name: str) -> str:
        return f"{cell['times'][name]['median_ms'] / cell['new_tokens']:.3g}"

    yield from ("", *cell_table(cells, ["shape", "zeros", "beams", "threads"], value=a_token))


TITLES = {
    "ATTENTION": "Speed and memory of ReLU attention",
    "MODELS": "Whole models beside their rivals",
    "SPARSE": "Zeros of feed-forward networks, spent in decoding",
}
ABOUT_ALL = """\
Generated by `python -m benchmarks pages` from the files in `results/`; `make bench` and `make bench-sparse` measure.
A ratio says how often the first is done in the time of one call of the second: the median over rounds in which both
were timed in turn, with P10–P90 of the rounds in brackets.
"""
ABOUT = {
    "ATTENTION": """\
`fused` is `relu_attention`, `S` and `T` the statistics of the regulariser; `sdpa softmax` is
`torch.nn.functional.scaled_dot_product_attention`. The other rivals hold all weights, and were not timed (–) where
that takes too long. `FlexAttention ReLU` has the score log(ReLU + 1), and undoes the softmax by a further key; torch has
no backward pass of it on a CPU. Goals of short lengths are over the fastest of two rivals, both without statistics.
""",
    "MODELS": """\
All have new weights. `ReLUFormer` and `ReLU` have their regulariser in the loss, `λ = 0` has none; Marian, ViT, GPT-2
and Llama are Transformers' with `sdpa`. The docstrings of `translation.py`, `translating.py`, `vision.py` and
`decoder.py` say what is compared.
""",
    "SPARSE": """\
`torch` is the network as PyTorch computes it, in int8 by `quantize_dynamic`. `dense` is the loop of `use_sparse_ffn`
with every neuron active, so that `zeros` against `dense` is what skipping gains, and `dense` against `torch` what the
loop gains without it. `both` is `zeros` in int8, with PyTorch's int8 for all other matrices.
""",
}
SECTIONS: dict[str, dict[str, tuple[str, Callable[[Result], Iterable[str]]]]] = {
    "ATTENTION": {
        "attention": ("Attention alone", _attention),
        "memory": ("Peak memory of a training step", _memory),
        "loss": ("The loss without logits", _one_table("dtype", "positions", "width", "vocabulary")),
    },
    "MODELS": {
        "end-to-end": ("Translation", _translation),
        "generation": ("Beam search of the systems of Table 4", _one_table("shape")),
        "translating": ("Translating on a CPU, beside CTranslate2", _translating),
        "translating-avx2": ("The same with AVX2 alone", _translating),
        "translating-types": ("What the types cost", _types),
        "vision": (
            "Vision Transformers",
            partial(tables_of, split=["task", "dtype"], facts=["length", "images", "threads"]),
        ),
        "decoder": (
            "Language models",
            partial(tables_of, split=["task", "library", "dtype"], facts=["context", "rows"]),
        ),
        "decoder-memory": ("Peak memory of a language model's training step", _memory),
    },
    "SPARSE": {"sparse-trained": ("A trained model", _trained), "sparse-models": ("Whole models", _zeros_models)},
}


def write_pages(folder: Path, pages: Path) -> Iterator[Path]:
    """Writes the pages of the result files in `folder`, and beside these the pictures; yields what was written."""
    if (result := read_result(folder / "attention-cpu.json")) is not None:
        yield _plot_speedups(result, folder / "attention-cpu.png")
    for name in SECTIONS:
        path = pages / f"{name}.md"
        path.write_text(render(name, folder), encoding="utf-8")
        yield path


def _plot_speedups(result: Result, path: Path) -> Path:
    """Speedup over SDPA softmax (line: median of the rounds, band: P10–P90) against length, not causal, batch 1."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = itertools.product(DTYPES, PASSES)
    for axes, (dtype, which) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        wanted = {"dtype": dtype, "pass": which, "causal": False, "batch": 1, "head_dim": HEAD_DIM}
        cells = [cell for cell in result["cells"] if wanted.items() <= cell.items() and cell["length"] >= LENGTHS[0]]
        lengths = [cell["length"] for cell in cells]
        for name, (color, marker, label) in SPEED_LINES.items():
            found = [cell["speedups"][name][SDPA] for cell in cells]
            median, low, high = ([ratio[key] for ratio in found] for key in ("median", "p10", "p90"))
            axes.plot(lengths, median, color=color, marker=marker, markersize=4, label=label)
            axes.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(1.0, color=SOFTMAX, linewidth=1.2, label="softmax, SDPA")
        axes.set(ylim=(0, None), title=f"{dtype}, {which}", xlabel="length n", ylabel="speedup over SDPA softmax")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    lines, names = figure.axes[0].get_legend_handles_labels()
    says = "line: median, band: P10 to P90 of the rounds"
    figure.legend(lines, names, title=says, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def render(name: str, folder: Path = RESULTS) -> str:
    """A page as Markdown."""
    results = {file: read_result(folder / f"{file}-cpu.json") for file in SECTIONS[name]}
    lines = [f"# {TITLES[name]}", "", ABOUT_ALL, ABOUT[name], "## Goals", ""]
    goals = yaml.safe_load(Path(__file__).with_name("goals.yaml").read_text(encoding="utf-8"))
    lines += goal_table([goal for goal in goals if goal["file"] in results], results)
    for file, (heading, body) in SECTIONS[name].items():
        result = results[file]
        lines += ["", f"## {heading}", ""]
        lines += [_unmeasured(file)] if result is None else [*origin(result, file), "", *body(result)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _unmeasured(file: str) -> str:
    how = " `make bench-avx2` measures it, in about ten minutes of an idle machine." if "avx2" in file else ""
    return f"Not measured.{how}"
