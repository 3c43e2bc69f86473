"""`docs/reproduction.md`: the paper's figures beside ours, generated from result files. No figure in it is typed."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.studies.claims import (
    AGREES,
    DISAGREES,
    KINDS,
    LEARNED,
    PENDING,
    WORDS,
    Verdict,
    decisive,
    judge,
    of_statement,
)
from benchmarks.studies.outcomes import RUN, Outcome, at_size, outcomes_of, select, value
from benchmarks.studies.parser import STUDIES_FOLDER, load_rows, load_study, study_names
from benchmarks.studies.plots import draw_plot
from benchmarks.studies.scores import FEWEST_ITEMS, SAMPLES, STATISTICS
from benchmarks.studies.study import RELUFORMER_PAPER, Figure, Study
from benchmarks.studies.tasks import RESULTS, RUNS, Places, has_diverged

SIZE_TITLES = {
    "smoke": "Size `smoke`",
    "cpu": "On two CPU cores (size `cpu`)",
    "paper": "The paper's sizes (size `paper`)",
}
_HEAD = """# The papers' studies, and ours beside them

```bash
python -m benchmarks.studies --study t2      # trains what a table needs; each table names its study
make reproduction                            # writes this page and its pictures from the results
```

What five papers claim about ReLU attention and ReLU networks, and what our trainings say of each claim. All figures of ours come
from the files in `{results}`, which hold recipes, seeds, versions, machines and curves.
[ReLU or softmax?](when_to_use.md) says what follows for a user, and [what was measured](evidence.md) has each ReLU model beside
its softmax twin.
"""
_HOW_TO_READ = """### How to read it

- **Arrows.** ↑ higher is better, ↓ lower is better. Columns without an arrow describe a model.
- **Several seeds.** A figure is the mean, and each seed stands in brackets.
- **Sizes.** On CPUs, everything is smaller than in the papers. Compare orderings and signs with theirs, not the scores.
- **Verdicts.** Our figures *agree* or *disagree* with a claim, or leave it *undecided*; the reason is given. A claim is *not
  measured* where its models are of another size or cannot be trained here, and *pending* where a training is missing.
- **The table above counts statements.** What a paper states once is one statement, in however many widths, layers or lengths we
  test it. A statement agrees where all tests of it that were measured agree. It disagrees where some disagree and none agrees,
  and is undecided otherwise. Where models of it were trained to the end, these alone decide.
- **Which of two is ahead** in BLEU, accuracy or perplexity is decided by one method. The trainings of one seed are a pair,
  because they see the data in the same order.
  - Three seeds or more: the 95 % interval of the mean difference must leave 0 out. It has two sources of noise. The differences
    of k seeds have a standard deviation s, and their mean, less the one over all seeds and divided by s/√k, has Student's t
    distribution with k − 1 degrees of freedom. The noise of the test text is that of a paired bootstrap ({samples} samples,
    drawn as by sacreBLEU, of {fewest} or more sentences, pictures or documents). Each sample gets a value of that t
    distribution, times s/√k, added. Where only seeds or only texts make noise, 95 % of such intervals hold the true difference,
    and more where both do.
  - One seed: the p-value of the bootstrap must be below 0.05. This says nothing about other seeds, and is marked.
  - Two seeds: in addition, both must point the same way, and the mean of their differences must be larger than s.
- **Equal, to a margin** is decided by two one-sided tests of 5 %: the 90 % interval must lie within the margin. It contradicts
  the claim where all of it lies outside. *No further behind* than a margin needs one such test. With one seed or two, the
  interval is that over the test set, widened to hold the difference of each seed.
- **By more than x**: the difference less x must pass its test.
- **Any other figure**: all seeds must say the same and, where a standard error is known, by more than 1.96 of them. BLEU of whole
  documents decides nothing, because the tests have two documents.
- ***Does not converge***: the loss is not finite, or the model has less than half of its softmax twin's BLEU after as many
  updates. Until 26 November 2026 the limit was 1 BLEU, by which the two claims of this kind in tables 4 and 5 disagreed.
- **Nothing learned**: where both models have less than {learned:g} BLEU, they decide no claim of a paper about BLEU.
- Where a paper gives no threshold, ours stands in brackets. Below each table stand the test text and sacreBLEU's signature of our
  figures; the papers' are tokenised BLEU of their own corpora.

