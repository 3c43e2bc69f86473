"""The text of an analysis: lines of a file, their given or own translations, as batches of token ids."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import IGNORED_LABEL, Batch
from reluformer.configuration.errors import UserError
from reluformer.training.data.corpus import CorpusReport, read_parallel_files
from reluformer.training.data.documents import PackedDocuments, PackingReport, pack_documents
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.moses import MosesStep
from reluformer.training.translation import Translator

logger = logging.getLogger(__name__)

# Weights of one head and layer that one batch may have: a pair of 1,024 tokens, or many short ones.
WEIGHTS_PER_BATCH = 2**20


@dataclass(frozen=True)
class AnalysisText:
    """Encoded pairs, and what a result says about them.

    pairs: columns "input_ids" and "labels". facts: files, origin of the targets, counts of pairs and tokens. documents: what the
    pairs were packed of, where they are packed documents.
    """

    pairs: datasets.Dataset
    facts: dict[str, Any] = field(default_factory=dict)
    documents: PackedDocuments | None = None


def read_lines(
    text: str | Path, target_text: str | Path | None, documents: str | Path | None = None
) -> tuple[datasets.Dataset, dict[str, int]]:
    """Source lines and, if given, target lines: columns "source" and "target"; and what was skipped, by reason.

    Plain or gzip. A pair with an empty line or one that is not UTF-8 is skipped with a warning. `documents` names the document of
    each line: column "document".

    Raises:
        UserError: a missing file, files of different lengths, nothing left.
    """
    # One rule for one file and for two: a file beside itself is never misaligned.
    target = text if target_text is None else target_text
    lines, report = read_parallel_files(text, target, name="text", documents=documents)
    _tell_skips(report)
    if target_text is not None:
        return lines, report.skipped
    skipped = {reason.replace("both sides", "source"): count for reason, count in report.skipped.items()}
    return lines.remove_columns("target"), skipped


def _tell_skips(report: CorpusReport | PackingReport) -> None:
    if report.skipped:
        logger.warning(report.summary())


def encode_text(
    lines: datasets.Dataset, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, num_beams: int = 5
) -> AnalysisText:
    """Token ids of the lines; without targets the model translates them first, and its text is encoded like any other.

    Args:
        lines: column "source" and perhaps "target".
        model, tokenizer: an encoder-decoder and its tokenizer.
        num_beams: for the model's own translation.

    Raises:
        UserError: nothing that fits the model's positions; a tokenizer that does not end sentences.
    """
    facts: dict[str, Any] = {"target": "given, teacher-forced"}
    most = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    skipped: dict[str, int] = {}
    if "target" not in lines.column_names:
        lines, skipped = _without_long_sources(lines, tokenizer, most)
        translator = Translator(model, tokenizer, num_beams=num_beams)
        lines = lines.add_column("target", translator(lines["source"], progress=True))
        facts = {"target": "the model's own translation, teacher-forced", "decoding": translator.decoding}
    pairs, report = encode_pairs(lines, tokenizer, max_length=most, name="text")
    _tell_skips(report)
    counts = {
        "sentences": len(pairs),
        "source_tokens": sum(map(len, pairs["input_ids"])),
        "target_tokens": sum(map(len, pairs["labels"])),
        "skipped": _added(skipped, report.skipped),
    }
    return AnalysisText(pairs, {**facts, **counts})


def pack_text(
    lines: datasets.Dataset,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
) -> AnalysisText:
    """Token ids of the documents that the lines make, packed as in training; a line that alone is longer is left out and counted.

    Args:
        lines: columns "source", "target" and "document".
        model, tokenizer: an encoder-decoder and its tokenizer.
        max_length: most tokens of a packed document on either side; None: the model's positions.

    Raises:
        UserError: more tokens than positions, or a model that has no limit where none is given; see `pack_documents`.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    most = positions if max_length is None else max_length
    if most is None:
        raise UserError(
            "--max_length: missing; the model has no limit of positions, so say how long a packed document may be"
        )
    if positions is not None and most > positions:
        raise UserError(
            f"--max_length: {max_length} tokens of a packed document; give at most {positions}, the positions of the model"
        )
    packed = pack_documents(lines, tokenizer, max_tokens=most, too_long="skip", name="text")
    report = packed.report
    _tell_skips(report)
    facts = {
        "target": "given, teacher-forced",
        "documents": report.documents,
        "packed_documents": report.packed,
        "max_length": most,
        "sentences": report.sentences,
        "source_tokens": report.source_tokens,
        "target_tokens": report.target_tokens,
        "skipped": report.skipped,
    }
    return AnalysisText(packed.encoded, facts, packed)


