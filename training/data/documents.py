"""Documents: consecutive sentences of one document packed to texts of at most L tokens (paper, appendix B).

Greedy: sentences are put together as long as both sides stay within L tokens, `</s>` included; the next packed document
starts with the next sentence, and never crosses the end of a document. A packed document is one text, its sentences
joined by a space, and is encoded, trained on, translated and scored like a sentence.

The paper scores packed documents. Those of two L are different texts, so such figures of different L cannot be
compared. `PackedDocuments.references` is the unit for that: the whole original document with all its sentences.

Packing keeps the corpus in memory, in every process; corpora of single sentences stay on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig
from reluformer.training.data.corpus import CorpusReport
from reluformer.training.data.encoding import encode_rows, token_lengths


@dataclass
class PackingReport(CorpusReport):
    """What became of the sentences of one corpus: `read == kept + sum(skipped.values())`.

    `max_tokens` is L. `documents` are the original ones, `packed` counts the packed ones; `kept_too_long` of them are
    one sentence that alone is longer than L on a side.
    """

    max_tokens: int = 0
    documents: int = 0
    packed: int = 0
    kept_too_long: int = 0

    def summary(self) -> str:
        """One line for a log or an error message."""
        sentences = f"{self.kept:,} of {self.read:,} sentences of {self.documents:,} documents"
        packed = f"{self.packed:,} packed documents of at most {self.max_tokens:,} tokens"
        alone = f"; kept alone: {self.kept_too_long:,} × longer" if self.kept_too_long else ""
        return f"{self.name}: {sentences} in {packed}{alone}{self.skips()}"


@dataclass(frozen=True)
class PackedDocuments:
    """A packed corpus.

    Args:
        pairs: one row a packed document: "source", "target" (plain text), "document" (the original one's name),
            "sentences" (their number), "first" (index of the first of them in `sentences`).
        sentences: what was packed: "source", "target", "document".
        report: the counts.
    """

    pairs: datasets.Dataset
    sentences: datasets.Dataset
    report: PackingReport

    @property
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
    limits: Sequence[int],
) -> list[tuple[int, int]]:
    """Packed documents as half-open ranges of sentences, in order; `limits` count `</s>`, the counts of tokens do not.

    A packed document has the limit that the fewest tokens were given to so far.
    A sentence that alone is longer is a range of its own. One that is left out is in no range and ends the packed
    document before it, since what stands on its two sides is not consecutive. Lines that the corpus has no pair for,
    such as an empty one, were left out before, and do not.
    """
    tokens_by_limit = [0] * len(limits)
    spans: list[tuple[int, int]] = []
    limit = source_sum = target_sum = 0  # of the last range: the index of its limit, its tokens
    rows = zip(source_tokens, target_tokens, documents, left_out, strict=True)
    for index, (source, target, document, is_left_out) in enumerate(rows):
        if is_left_out:
            continue
        goes_on = spans and spans[-1][1] == index and document == documents[index - 1]
        if goes_on and max(source_sum + source, target_sum + target) < limits[limit]:
            spans[-1] = (spans[-1][0], index + 1)
            source_sum, target_sum = source_sum + source, target_sum + target
        else:
            limit = tokens_by_limit.index(min(tokens_by_limit))
            spans.append((index, index + 1))
            source_sum, target_sum = source, target
        tokens_by_limit[limit] += max(source, target)
    return spans


def pack_documents(
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int,
    too_long: Literal["skip", "keep"],
    name: str,
    limits: Sequence[int] | None = None,
    workers: int = 1,
) -> PackedDocuments:
    """Packs consecutive sentences of each document, greedily.

    A sentence without any token on a side is left out and counted, and ends the packed document before it.

    Args:
        sentences: columns "source", "target", "document"; the sentences of a document stand together.
        max_tokens: L: most tokens of a packed document on either side, `</s>` included.
        too_long: what becomes of a sentence that alone is longer: see `PackingConfig`.
        limits: limits to mix instead of L alone: `PackingConfig.train_lengths`.

    Raises:
        UserError: nothing left.
    """
    most = max_tokens if too_long == "skip" else sys.maxsize
    rows = encode_rows(sentences, tokenizer, max_length=most, name=name, workers=workers)
    documents = sentences["document"][:]
    report = PackingReport(name, max_tokens=max_tokens, documents=len(set(documents)))
    good = report.count(rows)
    lengths = [token_lengths(rows, column) for column in ("input_ids", "labels")]
    report.kept_too_long = int((np.maximum(*lengths) > max_tokens).sum())
    counts = ((side - 1).tolist() for side in lengths)
    spans = greedy_spans(*counts, documents, (~good).tolist(), limits=limits or [max_tokens])
    if not spans:
        raise UserError(f"{name}: nothing to pack: {report.summary()}; raise the limit or give longer documents")
    report.packed = len(spans)
    return PackedDocuments(_joined(sentences, spans), sentences, report)


def pack_split(
    data: DataConfig, split: str, sentences: datasets.Dataset, tokenizer: PreTrainedTokenizerBase
) -> PackedDocuments:
    """The sentences of a split packed as the recipe's section `packing` says; see `pack_documents`."""
    too_long = data.packing.too_long if split == "train" else data.packing.too_long_evaluated
    limits = data.packing.train_lengths if split == "train" else None
    options = {"max_tokens": data.max_length, "too_long": too_long, "limits": limits, "workers": data.workers}
    return pack_documents(sentences, tokenizer, name=f"{split} documents", **options)


def _joined(sentences: datasets.Dataset, spans: list[tuple[int, int]]) -> datasets.Dataset:
    source, target, documents = (sentences[name][:] for name in ("source", "target", "document"))
    columns = {
        "source": [" ".join(source[start:stop]) for start, stop in spans],
        "target": [" ".join(target[start:stop]) for start, stop in spans],
        "document": [documents[start] for start, _ in spans],
        "sentences": [stop - start for start, stop in spans],
        "first": [start for start, _ in spans],
    }
    return datasets.Dataset.from_dict(columns)
