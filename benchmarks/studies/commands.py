"""What is left to do of a row, as commands of this repository: training, evaluation, analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

import yaml
from PIL import Image

from benchmarks.studies.pictures import read_idx
from benchmarks.studies.study import Analysis
from benchmarks.studies.tasks import Task, evaluated_split, missing_analyses, read_json, unevaluated_splits
from benchmarks.studies.texts import documents as documents_of
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE
from reluformer.training.scoring.evaluation import read_translations

RELUFORMER, TRAIN_ROW = "reluformer", "benchmarks.studies.training"


def commands_of(task: Task, state: str) -> list[list[str]]:
    """What is left to do in a state, in order: a module and its arguments each."""
    # Translation is trained by `reluformer train`; a task of another name, by a program of the studies.
    train, is_translation = [TRAIN_ROW, str(task.recipe_file)], "task" not in task.row.recipe
    if is_translation:
        train = [RELUFORMER, "train", "--config", str(task.recipe_file)]
    if state in ("missing", "begun"):
        if task.start is not None:
            _require_model(task.start)
        task.recipe_file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(task.recipe(), sort_keys=False, allow_unicode=True, width=120)
        task.recipe_file.write_text(text, encoding="utf-8")
        return [train]
    if state == "trained":
        splits = unevaluated_splits(task.run_folder)
        if not is_translation:
            return [train] if splits else []
        return [[RELUFORMER, "evaluate", "--run", str(task.run_folder), "--split", split] for split in splits]
    # A result of another machine has no model here to analyse.
    has_model = (task.run_folder / RECORD_FILE).is_file()
    return analysis_commands(task, missing_analyses(task)) if has_model else []


def _require_model(before: Task) -> None:
    record = before.run_folder / RECORD_FILE
    if not record.is_file():
        raise UserError(f"{before.name}, which it starts from, is not trained ({before.log_file})")
    if read_json(record).get("diverged"):
        raise UserError(f"{before.name}, which it starts from, did not converge ({before.result_file})")


def analysis_commands(task: Task, wanted: Sequence[str]) -> list[list[str]]:
    """The commands that make the wanted analyses of a row: one for all that read the same text.

    The text, the test split or its beginning, is written first; for a language model, its documents one below the other.

    Raises:
        UserError: a language model has evaluated no split.
    """

    def same(analysis: Analysis) -> tuple[bool, int]:
        return (analysis.documents, analysis.lines or 0)

    analyses = sorted((analysis for analysis in task.row.analyses if analysis.what in wanted), key=same)
    commands = []
    for (documents, lines), group in groupby(analyses, key=same):
        folder = task.analysis_folder / f"{'sentences' if documents else 'text'}-{lines or 'all'}"
        inputs = (_sentences if documents else _inputs)(task, lines or None, folder)
        names = [analysis.what for analysis in group]
        given = ["--model", str(task.run_folder), *inputs, "--output", str(task.analysis_folder)]
        commands.append([RELUFORMER, "analyze", "--what", *names, *given])
    return commands


def _inputs(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the text, where there is one; the options that name it, or the pictures."""
    kind = task.row.recipe.get("task")
    if kind == "language_modeling":
        return ["--text", _written(folder / "text.txt", _document_lines(task, lines))]
    if kind == "image_classification":
        folder.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(read_idx(task.recipe()["data"]["test"]["images"], 3)):
            Image.fromarray(picture).save(folder / f"{number:06}.png")
        return ["--images", str(folder)]
    rows = read_translations(task.run_folder / "translations.test.tsv")[:lines]
    source = _written(folder / "source.txt", (row[0] for row in rows))
    target = _written(folder / "target.txt", (row[2] for row in rows))
    return ["--text", source, "--target-text", target]


def _sentences(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the sentences of the test split, and the document of each."""
    data = load_recipe(task.run_folder / RECIPE_FILE).data
    sentences, _ = load_split(data, "test")
    files = []
    for option, column in (("--text", "source"), ("--target-text", "target"), ("--documents", "document")):
        files += [option, _written(folder / f"{column}.txt", sentences[column][:lines])]
    return [*files, "--max_length", str(data.max_length)]


def _document_lines(task: Task, lines: int | None) -> Iterator[str]:
    split = evaluated_split(task.run_folder, "documents")
    if split is None:
        raise UserError(
            f"{task.run_folder}: has evaluated no split whose text could be analysed; give evaluation.splits one"
        )
    texts = (text for _, text in documents_of(task.recipe()["data"], split))
    return islice((line for text in texts for line in text.split("\n")), lines)


def _written(path: Path, lines: Iterable[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)
