"""Documents: consecutive sentences of one document packed to texts of at most L tokens (paper, appendix B).

Greedy: sentences are put together as long as both sides stay within L tokens, `</s>` included; the next packed document
starts with the next sentence, and never crosses the end of a document. Only the counts of tokens decide, so the same
corpus packed with the same tokenizer gives the same pieces everywhere. A packed document is one text, its sentences
joined by a space, and is trained on, translated and scored like a sentence.

The paper scores packed documents. Those of two L are different texts, so such figures of different L cannot be
compared. `PackedDocuments.references` is the unit for that: the whole original document, in which the packed documents
of every L nest, with all its sentences, those too that were left out of packing.

Packing keeps the corpus in memory, in every process; corpora of single sentences stay on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig
from reluformer.training.data.corpus import CorpusReport
from reluformer.training.data.encoding import ENCODED_FEATURES, encode_rows, token_ids, token_lengths
from reluformer.training.data.moses import MosesStep

# How many packed documents are tokenised whole, to see that their sentences' tokens are what is found there.
CHECKED_TEXTS = 20
COLUMNS = {"source": "input_ids", "target": "labels"}


@dataclass
class PackingReport(CorpusReport):
    """What became of the sentences of one corpus: `read == kept + sum(skipped.values())`.

    `max_tokens` is L. `documents` are the original ones, `packed` counts the packed ones; `kept_too_long` of them are one
    sentence that alone is longer than L on a side.
    """

    max_tokens: int = 0
    documents: int = 0
    packed: int = 0
    kept_too_long: int = 0

    def summary(self) -> str:
        """One line for a log or an error message."""
        line = (
            f"{self.name}: {self.kept:,} of {self.read:,} sentences of {self.documents:,} documents in {self.packed:,} packed "
            f"documents of at most {self.max_tokens:,} tokens"
        )
        alone = f"; kept alone: {self.kept_too_long:,} × longer than {self.max_tokens} tokens" * bool(
            self.kept_too_long
        )
        return f"{line}{alone}{self.skips()}"


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
    too_long: Literal["skip", "keep"],
    name: str,
    positions: int | None = None,
    workers: int = 1,
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
        UserError: no "document" column; a kept sentence too long for `positions`; a tokenizer with a Moses step, or one that
            splits a sentence in another way when a sentence stands before it; nothing left.
    """
    if "document" not in sentences.column_names:
        raise UserError(f"{name}: the pairs have no column 'document', so it is not known which belong together")
    if MosesStep.from_tokenizer(tokenizer) is not None:
        raise UserError(
            "documents: the tokenizer has a Moses step, which splits a full stop at the end of a text only, so that joined "
            "sentences are other tokens than single ones; tokenise the corpus beforehand, or set tokenizer.moses to false"
        )
    most = max_tokens if too_long == "skip" else sys.maxsize
    rows = encode_rows(sentences, tokenizer, max_length=most, name=name, workers=workers)
    documents = sentences["document"][:]
    report = PackingReport(name, len(documents), max_tokens=max_tokens, documents=len(set(documents)))
    good = report.count(rows, lambda row: f"pair {row} of document {documents[row]}")
    lengths = [token_lengths(rows, column) for column in COLUMNS.values()]
    _check_kept(np.maximum(*lengths), documents, report, positions)
    counts = ((side - 1).tolist() for side in lengths)
    spans = greedy_spans(*counts, documents, (~good).tolist(), max_tokens=max_tokens)
    if not spans:
        raise UserError(f"{name}: nothing to pack: {report.summary()}; raise the limit or give longer documents")
    pairs = _packed_pairs(sentences, spans)
    columns = {column: _joined_ids(rows, column, spans) for column in COLUMNS.values()}
    encoded = datasets.Dataset.from_dict(columns, features=ENCODED_FEATURES)
    _check_joined(pairs, encoded, tokenizer, name)
    report.packed = len(pairs)
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


def _check_kept(longest: np.ndarray, documents: list[str], report: PackingReport, positions: int | None) -> None:
    """Counts the sentences that alone are too long, and raises `UserError` for one that the model has no positions for."""
    report.kept_too_long = int((longest > report.max_tokens).sum())
    row = int(longest.argmax())
    if report.kept_too_long and positions is not None and longest[row] > positions:
        raise UserError(
            f"{report.name}: pair {row} of document {documents[row]} with {longest[row]:,} tokens is to be kept, but the model "
            f"has {positions} positions; raise model.max_position_embeddings, or choose skip"
        )


def _joined_ids(rows: datasets.Dataset, column: str, spans: list[tuple[int, int]]) -> pa.ListArray:
    """The ids of each range of sentences as one list; all sentences but the last of a range lose their `</s>`.

    Sentences in no range have no ids.
    """
    ids = rows.data.column(column).combine_chunks()
    ends = np.cumsum(np.asarray(ids.value_lengths()))
    inner = np.asarray([row for start, stop in spans for row in range(start, stop - 1)], dtype=np.int64)
    values = np.delete(ids.flatten().to_numpy(), ends[inner] - 1)
    stops = ends[[stop - 1 for _, stop in spans]] - np.cumsum([stop - start - 1 for start, stop in spans])
    return pa.ListArray.from_arrays(pa.array([0, *stops], pa.int32()), pa.array(values))


def _packed_pairs(sentences: datasets.Dataset, spans: list[tuple[int, int]]) -> datasets.Dataset:
    columns: dict[str, list[str] | list[int]] = {}
    for side in COLUMNS:
        texts = sentences[side][:]
        columns[side] = [" ".join(texts[start:stop]) for start, stop in spans]
    documents = sentences["document"][:]
    columns["document"] = [documents[start] for start, _ in spans]
    columns["sentences"] = [stop - start for start, stop in spans]
    columns["first"] = [start for start, _ in spans]
    return datasets.Dataset.from_dict(columns)


def _check_joined(
    pairs: datasets.Dataset, encoded: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """The first texts, tokenised whole as in translation, must give the ids that are trained on."""
    whole = token_ids(tokenizer, pairs[:CHECKED_TEXTS])
    for (side, column), expected in zip(COLUMNS.items(), whole, strict=True):
        if expected != encoded[column][:CHECKED_TEXTS]:
            raise UserError(
                f"{name}: the {side} tokens of packed documents are not those of their sentences one after the other; packing "
                "needs a tokenizer that splits a sentence alike wherever it stands"
            )
