"""Scoring a trained model on pairs; the figures, and every translation behind them, are written into the run folder."""

from __future__ import annotations

import dataclasses
import logging
import re
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import datasets
from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError
from reluformer.configuration.whole_files import write_whole
from reluformer.training.data.documents import PackedDocuments
from reluformer.training.run.progress import bars_are_seen, clock_time, tell
from reluformer.training.run.records import run_record, write_json
from reluformer.training.scoring.metrics import score_documents, score_translations
from reluformer.training.translation import Translator

logger = logging.getLogger(__name__)

# Where no bar is seen.
_SECONDS_BETWEEN_LINES = 10.0
_COLUMNS = ("source", "hypothesis", "reference")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escaped: plain for plain, escaped in _ESCAPES.items()}


def evaluate_run(
    run: str | Path | Translator,
    pairs: datasets.Dataset | PackedDocuments,
    *,
    split: str = "test",
    folder: str | Path | None = None,
    dataset_name: str | None = None,
    language: str | None = None,
    text: Literal["plain", "moses"] = "plain",
    command: str | None = None,
    recipe_name: str | None = None,
    seed: int | None = None,
    progress: bool = True,
    **translator_options: Any,
) -> dict[str, Any]:
    """Translates the sources of `pairs` and scores the translations against the targets.

    Writes `evaluation.<split>.json` (what is returned) and `translations.<split>.tsv` (see `read_translations`). Until all
    is translated, what is done lies in `translations.<split>.tsv.partial`, where a failure leaves it.

    Args:
        run: run folder or Hub id, or a `Translator` for a model in memory.
        pairs: columns "source" and "target"; or packed documents, which are scored as they are and, as one
            scoring unit common to all lengths of packing, as whole original documents.
        split: names the two files.
        folder: where to write; default the run folder. Must be given with a `Translator` or a Hub id.
        dataset_name: what the pairs are, for the record and the model card.
        language, text: see `score_translations`.
        command, recipe_name, seed: see `run_record`.
        progress: show a progress bar on a terminal, elsewhere a line every ten seconds.
        translator_options: of `Translator.from_pretrained`; not with a `Translator`, which has its own.

    Returns:
        The run record, `split`, `dataset`, the scores of `score_translations`, for packed documents those of
        `score_documents` and `packing` (their `PackingReport`) too, `decoding`, `shortened_sources` (the numbers, from 1, of
        those that were truncated or split), `device`, `seconds` of translating alone, `sentences_per_second`. `sentences`
        are the texts translated: sentences or packed documents.

    Raises:
        UserError: no pairs, columns missing, a split that cannot name a file, no folder to write to, and what
            `Translator` raises.
    """
    packed = pairs if isinstance(pairs, PackedDocuments) else None
    pairs = pairs if packed is None else packed.pairs
    _check(pairs, split)
    folder = _output_folder(run, folder)
    translator = _translator(run, translator_options)
    sources, references = list(pairs["source"]), list(pairs["target"])
    start = time.perf_counter()
    partial = folder / f"translations.{split}.tsv.partial"
    hypotheses = _translated(translator, sources, references, partial, progress)
    seconds = time.perf_counter() - start
    # First, so that an error in scoring does not cost the translations.
    write_translations(folder / f"translations.{split}.tsv", sources, hypotheses, references)
    partial.unlink(missing_ok=True)  # another process may have translated the same split meanwhile
    result = {
        **run_record(command, recipe_name, seed),
        "split": split,
        "dataset": dataset_name,
        **score_translations(hypotheses, references, language=language, text=text),
        **({} if packed is None else _document_figures(packed, hypotheses, language=language, text=text)),
        "decoding": translator.decoding,
        "shortened_sources": translator.shortened,
        "device": str(translator.model.device),
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(sources) / seconds, 2),
    }
    write_json(folder / f"evaluation.{split}.json", result)
    return result


def _translated(
    translator: Translator, sources: Sequence[str], references: Sequence[str], partial: Path, progress: bool
) -> list[str]:
    finished = translator.finished(sources, progress)  # all sources are checked here
    hypotheses = [""] * len(sources)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as rows:
            rows.write(_row(_COLUMNS))
            started = told = time.monotonic()
            for done, (index, hypothesis) in enumerate(finished, start=1):
                hypotheses[index] = hypothesis
                if progress and not bars_are_seen() and time.monotonic() - told > _SECONDS_BETWEEN_LINES:
                    told = time.monotonic()
                    left = (told - started) / done * (len(sources) - done)
                    tell(f"{done:,} of {len(sources):,} translated · {clock_time(left)} left")
                rows.write(_row((sources[index], hypothesis, references[index])))
                rows.flush()
    except BaseException:
        logger.warning("%s holds the translations that were done", partial)
        raise
    return hypotheses