def _without_long_sources(
    lines: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, most: int
) -> tuple[datasets.Dataset, dict[str, int]]:
    """Lines that the model can translate, and the number of the others: they are skipped, as too long pairs are."""
    moses = MosesStep.from_tokenizer(tokenizer)
    texts = list(lines["source"]) if moses is None else moses.apply(lines["source"], side="source")
    lengths = [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]
    kept = [index for index, length in enumerate(lengths) if length <= most]
    skipped = len(lengths) - len(kept)
    if not kept:
        raise UserError(
            f"text: every source is longer than the {most} tokens the model has positions for; split the lines"
        )
    if not skipped:
        return lines, {}
    logger.warning("text: %d of %d sources skipped: longer than %d tokens", skipped, len(lengths), most)
    return lines.select(kept), {f"longer than {most} tokens": skipped}


def _added(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {reason: first.get(reason, 0) + second.get(reason, 0) for reason in {**first, **second}}


def batches(
    pairs: datasets.Dataset, device: torch.device, *, batch_tokens: int, progress: bool = True
) -> Generator[Batch]:
    """All pairs once, the longest first.

    Args:
        pairs: columns "input_ids" and "labels".
        device: where the tensors go.
        batch_tokens: tokens of the longer side with padding in a batch; a longer pair is a batch of its own.
        progress: show a progress bar.
    """
    for _, batch in numbered_batches(pairs, device, batch_tokens=batch_tokens, progress=progress):
        yield batch


def numbered_batches(
    pairs: datasets.Dataset, device: torch.device, *, batch_tokens: int, progress: bool = True
) -> Generator[tuple[list[int], Batch]]:
    """`batches`, each with the places of its rows in `pairs`."""
    lengths = [(len(row["input_ids"]), len(row["labels"])) for row in pairs]
    order = sorted(range(len(lengths)), key=lambda index: (max(lengths[index]), lengths[index]), reverse=True)
    with tqdm(total=len(order), desc="analysing", unit="sentence", disable=None if progress else True) as bar:
        start = 0
        while start < len(order):
            longest = max(lengths[order[start]])
            size = max(1, min(batch_tokens // longest, WEIGHTS_PER_BATCH // longest**2))
            places = order[start : start + size]
            rows = [pairs[place] for place in places]
            yield places, make_batch([(row["input_ids"], row["labels"]) for row in rows], device)
            bar.update(len(places))
            start += size


def make_batch(pairs: list[tuple[list[int], list[int]]], device: torch.device | str) -> Batch:
    """Pairs of source ids and labels, padded on the right."""
    sources, labels = zip(*pairs, strict=True)
    longest = max(map(len, sources))
    mask = torch.tensor([[True] * len(ids) + [False] * (longest - len(ids)) for ids in sources])
    # Padding is masked, so that any id does.
    return Batch(_padded(sources, 0).to(device), mask.to(device), _padded(labels, IGNORED_LABEL).to(device))


def _padded(rows: tuple[list[int], ...], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def require_sizes(**sizes: int) -> None:
    """Raises a `UserError` for a size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"--{name}: {value} must be at least 1")
