"""Documents: consecutive sentences of one document packed to texts of at most L tokens (paper, appendix B).

Greedy: sentences are put together as long as both sides stay within L tokens, `</s>` included; the next packed document
starts with the next sentence, and never crosses the end of a document. Only the counts of tokens decide, so the same
corpus packed with the same tokenizer gives the same pieces everywhere. A packed document is one text, its sentences
joined by a space, and is trained on, translated and scored like a sentence.

The paper scores packed documents. Those of two L are different texts, so such figures of different L cannot be
compared. `PackedDocuments.references` is the unit for that: the whole original document, in which the packed documents
of every L nest, with all its sentences, those too that were left out of packing.

Packing keeps the corpus in memory, in every process: its token ids as 32-bit numbers and, for a while, one side of its text
as Python strings. Corpora of single sentences may be larger: they are not packed, and stay on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig
from reluformer.training.data.encoding import ENCODED_FEATURES, encode_rows, token_ids, token_lengths
from reluformer.training.data.moses import MosesStep

TooLong = Literal["error", "skip", "keep"]
# How many packed documents are tokenised whole, to see that their sentences' tokens are what is found there.
CHECKED_TEXTS = 20
COLUMNS = {"source": "input_ids", "target": "labels"}


@dataclass
class PackingReport:
    """What became of the sentences of one corpus: `read == sentences + sum(skipped.values())`."""

    name: str
    max_tokens: int  # L, `</s>` included
    documents: int = 0  # original ones
    read: int = 0  # sentences
    sentences: int = 0  # that are in packed documents
    packed: int = 0  # packed documents
    sentences_per_packed: float = 0.0
    source_tokens: int = 0  # of all packed documents, each with its `</s>`
    target_tokens: int = 0
    longest_source: int = 0
    longest_target: int = 0
    too_long: int = 0  # sentences that alone are longer than L on a side
    kept_too_long: int = 0  # those of them that are packed documents of their own
    skipped: dict[str, int] = field(default_factory=dict)  # sentences, by reason
    first: dict[str, str] = field(default_factory=dict)  # place of the first sentence of each reason

    def count(self, pairs: datasets.Dataset, encoded: datasets.Dataset) -> None:
        """Fills in the packed documents: their texts and their tokens."""
        self.packed, self.sentences = len(pairs), sum(pairs["sentences"])
        self.sentences_per_packed = self.sentences / self.packed
        for side, column in COLUMNS.items():
            tokens = token_lengths(encoded, column)
            setattr(self, f"{side}_tokens", int(tokens.sum()))
            setattr(self, f"longest_{side}", int(tokens.max()))

    def summary(self) -> str:
        """One line for a log or an error message."""
        parts = [
            f"{self.name}: {self.sentences:,} of {self.read:,} sentences of {self.documents:,} documents in "
            f"{self.packed:,} packed documents of at most {self.max_tokens:,} tokens, {self.sentences_per_packed:.1f} "
            f"sentences each; {self.source_tokens:,} source and {self.target_tokens:,} target tokens, longest "
            f"{self.longest_source:,} and {self.longest_target:,}"
        ]
        if self.kept_too_long:
            parts.append(f"kept alone: {self.kept_too_long:,} × longer than {self.max_tokens} tokens")
        reasons = [f"{count:,} × {reason} (first: {self.first[reason]})" for reason, count in self.skipped.items()]
        return "; ".join([*parts, f"skipped {'; '.join(reasons)}"] if reasons else parts)


@dataclass(frozen=True)
class PackedDocuments:
    """A packed corpus.

    Args:
        pairs: one row a packed document: "source", "target" (plain text), "document" (the original one's name),
            "sentences" (their number), "first" (place of the first of them in `sentences`).
        encoded: the token ids of the rows of `pairs`, columns as of `encode_pairs`.
        sentences: what was packed: "source", "target", "document".
        report: the counts.
    """

    pairs: datasets.Dataset
    encoded: datasets.Dataset
    sentences: datasets.Dataset
    report: PackingReport

    @cached_property
    def references(self) -> dict[str, str]:
        """Target text of each original document, by name, in order: the scoring unit common to all L."""
        texts: dict[str, list[str]] = {}
        for name, text in zip(self.sentences["document"], self.sentences["target"], strict=True):
            texts.setdefault(name, []).append(text)
        return {name: " ".join(parts) for name, parts in texts.items()}


def greedy_spans(
    source_tokens: Sequence[int],
    target_tokens: Sequence[int],
    documents: Sequence[str],
    left_out: Sequence[bool],
    *,
    max_tokens: int,
) -> list[tuple[int, int]]:
    """Packed documents as half-open ranges of sentences, in order; `max_tokens` counts `</s>`, the counts of tokens do not.

    A sentence that alone is longer is a range of its own. One that is left out is in no range and ends the packed document before
    it, since what stands on its two sides is not consecutive. (A pair that reading skipped is no sentence here and ends nothing.)
    """
    room = max_tokens - 1
    spans: list[tuple[int, int]] = []
    start: int | None = None
    source_sum = target_sum = 0
    rows = zip(source_tokens, target_tokens, documents, left_out, strict=True)
    for index, (source, target, document, is_left_out) in enumerate(rows):
        if start is not None:
            full = source_sum + source > room or target_sum + target > room
            if full or is_left_out or document != documents[start]:
                spans.append((start, index))
                start = None
        if is_left_out:
            continue
        if start is None:
            start, source_sum, target_sum = index, 0, 0
        source_sum, target_sum = source_sum + source, target_sum + target
    return spans if start is None else [*spans, (start, len(documents))]


def pack_documents(
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int,
    too_long: TooLong,
    name: str,
    positions: int | None = None,
    workers: int | None = None,
) -> PackedDocuments:
    """Packs consecutive sentences of each document, greedily.

    A sentence without any token on a side is left out and counted, and ends the packed document before it.

    Args:
        sentences: columns "source", "target", "document"; the sentences of a document stand together.
        tokenizer: each text it encodes ends in `</s>`.
        max_tokens: L: most tokens of a packed document on either side, `</s>` included.
        too_long: what becomes of a sentence that alone is longer: see `PackingConfig`.
        name: of the corpus, for the report.
        positions: tokens that the model has positions for; a kept sentence may not have more.
        workers: processes that tokenise, as of `encode_pairs`.

    Raises:
        UserError: no "document" column; a sentence too long, by "error" or for `positions`; a tokenizer with a Moses
            step, or one that splits a sentence in another way when a sentence stands before it; nothing left.
    """
    if "document" not in sentences.column_names:
        raise UserError(f"{name}: the pairs have no column 'document', so it is not known which belong together")
    if MosesStep.from_tokenizer(tokenizer) is not None:
        raise UserError(
            "documents: the tokenizer has a Moses step, which splits a full stop at the end of a text only, so that joined "
            "sentences are other tokens than single ones; tokenise the corpus beforehand, or set tokenizer.moses to false"
        )
    rows = encode_rows(sentences, tokenizer, max_length=sys.maxsize, name=name, workers=workers)
    lengths = {side: token_lengths(rows, column) - 1 for side, column in COLUMNS.items()}
    documents = sentences["document"][:]
    report = PackingReport(name, max_tokens, documents=len(set(documents)), read=len(documents))
    left_out = _left_out(lengths, documents, report, too_long, positions)
    counts = (lengths[side].tolist() for side in COLUMNS)
    spans = greedy_spans(*counts, documents, left_out.tolist(), max_tokens=max_tokens)
    if not spans:
        raise UserError(f"{name}: nothing to pack: {report.summary()}; raise the limit or give longer documents")
    pairs = _packed_pairs(sentences, spans)
    encoded = _encoded(*(_joined_ids(rows, column, spans) for column in COLUMNS.values()))
    _check_joined(pairs, encoded, tokenizer, name)
    report.count(pairs, encoded)
    return PackedDocuments(pairs, encoded, sentences, report)


def pack_split(
    data: DataConfig,
    split: str,
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    positions: int | None = None,
) -> PackedDocuments:
    """The sentences of a split packed as the recipe's section `packing` says; see `pack_documents`."""
    return pack_documents(
        sentences,
        tokenizer,
        max_tokens=data.max_length,
        too_long=data.packing.too_long if split == "train" else data.packing.too_long_evaluated,
        name=f"{split} documents",
        positions=positions,
        workers=data.workers,
    )


def _left_out(
    lengths: dict[str, np.ndarray],
    documents: list[str],
    report: PackingReport,
    too_long: TooLong,
    positions: int | None,
) -> np.ndarray:
    """Whether each sentence is left out (sentences,); those left out and those too long are counted, or refused."""

    def place(mask: np.ndarray) -> str:
        index = int(mask.argmax())
        return f"pair {index} of document {documents[index]} with {longest[index]:,} tokens"

    limit, name = report.max_tokens, report.name
    longest = np.maximum(lengths["source"], lengths["target"]) + 1
    empty = np.minimum(lengths["source"], lengths["target"]) <= 0
    long = longest > limit
    report.too_long = int(long.sum())
    if report.too_long and too_long == "error":
        raise UserError(
            f"{name}: {report.too_long:,} sentences alone are longer than {limit} tokens (first: {place(long)}); raise the "
            "limit, or choose skip or keep"
        )
    if report.too_long and too_long == "keep":
        report.kept_too_long = report.too_long
        if positions is not None and longest.max() > positions:
            raise UserError(
                f"{name}: {place(longest)} is to be kept, but the model has {positions} positions; raise "
                "model.max_position_embeddings, or choose skip"
            )
    reasons = {"without any token": empty}
    if too_long == "skip":
        reasons[f"longer than {limit} tokens"] = long
    for reason, mask in reasons.items():
        if mask.any():
            report.skipped[reason], report.first[reason] = int(mask.sum()), place(mask)
    return np.any(list(reasons.values()), axis=0)


def _joined_ids(rows: datasets.Dataset, column: str, spans: list[tuple[int, int]]) -> pa.ListArray:
    """The ids of each range of sentences as one list; all sentences but the last of a range lose their `</s>`."""
    lists = rows.data.column(column).combine_chunks()
    lengths = np.asarray(lists.value_lengths())
    span_of, is_inner = np.full(len(lists), -1), np.ones(len(lists), dtype=bool)
    for number, (start, stop) in enumerate(spans):
        span_of[start:stop] = number
        is_inner[stop - 1] = False
    kept = np.repeat(span_of, lengths)
    kept[np.cumsum(lengths)[is_inner & (lengths > 0)] - 1] = -1
    offsets = np.concatenate(([0], np.cumsum(np.bincount(kept[kept >= 0], minlength=len(spans)))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), lists.flatten().filter(pa.array(kept >= 0)))


def _packed_pairs(sentences: datasets.Dataset, spans: list[tuple[int, int]]) -> datasets.Dataset:
    columns: dict[str, list[Any]] = {}
    for side in COLUMNS:
        texts = sentences[side][:]
        columns[side] = [" ".join(texts[start:stop]) for start, stop in spans]
    documents = sentences["document"][:]
    columns["document"] = [documents[start] for start, _ in spans]
    columns["sentences"] = [stop - start for start, stop in spans]
    columns["first"] = [start for start, _ in spans]
    return datasets.Dataset.from_dict(columns)


def _encoded(source: pa.ListArray, target: pa.ListArray) -> datasets.Dataset:
    """The columns of `encode_pairs`."""
    mask = pa.ListArray.from_arrays(source.offsets, pa.array(np.ones(len(source.values), dtype=np.int8)))
    table = pa.table({"input_ids": source, "attention_mask": mask, "labels": target})
    return datasets.Dataset(datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=ENCODED_FEATURES))


def _check_joined(
    pairs: datasets.Dataset, encoded: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """The first texts, tokenised whole as in translation, must give the ids that are trained on."""
    whole = token_ids(tokenizer, pairs[:CHECKED_TEXTS])
    for (side, column), expected in zip(COLUMNS.items(), whole, strict=True):
        for index, (ids, found) in enumerate(zip(expected, encoded[column][:CHECKED_TEXTS], strict=True)):
            if ids != found:
                raise UserError(
                    f"{name}: the {side} tokens of packed document {index} are not those of its sentences one after the "
                    "other; packing needs a tokenizer that splits a sentence alike wherever it stands"
                )
