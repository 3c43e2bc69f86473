"""Documents → contexts of one length: the token ids of all documents as one stream, cut where a context is full.

The stream begins with the tokenizer's end token, and each document ends with one. A context begins with the last token of the one
before it, so that each token of the stream but the first is predicted exactly once: `data.max_length - 1` tokens a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.training.data.arrow_cache import RowFiles, cached_rows
from reluformer.training.data.corpora import CorpusReport
from reluformer.training.data.encoding import tokenizer_facts
from reluformer.training.data.text_sources import Document, Documents

CONTEXT_FEATURES = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
_DOCUMENTS_AT_ONCE = 64
_IGNORED = -100


@dataclass
class TextReport(CorpusReport):
    """What became of the documents of one corpus.

    Args:
        tokens: of the documents that were kept, each with its end token.
        bytes: of their texts in UTF-8.
        contexts: that they fill.
        left_out: tokens at the end of the stream that fill no context of the training split.
    """

    unit = "documents"

    tokens: int = 0
    bytes: int = 0
    contexts: int = 0
    left_out: int = 0

    def summary(self) -> str:
        """One line for a log or an error message."""
        line = f"{super().summary()}; {self.bytes:,} bytes, {self.tokens:,} tokens in {self.contexts:,} contexts"
        return f"{line}, the last {self.left_out:,} tokens fill none and are left out" if self.left_out else line


@dataclass(frozen=True)
class Contexts:
    """The contexts of a split.

    rows: column "input_ids" of `max_length` tokens; the last one may be shorter where documents are evaluated.
    documents: name, bytes and tokens (with the end token) of each document in order; of the training split none are kept.
    """

    rows: datasets.Dataset
    documents: list[tuple[str, int, int]]
    report: TextReport


def pack_contexts(
    documents: Documents, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str, evaluated: bool
) -> Contexts:
    """Token ids of all documents, packed; they go to the cache (see `arrow_cache`) and are mapped into memory.

    A document that is empty or not UTF-8 is skipped and counted. What looks like a special token in a text is text.

    Args:
        documents: of a split.
        tokenizer: with an end token.
        max_length: tokens of a context.
        name: of the corpus, for the report.
        evaluated: keep the end of the stream as a shorter context, and the names of the documents; otherwise it is left out and
            counted.

    Raises:
        UserError: a tokenizer without an end token; no document left, or in training less than one context.
    """
    if tokenizer.eos_token_id is None:
        raise UserError("tokenizer: has no end token, which joins documents; give one with an eos_token")
    facts = {"texts": documents.facts, "tokenizer": tokenizer_facts(tokenizer), "max_length": max_length}
    packer = _Packer(tokenizer, max_length, TextReport(name), evaluated)
    entry = cached_rows("contexts", {**facts, "evaluated": evaluated}, lambda folder: packer.write(documents, folder))
    told = entry.report["documents"]
    report = TextReport.of_entry(replace(entry, report=entry.report["report"]), name)
    return Contexts(entry.rows, [tuple(each) for each in told], report)


@dataclass
class _Packer:
    """Writes the contexts of one split."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    report: TextReport
    evaluated: bool

    def write(self, documents: Documents, folder: Path) -> dict[str, Any]:
        stream, told = [self.tokenizer.eos_token_id], []
        with RowFiles(folder, "contexts", CONTEXT_FEATURES) as rows:
            for document, ids in self._encoded(documents):
                size = len(document.text.encode("utf-8"))
                self.report.tokens += len(ids)
                self.report.bytes += size
                if self.evaluated:
                    told.append((document.name, size, len(ids)))
                stream += ids
                stream = self._cut(stream, rows)
            if self.evaluated and len(stream) > 1:
                self._append(stream, rows)
            else:
                self.report.left_out = len(stream) - 1
        self.report.require_pairs()
        if self.report.contexts == 0:
            raise UserError(
                f"{self.report.name}: {self.report.tokens:,} tokens are less than one context of {self.max_length}; give more "
                "text, or lower data.max_length"
            )
        return {"report": asdict(self.report), "documents": told}

    def _encoded(self, documents: Documents) -> Iterator[tuple[Document, list[int]]]:
        """Each document that can be used, with its ids and the end token."""
        read = tqdm(documents.read(), desc=f"encoding {self.report.name}", unit=" documents", delay=2, disable=None)
        usable = filter(self._usable, read)
        while group := list(islice(usable, _DOCUMENTS_AT_ONCE)):
            texts = [document.text for document in group]
            options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
            for document, ids in zip(group, self.tokenizer(texts, **options)["input_ids"], strict=True):
                yield document, [*ids, self.tokenizer.eos_token_id]

    def _usable(self, document: Document) -> bool:
        reason = None if document.text else "is not UTF-8 text" if document.text is None else "is empty"
        if reason is None:
            self.report.keep()
        else:
            self.report.skip(reason, document.name)
        return reason is None

    def _cut(self, stream: list[int], rows: RowFiles) -> list[int]:
        """Appends the contexts that are full, and returns what is left, from the last token that was predicted."""
        start = 0
        while len(stream) - start >= self.max_length:
            self._append(stream[start : start + self.max_length], rows)
            start += self.max_length - 1
        return stream[start:]

    def _append(self, ids: list[int], rows: RowFiles) -> None:
        rows.append({"input_ids": ids})
        self.report.contexts += 1


def collate_contexts(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Rows of token ids → `input_ids` and `labels` (batch, longest); the model shifts the labels.

    The first token of a context is not predicted. Nothing sees what stands behind the end of a shorter row, so that any id does.
    """
    lengths = [len(row["input_ids"]) for row in rows]
    input_ids = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    labels = torch.full_like(input_ids, _IGNORED)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        input_ids[number, :length] = torch.as_tensor(row["input_ids"])
        labels[number, 1:length] = input_ids[number, 1:length]
    return {"input_ids": input_ids, "labels": labels}