"""
# Parts of a figure's path that say which direction is better.
_HIGHER = ("bleu", "accuracy", "tokens_per_second", "speed")
_LOWER = ("perplexity", ".nll", "cross_entropy", "calibration_error", "seconds", "memory", "dead_row", "nan_count")
_WIDEST = 6  # columns of figures in a table; more become another table below it
_OURS, _ALL, _ONE_SEED = "ours", "all", "decided by one seed"
_PAPERS = {
    RELUFORMER_PAPER: f"ReLUFormer ({RELUFORMER_PAPER})",
    "arXiv 2309.08586": "ReLU in Vision Transformers (arXiv 2309.08586)",
    "arXiv 2410.09637": "language models without norms (arXiv 2410.09637)",
    "arXiv 2411.02335": "activation sparsity (arXiv 2411.02335)",
    "arXiv 2210.06313": "the lazy neuron (arXiv 2210.06313)",
    _OURS: "our own studies",
}

Loaded = Sequence[tuple[str, Study]]
Verdicts = Mapping[str, Sequence[Verdict]]


def write_reproduction(
    path: Path,
    *,
    sizes: Sequence[str] = ("cpu", "paper"),
    runs: Path = RUNS,
    results: Path = RESULTS,
    studies: Path = STUDIES_FOLDER,
) -> Path:
    """Writes the report, a file of Markdown, and its plots into a folder of the same name beside it.

    sizes: of rows; one of which no row has been run is said to be so in one line. runs, results, studies: folders.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    everywhere = [(name, load_study(name, studies)) for name in study_names(studies)]
    everywhere.sort(key=lambda named: named[1].position)
    lines = [_HEAD.format(results=results)]
    for size in sizes:
        lines += ["", f"## {SIZE_TITLES[size]}", ""]
        loaded = [(name, at_size(study, size)) for name, study in everywhere]
        catalogue, places = load_rows(size, studies), Places.of(size, runs, results)
        outcomes = {name: outcomes_of(study, catalogue, places) for name, study in loaded}
        if size != sizes[0] and not any(
            outcome.results for of_study in outcomes.values() for outcome in of_study.values()
        ):
            train = f"`python -m benchmarks.studies --size {size}` trains them; the tests check their recipes."
            lines.append(f"No row was run. {train}")
            continue
        verdicts = {name: judge(study, outcomes[name]) for name, study in loaded}
        lines += _tally(loaded, verdicts)
        lines.append(_HOW_TO_READ.format(samples=f"{SAMPLES:,}", fewest=FEWEST_ITEMS, learned=LEARNED))
        for name, study in loaded:
            lines += _study(name, study, outcomes[name], verdicts[name], path, size)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return path


def _tally(loaded: Loaded, verdicts: Verdicts) -> list[str]:
    """How the statements of each paper, and our own expectations, stand by what they are about."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    statements: dict[tuple[str, str], list[Verdict]] = {}
    for name, study in loaded:
        for verdict in verdicts[name]:
            key = (_OURS if study.ours else study.paper, verdict.statement)
            statements.setdefault(key, []).append(verdict)
    for (paper, _), tests in statements.items():
        word = of_statement(tests)
        deciding = [verdict for verdict in decisive(tests) if verdict.verdict in (AGREES, DISAGREES)]
        alone = word in (AGREES, DISAGREES) and all(verdict.of_one_seed for verdict in deciding)
        for kind in (tests[0].kind, _ALL):
            of = counts.setdefault((paper, kind), Counter())
            of.update([word, _ALL, *([_ONE_SEED] if alone else [])])
    words = [*(word for word in WORDS if any(count[word] for count in counts.values())), _ALL, _ONE_SEED]
    rows = [
        [title, kind, *(str(count[word]) for word in words)]
        for paper, title in _PAPERS.items()
        for kind in ((*KINDS, _ALL) if paper == RELUFORMER_PAPER else (_ALL,))
        if (count := counts.get((paper, kind)))
    ]
    return [
        "### The claims",
        "",
        "How our figures compare with what each paper states. A statement counts once, however often it was tested.",
        "",
        *table(["paper", "about", *words], rows),
        "",
    ]


def _study(
    name: str, study: Study, outcomes: Mapping[str, Outcome], verdicts: Sequence[Verdict], path: Path, size: str
) -> list[str]:
    lines = [f"### {study.title}", "", study.source.strip(), "", f"Study `{name}`:", "", *_tables(study, outcomes), ""]
    lines += [line for text in _scored_on(study, outcomes) for line in (text, "")]
    if verdicts:
        header = ["our expectation" if study.ours else "the paper's claim", "verdict", "figures"]
        rows = ([verdict.text, f"**{verdict.verdict}**", verdict.why] for verdict in verdicts)
        lines += [*table(header, rows), ""]
    for plot in study.plots:
        drawn = draw_plot(plot, study, outcomes, path.with_suffix("") / size)
        lines += [f"![{plot.title}]({_relative(drawn, path)})" if drawn else f"{plot.title}: {PENDING}.", ""]
    for label, row in study.pictures.items():
        lines += [*_pictures(label, outcomes.get(row), path), ""]
    return lines


def _tables(study: Study, outcomes: Mapping[str, Outcome]) -> list[str]:
    """The figures of all rows, in as many tables as keep each of them narrow; the first one has the numbers of
    seeds."""
    quoted = [name for name in study.figures if any(name in outcome.entry.paper for outcome in outcomes.values())]
    labels = [outcome.entry.label for outcome in outcomes.values()]
    of_figures: list[list[list[str]]] = []
    for name, figure in study.figures.items():
        columns = [[f"{figure.label}{_arrow(figure)}", *(_ours(study, name, outcome) for outcome in outcomes.values())]]
        if name in quoted:
            paper = [str(outcome.entry.paper.get(name) or "") for outcome in outcomes.values()]
            columns.insert(0, [f"{figure.label}, paper", *paper])
        of_figures.append(columns)
    count = sum(map(len, of_figures))
    widest = math.ceil(count / math.ceil(count / _WIDEST))
    groups: list[list[list[str]]] = [[]]
    for columns in of_figures:
        if len(groups[-1]) + len(columns) > widest:
            groups.append([])
        groups[-1] += columns
    groups[0].append(["seeds", *map(_status, outcomes.values())])
    lines: list[str] = []
    for columns in groups:
        heading, *rows = zip(["model", *labels], *columns, strict=True)
        lines += ["", *table(heading, rows)]
    return lines[1:]


def _arrow(figure: Figure) -> str:
    """Which direction is better, where one is."""
    if figure.path.endswith("_error"):
        return ""
    if any(part in figure.path for part in _HIGHER):
        return " ↑"
    return " ↓" if any(part in figure.path for part in _LOWER) else ""


def _scored_on(study: Study, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Where the rows of a study were trained, and on what and how its scores were measured: a sentence for each."""
    results = [result for outcome in outcomes.values() for result in outcome.results.values()]
    paths = {figure.path for figure in study.figures.values()}
    counts: dict[tuple[str, str, str, str], set[int]] = {}
    for result in results:
        for name, kind in STATISTICS.items():
            if (measured := result.get(name)) and f"{name}.score" in paths:
                label = f"{kind.label[0].upper()}{kind.label[1:]}"
                key = (label, kind.items, corpus_of(result["recipe"]), measured["signature"])
                counts.setdefault(key, set()).add(len(kind.rows(measured)))
    sentences = [
        f"{label}: {_in_words([f'{count:,}' for count in sorted(lengths)], 'or')} {items} of `{corpus}`, `{signature}`."
        for (label, items, corpus, signature), lengths in sorted(counts.items())
    ]
    machines = [machine for result in results if (machine := select(result, "training.machine"))]
    names = sorted({", ".join(machine.get("accelerators") or [machine["cpu"]]) for machine in machines})
    return [*([f"Trained on: {_in_words(names, 'and')}."] if names else []), *sentences]