def _document_figures(packed: PackedDocuments, hypotheses: Sequence[str], **kind: Any) -> dict[str, Any]:
    scores = score_documents(hypotheses, list(packed.pairs["document"]), packed.references, **kind)
    return {**scores, "packing": dataclasses.asdict(packed.report)}


def write_translations(
    path: str | Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Path:
    r"""Writes source, hypothesis, reference as tab-separated UTF-8 with a header.

    Tab, line feed, carriage return and backslash inside a text are written as `\t`, `\n`, `\r` and `\\`.
    """
    rows = [_COLUMNS, *zip(sources, hypotheses, references, strict=True)]
    write_whole(path, "".join(map(_row, rows)))
    return Path(path)


def read_translations(path: str | Path) -> list[tuple[str, str, str]]:
    """The (source, hypothesis, reference) rows of a file that `write_translations` wrote.

    Raises:
        UserError: the file is missing or is another kind of file, with the line.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; `reluformer evaluate` writes it")
    rows = []
    # Not splitlines(): it would also split at characters such as U+2028 inside a sentence.
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), start=1):
        cells = tuple(_unescape(cell) for cell in line.split("\t"))
        if len(cells) != len(_COLUMNS) or (number == 1 and cells != _COLUMNS):
            raise UserError(f"{path}, line {number}: expected the cells {', '.join(_COLUMNS)}; found {len(cells)}")
        rows.append(cells)
    return rows[1:]


def format_samples(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], count: int = 5, width: int = 100
) -> str:
    """`count` translations beside their references, evenly spread over the corpus, so neither chosen nor random.

    Args:
        count: how many; all if there are fewer.
        width: characters of a line; longer text goes on under its beginning.
    """
    total = len(references)
    count = min(count, total)
    picked = [position * total // count for position in range(count)]
    return "\n\n".join(_sample(sources[i], hypotheses[i], references[i], width) for i in picked)


def print_samples(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], count: int = 5, width: int = 100
) -> None:
    """Prints `format_samples`, clear of any progress bar."""
    tqdm.write(format_samples(sources, hypotheses, references, count, width))


def _sample(source: str, hypothesis: str, reference: str, width: int) -> str:
    rows = [("source", source), ("translation", hypothesis), ("reference", reference)]
    margin = max(len(name) for name, _ in rows) + 2
    lines = []
    for name, text in rows:
        indented = textwrap.wrap(text, max(20, width - margin), break_long_words=False) or ["(empty)"]
        labels = [name, *[""] * (len(indented) - 1)]
        lines += [f"{label:<{margin}}{part}" for label, part in zip(labels, indented, strict=True)]
    return "\n".join(lines)


def _check(pairs: datasets.Dataset, split: str) -> None:
    missing = [name for name in ("source", "target") if name not in pairs.column_names]
    if missing:
        raise UserError(f"pairs: no column {' and '.join(missing)}; the columns are {', '.join(pairs.column_names)}")
    if not len(pairs):
        raise UserError("pairs: there are none; nothing to evaluate")
    if not re.fullmatch(r"\w[\w.-]*", split):
        raise UserError(f"split: {split!r} cannot be part of a file name; give a word such as 'test'")


def _output_folder(run: str | Path | Translator, folder: str | Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    if isinstance(run, Translator):
        raise UserError("folder: missing; a model in memory has no run folder, so say where to write the evaluation")
    # load_model_and_tokenizer reports a folder that does not exist; a Hub id must not create one of its name.
    if not Path(run).is_dir() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(run)):
        raise UserError(f"{run}: no such folder; for a model of the Hub say where to write the evaluation (folder)")
    return Path(run)


def _translator(run: str | Path | Translator, options: dict[str, Any]) -> Translator:
    if not isinstance(run, Translator):
        return Translator.from_pretrained(run, **options)
    if options:
        raise UserError(f"{', '.join(options)}: set on the Translator itself, which is given already")
    return run


def _row(cells: Sequence[str]) -> str:
    return "\t".join(map(_escape, cells)) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"\\[\\tnr]", lambda match: _UNESCAPES[match[0]], text)
