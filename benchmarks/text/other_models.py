"""ReLU attention beside softmax in models of other families: runs the programs of examples/, and the page of what they measured.

    python -m benchmarks.text.other_models run --task pairs --texts data/multi30k/train.en.gz data/tatoeba/train.en.gz
    python -m benchmarks.text.other_models run --task llama --texts data/europarl_it_en/train.en.gz
    python -m benchmarks.text.other_models page

`run` trains each kind of attention with each seed, on the same examples and with the same number of updates. It writes
`benchmarks/results/other-models-<task>.json` after each run. `page` writes `benchmarks/OTHER_MODELS.md` from these files.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

from benchmarks.markdown import table
from benchmarks.measurement_file import PAGES, RESULTS, begin
from benchmarks.studies.collection import read_json
from examples import classify_pairs, train_llama
from reluformer.configuration.errors import UserError
from reluformer.training.run.records import write_json

PAGE = PAGES / "OTHER_MODELS.md"
SEEDS = (1, 2)
KINDS = {
    "ReLU, λ = 0.01": ("--attention", "relu", "--regularization_weight", "0.01"),
    "ReLU, λ = 0": ("--attention", "relu", "--regularization_weight", "0"),
    "softmax": ("--attention", "softmax"),
}


@dataclass(frozen=True)
class Task:
    """program: of examples/. figures: a column each: the key of a result and how it is written. baseline: its title and key."""

    title: str
    program: ModuleType
    figures: dict[str, tuple[str, str]]
    baseline: tuple[str, str, str]
    about: str


TASKS = {
    "pairs": Task(
        title="A text classifier: BERT from new weights",
        program=classify_pairs,
        figures={"accuracy": ("accuracy", "{:.1%}"), "validation loss": ("validation_loss", "{:.3f}")},
        baseline=("A bag of words tells {} right", "bag_of_words_accuracy", "{:.1%}"),
        about="Is the first of two sentences from Multi30k or Tatoeba? {examples:,} examples, {updates:,} updates; the pairs "
        "have {median_length} tokens in the median.",
    ),
    "llama": Task(
        title="A language model: Llama from new weights",
        program=train_llama,
        figures={"validation loss, nats a token": ("validation_loss", "{:.3f}")},
        baseline=("The frequencies of the tokens alone have a loss of {}", "frequency_loss", "{:.3f}"),
        about="Blocks of 128 tokens, {updates:,} updates, {training_tokens:,} tokens of training.",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("page", help="benchmarks/OTHER_MODELS.md from the committed results")
    runs = what.add_parser("run", help="train, and write the results of one task")
    runs.add_argument("--task", required=True, choices=TASKS)
    runs.add_argument("--texts", required=True, nargs="+", help="text files of the example, one sentence a line")
    runs.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, help="results of other seeds are kept (default: 1 2)"
    )
    runs.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    options, rest = parser.parse_known_args(arguments)
    try:
        if options.what == "run":
            path = run(options, rest)
        elif rest:
            parser.error(f"unrecognized arguments: {shlex.join(rest)}")
        else:
            path = write_page()
    except UserError as error:
        print(f"other_models: error: {error}", file=sys.stderr)
        return 2
    print(path.relative_to(PAGES.parent))
    return 0


def result_file(task: str) -> Path:
    return RESULTS / f"other-models-{task}.json"


def run(options: argparse.Namespace, rest: list[str]) -> Path:
    """Trains every kind of attention with every seed. `rest`: further options of the example, the same for all."""
    task, path = TASKS[options.task], result_file(options.task)
    script = Path(task.program.__file__).relative_to(PAGES.parent).as_posix()
    for seed in options.seeds:
        for kind, chosen in KINDS.items():
            given = ["--texts", *options.texts, *chosen, *rest, "--seed", str(seed)]
            record = begin(argparse.Namespace(threads=options.threads, seed=seed, quick=False))
            record["command"] = shlex.join(["python", script, *given, "--output_dir", "model"])
            with tempfile.TemporaryDirectory() as folder:
                result = task.program.main([*given, "--output_dir", folder])
            _keep(path, options.task, {**record, "kind": kind, "result": result})
    return path


def _keep(path: Path, task: str, run: dict[str, Any]) -> None:
    """Puts a run into the file of its task, in the place of one of the same kind and seed."""

    def place(each: dict[str, Any]) -> tuple[int, int]:
        return each["seed"], list(KINDS).index(each["kind"])

    others = read_json(path)["runs"] if path.is_file() else []
    runs = [each for each in others if place(each) != place(run)]
    write_json(path, {"task": task, "runs": sorted([*runs, run], key=place)})


def write_page() -> Path:
    """The page of all tasks.

    Raises:
        UserError: a task that was not run, or not with every kind and seed.
    """
    lines = [
        "# ReLU attention in other models, beside softmax",
        "",
        "Generated by `python -m benchmarks.text.other_models page` from the results of the programs in `examples/`. The models",
        "of one table differ in their attention alone: same examples, same number of updates, same learning rate. γ is that of",
        '`gamma="auto"`. The models are small and the runs short: they show that ReLU attention trains in these families, not',
        "which attention is better in the end. The validation loss is without the regulariser. Speed was not compared.",
        "",
        "The classifier's task is the fourth that was tried. Three harder ones (two words or the halves of a sentence",
        "exchanged; are both sentences from one corpus?) were given up, since a model of this size did not learn them within",
        "these updates; in the first of them softmax was ahead by then.",
        "",
    ]
    for name, task in TASKS.items():
        path = result_file(name)
        if not path.is_file():
            raise UserError(
                f"{path} is missing; write it with python -m benchmarks.text.other_models run --task {name}"
            )
        lines += _section(task, path)
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return PAGE


def _section(task: Task, path: Path) -> list[str]:
    runs = read_json(path)["runs"]
    by_kind = {kind: [each for each in runs if each["kind"] == kind] for kind in KINDS}
    for kind, found in by_kind.items():
        if [each["seed"] for each in found] != list(SEEDS):
            raise UserError(
                f"{path}: {kind} needs a run with each of the seeds {', '.join(map(str, SEEDS))}; run it again"
            )
    first, (title, key, text) = runs[0], task.baseline
    header = ["attention", "γ", *(f"{name}: mean (seed {', seed '.join(map(str, SEEDS))})" for name in task.figures)]
    rows = [
        [kind, _gamma(found[0]), *(_figure(found, *each) for each in task.figures.values())]
        for kind, found in by_kind.items()
    ]
    machine = first["machine"]
    return [
        f"## {task.title}",
        "",
        f"{task.about.format(**first['result'])} {title.format(text.format(first['result'][key]))}.",
        "",
        *table(header, rows),
        "",
        f"[{path.name}](results/{path.name}): {first['date'][:10]}, {_commits(runs)}"
        f"{', with local changes' if any(each['git_dirty'] for each in runs) else ''}, {machine['cpu']}, "
        f"{machine['torch_threads']} thread, {first['loop']} loop, torch {first['versions']['torch']}, transformers "
        f"{first['versions']['transformers']}. The first of its commands:",
        "",
        f"`{first['command']}`",
        "",
    ]


def _commits(runs: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys((each["git_commit"] or "unknown")[:12] for each in runs))
    return f"commit{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _gamma(run: dict[str, Any]) -> str:
    attention = run["result"]["attention"]
    return "–" if attention == "softmax" else f"{attention['gamma']:g}"


def _figure(runs: list[dict[str, Any]], key: str, text: str) -> str:
    values = [run["result"][key] for run in runs]
    return f"{text.format(mean(values))} ({', '.join(text.format(value) for value in values)})"


if __name__ == "__main__":
    sys.exit(main())
