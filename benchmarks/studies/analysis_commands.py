"""What `reluformer analyze` is called with on the model of a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.studies.study import Analysis
from benchmarks.studies.tasks import Task, analysis_folder
from reluformer.training.scoring.evaluation import read_translations


def analysis_commands(task: Task, wanted: Sequence[str]) -> list[list[str]]:
    """The commands that make the wanted analyses of a row: one for all that read the same text with the same options.

    The text, the test split or its beginning, is written first.

    Raises:
        UserError: the run has no translations of the test split, which is where the text is taken from.
    """

    def same(analysis: Analysis) -> tuple[int, list[str]]:
        return (analysis.lines or 0, analysis.options)

    analyses = sorted((analysis for analysis in task.row.analyses if analysis.what in wanted), key=same)
    commands = []
    for (lines, options), group in groupby(analyses, key=same):
        source, target = _write_texts(task, lines or None)
        names = [analysis.what for analysis in group]
        files = ["--model", str(task.run_folder), "--text", str(source), "--target-text", str(target)]
        commands.append(["analyze", "--what", *names, *files, "--output", str(analysis_folder(task)), *options])
    return commands


def _write_texts(task: Task, lines: int | None) -> tuple[Path, Path]:
    rows = read_translations(task.run_folder / "translations.test.tsv")[:lines]
    folder = analysis_folder(task) / f"text-{lines or 'all'}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "source.txt", folder / "target.txt"
    for path, column in zip(paths, (0, 2), strict=True):
        path.write_text("".join(f"{row[column]}\n" for row in rows), encoding="utf-8", newline="\n")
    return paths
