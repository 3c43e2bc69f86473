"""Run folders → committed result files, and the table of all results.

    python -m benchmarks.text.collect_runs runs/multi30k_en_de_tiny runs/multi30k_en_de_tiny_softmax

Each finished run becomes `benchmarks/results/<recipe>-seed<seed>.json`: its training record, its evaluations and its
training curve, beside the resolved recipe. Runs given together and evaluated on the same references are compared by
sacreBLEU's paired bootstrap. `benchmarks/RESULTS.md` is then written anew from all result files: no figure in it is typed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from benchmarks.markdown import table
from benchmarks.measurement_file import PAGES, RESULTS
from benchmarks.studies import collection
from benchmarks.studies.collection import collect, read_json
from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import TOLD_SCORES
from reluformer.training.run.records import write_json
from reluformer.training.scoring.evaluation import read_translations

TABLE = PAGES / "RESULTS.md"
BOOTSTRAP_SAMPLES = 1000

# The tokenizers of these runs lower-case, so that a cased BLEU says nothing of them.
_TOLD = [score for score in TOLD_SCORES if score.name != "bleu" and not score.of_documents and score.text != "moses"]


def score_of(result: dict[str, Any], name: str, split: str = "test") -> str:
    value = result["evaluations"].get(split, {}).get(name)
    return "" if value is None else f"{value:.2f}"


COLUMNS = {
    "recipe": lambda result: f"[{result['training']['recipe']}](results/{result['file']})",
    "attention": lambda result: result["recipe"]["model"].get("preset", "reluformer"),
    "seed": lambda result: str(result["training"]["seed"]),
    "updates": lambda result: f"{result['training']['updates']:,}",
    "target tokens an update": lambda result: f"{result['training']['target_tokens_per_update']:,.0f}",
    "target tokens a second": lambda result: f"{result['training']['target_tokens_per_second']:,.0f}",
    **{told.title: partial(score_of, name=told.name) for told in _TOLD},
    "row entropy H": lambda result: last_figure(result, "eval_attention_entropy", "{:.2f}"),
    "dead rows, %": lambda result: last_figure(result, "eval_dead_row_fraction", "{:.1%}").removesuffix("%"),
    "mean S": lambda result: last_figure(result, "eval_attention_sum", "{:.2f}"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="finished run folders")
    try:
        folders = parser.parse_args(arguments).runs
        for folder in folders:
            result = collect(folder)
            path = RESULTS / f"{result['training']['recipe']}-seed{result['training']['seed']}.json"
            write_json(path, {**result, "compared_with": compare(folder, folders)})
            print(path.relative_to(RESULTS.parent.parent))
        TABLE.write_text(render(load_results()), encoding="utf-8")
        print(TABLE.relative_to(TABLE.parent.parent))
    except UserError as error:
        print(f"collect_runs: error: {error}", file=sys.stderr)
        return 2
    return 0


def compare(folder: Path, others: list[Path], split: str = "test") -> list[dict[str, Any]]:
    """Paired bootstrap of lower-cased BLEU (13a) between this run and those evaluated on the same references."""
    mine = read_translations(folder / f"translations.{split}.tsv")
    comparisons = []
    for other in others:
        theirs = read_translations(other / f"translations.{split}.tsv")
        if other == folder or [row[2] for row in theirs] != [row[2] for row in mine]:
            continue
        systems = [(str(other), [row[1] for row in theirs]), (str(folder), [row[1] for row in mine])]
        test = PairedTest(
            systems,
            {"BLEU": BLEU(lowercase=True)},
            references=[[row[2] for row in mine]],
            test_type="bs",
            n_samples=BOOTSTRAP_SAMPLES,
        )
        baseline, system = test()[1]["BLEU"]
        comparisons.append(
            {
                "with": other.name,
                "difference": system.score - baseline.score,
                "p_value": system.p_value,
                "interval_of_this": [system.mean - system.ci, system.mean + system.ci],
                "interval_of_other": [baseline.mean - baseline.ci, baseline.mean + baseline.ci],
                "bootstrap_samples": BOOTSTRAP_SAMPLES,
            }
        )
    return comparisons


def load_results() -> list[dict[str, Any]]:
    return [{**read_json(path), "file": path.name} for path in sorted(RESULTS.glob("*-seed*.json"))]


def render(results: list[dict[str, Any]]) -> str:
    """The table as Markdown; a column in which no run has a figure is left out."""
    rows = [{name: read(result) for name, read in COLUMNS.items()} for result in results]
    columns = [name for name in COLUMNS if any(row[name] for row in rows)]
    lines = [
        "# Measured results",
        "",
        "Generated by `python -m benchmarks.text.collect_runs` from the files in `results/`, which hold commands, commits,",
        "seeds, versions, machines and curves. Scores are of the test split; H, dead rows and S are of the last evaluation on",
        "the validation split. One seed a row.",
        "",
        *table(columns, ([row[name] or "–" for name in columns] for row in rows)),
        "",
        *(line for result in results for line in _comparison_lines(result)),
        *(line for result in results for line in _origin_lines(result)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def last_figure(result: dict[str, Any], name: str, text: str) -> str:
    value = collection.last_figure(result["log_history"], name)
    return "" if value is None else text.format(value)


def _comparison_lines(result: dict[str, Any]) -> list[str]:
    name = result["training"]["recipe"]
    return [
        f"- {name} against {other['with']}: {other['difference']:+.2f} BLEU (13a, lower-cased; sacreBLEU's paired bootstrap of "
        f"{other['bootstrap_samples']:,} samples, one-sided p = {other['p_value']:.3f}; 95 % intervals "
        f"{other['interval_of_this'][0]:.1f}–{other['interval_of_this'][1]:.1f} and "
        f"{other['interval_of_other'][0]:.1f}–{other['interval_of_other'][1]:.1f})."
        for other in result.get("compared_with", [])
        if other["difference"] >= 0  # its twin's file holds the same with the other sign
    ]


def _origin_lines(result: dict[str, Any]) -> list[str]:
    training = result["training"]
    machine, versions = training["machine"], training["versions"]
    return [
        "",
        f"`{training['command']}`",
        f": {training['date'][:10]}, commit {(training['git_commit'] or 'unknown')[:12]}"
        f"{', with local changes' if training['git_dirty'] else ''}, {training['seconds'] / 60:.0f} min on {machine['cpu']} "
        f"({machine['torch_threads']} of {machine['usable_cores']} cores), torch {versions['torch']}, "
        f"transformers {versions['transformers']}.",
    ]


if __name__ == "__main__":
    sys.exit(main())
