"""What `reluformer analyze` is called with on the model of a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from benchmarks.studies.study import Analysis
from benchmarks.studies.tasks import Task, analysis_folder, evaluated_split
from benchmarks.studies.texts import documents as documents_of
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.run.run_folder import RECIPE_FILE
from reluformer.training.scoring.evaluation import read_translations


def analysis_commands(task: Task, wanted: Sequence[str]) -> list[list[str]]:
    """The commands that make the wanted analyses of a row: one for all that read the same text with the same options.

    The text, the test split or its beginning, is written first; for a language model, its documents one below the other.

    Raises:
        UserError: the run has no translations of the test split, which is where the text is taken from, or, of a language model,
            has evaluated no split; its documents are wanted, and its recipe packs none.
    """

    def same(analysis: Analysis) -> tuple[bool, int, list[str]]:
        return (analysis.documents, analysis.lines or 0, analysis.options)

    analyses = sorted((analysis for analysis in task.row.analyses if analysis.what in wanted), key=same)
    commands = []
    for (documents, lines, options), group in groupby(analyses, key=same):
        folder = analysis_folder(task) / f"{'sentences' if documents else 'text'}-{lines or 'all'}"
        names = [analysis.what for analysis in group]
        inputs = _sentences(task, lines or None, folder) if documents else _inputs(task, lines or None, folder)
        files = ["--model", str(task.run_folder), *inputs]
        commands.append(["analyze", "--what", *names, *files, "--output", str(analysis_folder(task)), *options])
    return commands


def _inputs(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the text, where there is one; the options that name it, or the pictures."""
    kind = (task.row.recipe or {}).get("task")
    if kind == "language_modeling":
        return ["--text", _written(folder / "text.txt", _document_lines(task, lines))]
    if kind == "image_classification":
        return _pictures(task)
    rows = read_translations(task.run_folder / "translations.test.tsv")[:lines]
    source, target = (
        _written(folder / f"{name}.txt", (row[column] for row in rows))
        for name, column in (("source", 0), ("target", 2))
    )
    return ["--text", source, "--target-text", target]


def _sentences(task: Task, lines: int | None, folder: Path) -> list[str]:
    """Writes the sentences of the test split, and the document of each."""
    data = load_recipe(task.run_folder / RECIPE_FILE).data
    if data.packing is None:
        raise UserError(f"{task.run_folder}: its recipe packs no documents; leave `documents` of the analysis out")
    sentences, _ = load_split(data, "test")
    files = []
    for option, column in (("--text", "source"), ("--target-text", "target"), ("--documents", "document")):
        files += [option, _written(folder / f"{column}.txt", sentences[column][:lines])]
    return [*files, "--max_length", str(data.max_length)]


def _pictures(task: Task) -> list[str]:
    files = task.recipe()["data"].get("test")
    if files is None:
        raise UserError(f"{task.run_folder}: its pictures are no IDX files; such a row has no analyses")
    return ["--images", files["images"], "--image_labels", files["labels"]]


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