def _in_words(texts: Sequence[str], last: str) -> str:
    *before, final = texts
    return f"{', '.join(before)} {last} {final}" if before else final


def corpus_of(recipe: Mapping[str, Any]) -> str:
    """What a recipe is trained on: the folder of its files, the name of a data set or of its list of packages."""
    data = recipe["data"]
    if packages := (data.get("corpus") or {}).get("packages"):
        return packages["listed"] or "installed packages"
    files = data.get("train") or {}
    if dataset := data.get("dataset") or files.get("dataset"):
        return dataset["path"]
    paths = files.get("source") or files.get("images") or files.get("paths")
    first = paths[0] if isinstance(paths, list) else paths
    return "made by the program" if first is None else Path(first).parent.as_posix()


def _ours(study: Study, name: str, outcome: Outcome) -> str:
    """The figure of a row: its mean over seeds and, with several, each of them."""
    figure = study.figures[name]
    if figure.file is not None:
        number = value(figure, outcome)
        return "–" if number is None else f"{number:,.{figure.digits}f}"
    texts, values = [], []
    for seed, result in outcome.results.items():
        number = value(figure, outcome, seed)
        if has_diverged(result):
            texts.append("does not converge")
        elif number is not None:
            values.append(number)
            texts.append(f"{number:,.{figure.digits}f}")
    if not values:
        return texts[0] if texts else "–"
    mean = f"{sum(values) / len(values):,.{figure.digits}f}"
    return mean if len(texts) == 1 else f"{mean} ({', '.join(texts)})"


def _status(outcome: Outcome) -> str:
    if outcome.status != RUN:
        return f"{outcome.status}: {outcome.why}"
    seeds = len(outcome.results)
    on_gpu = sum(bool(select(result, "training.machine.accelerators")) for result in outcome.results.values())
    return f"{seeds}{', on a GPU' if on_gpu == seeds else f', {on_gpu} of them on a GPU' if on_gpu else ''}"


def _pictures(label: str, outcome: Outcome | None, path: Path) -> list[str]:
    for seed in outcome.results if outcome else ():
        if files := sorted(outcome.tasks[seed].pictures_folder.glob("*.png")):
            return [f"![{label}]({_relative(file, path)})" for file in files]
    return [f"{label}: {PENDING}."]


def _relative(file: Path, path: Path) -> str:
    return Path(os.path.relpath(file, path.parent)).as_posix()
