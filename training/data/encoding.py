"""Pairs of text → pairs of token ids, in several processes; the ids lie on disk, their lengths in one array of numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.training.data.arrow_cache import ROWS_PER_RECORD_BATCH, cached_rows, rows_by_file
from reluformer.training.data.corpora import CorpusReport
from reluformer.training.data.moses import MosesStep

ENCODED_FEATURES = datasets.Features(
    {
        "input_ids": datasets.List(datasets.Value("int32")),
        "attention_mask": datasets.List(datasets.Value("int8")),
        "labels": datasets.List(datasets.Value("int32")),
    }
)
# Fewer pairs are encoded by this process alone, with the tokenizer's own threads: starting others takes longer.
PAIRS_FOR_WORKERS = 200_000
MOST_WORKERS = 8  # by default
_ROWS_COUNTED_AT_ONCE = 100_000
_PARALLELISM = "TOKENIZERS_PARALLELISM"


def encode_pairs(
    pairs: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    name: str,
    workers: int | None = None,
) -> tuple[datasets.Dataset, CorpusReport]:
    """Token ids of raw pairs, columns "input_ids", "attention_mask", "labels"; source and labels both end in `</s>`.

    The tokenizer's Moses step, if it has one, is applied here. A pair is skipped and counted (with its number in
    `pairs`, from 0) if either side has more than `max_length` tokens, `</s>` included, or none but `</s>`; nothing is
    truncated.

    The ids go to the cache (see `arrow_cache`) and are mapped into memory. They are found there again for the same pairs, the
    same tokenizer (by what it does, not by its folder), limit and versions of the libraries that tokenise.

    Args:
        pairs: columns "source" and "target".
        tokenizer: of both sides.
        max_length: most tokens of a side.
        name: of the corpus, for the report.
        workers: processes that encode; None: `default_workers`. The rows are the same for any number.

    Raises `UserError`: a tokenizer that does not end a sentence with its `eos_token`; no pair left; a cache that cannot be
    written to.
    """
    check_end_of_sentence(tokenizer)
    workers = min(default_workers(len(pairs)) if workers is None else workers, max(len(pairs), 1))
    facts = {"pairs": pairs._fingerprint, "tokenizer": tokenizer_facts(tokenizer), "max_length": max_length}
    entry = cached_rows("tokens", facts, lambda folder: _write(pairs, tokenizer, max_length, name, workers, folder))
    return entry.rows, CorpusReport.of_entry(entry, name)


def default_workers(pairs: int) -> int:
    """1 for fewer than `PAIRS_FOR_WORKERS` pairs; otherwise the cores this process may use, at most `MOST_WORKERS`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if pairs < PAIRS_FOR_WORKERS else min(usable, MOST_WORKERS)


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What decides the ids that a tokenizer gives: itself, serialised, and the libraries that run it."""
    moses = MosesStep.from_tokenizer(tokenizer)
    libraries = ["tokenizers", "transformers", *(["sacremoses"] if moses else [])]
    return {
        "class": type(tokenizer).__name__,
        "hash": hashlib.blake2b(_serialised(tokenizer), digest_size=16).hexdigest(),
        "split_special_tokens": getattr(tokenizer, "split_special_tokens", None),
        "moses": moses and moses.record(),
        "versions": {library: version(library) for library in libraries},
    }


def _serialised(tokenizer: PreTrainedTokenizerBase) -> bytes:
    if tokenizer.is_fast:
        parts = json.loads(tokenizer.backend_tokenizer.to_str())
        # Each call sets them anew.
        return json.dumps({**parts, "truncation": None, "padding": None}, sort_keys=True).encode()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return b"\0".join(part for path in files for part in (path.name.encode(), path.read_bytes()))


@dataclass(frozen=True)
class _Encoder:
    """Encodes a batch of `Dataset.map` in any process; what it leaves out is counted in a file of its process."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    counts: Path
    first_row: int  # of those that are given, among all

    def __call__(self, batch: dict[str, list[str]], rows: list[int], rank: int | None) -> dict[str, list[list[int]]]:
        inputs, labels = _token_ids(self.tokenizer, self._moses, batch)
        report = CorpusReport("")
        encoded = {"input_ids": [], "attention_mask": [], "labels": []}
        for row, source_ids, target_ids in zip(rows, inputs, labels, strict=True):
            reason = _reason_to_skip(source_ids, target_ids, self.max_length)
            if reason is not None:
                report.skip(
                    reason,
                    f"pair {self.first_row + row} with {len(source_ids)} source and {len(target_ids)} target tokens",
                )
                continue
            report.keep()
            encoded["input_ids"].append(source_ids)
            encoded["attention_mask"].append([1] * len(source_ids))
            encoded["labels"].append(target_ids)
        with self.counts.with_name(f"{self.counts.name}-{rank or 0:05d}").open("a", encoding="utf-8") as counts:
            counts.write(json.dumps(asdict(report)) + "\n")
        return encoded

    @cached_property
    def _moses(self) -> MosesStep | None:
        return MosesStep.from_tokenizer(self.tokenizer)


def _token_ids(
    tokenizer: PreTrainedTokenizerBase, moses: MosesStep | None, batch: dict[str, list[str]]
) -> tuple[list[list[int]], list[list[int]]]:
    sources, targets = batch["source"], batch["target"]
    if moses is not None:
        sources, targets = moses.apply(sources, side="source"), moses.apply(targets, side="target")
    # Too long is counted by the caller, so the tokenizer's own warning about it would only be noise.
    inputs = tokenizer(sources, verbose=False)["input_ids"]
    return inputs, tokenizer(text_target=targets, verbose=False)["input_ids"]


def _reason_to_skip(source_ids: list[int], target_ids: list[int], max_length: int) -> str | None:
    if max(len(source_ids), len(target_ids)) > max_length:
        return f"longer than {max_length} tokens"
    return "without any token" if min(len(source_ids), len(target_ids)) < 2 else None


def first_encoded_pairs(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, at_most: int
) -> datasets.Dataset:
    """The first pairs, as text, of those that `encode_pairs` does not skip; its arguments, and how many pairs at most."""
    moses = MosesStep.from_tokenizer(tokenizer)
    kept: list[int] = []
    for start in range(0, len(pairs), ROWS_PER_RECORD_BATCH):
        batch = pairs[start : start + ROWS_PER_RECORD_BATCH]
        for row, ids in enumerate(zip(*_token_ids(tokenizer, moses, batch), strict=True), start):
            if _reason_to_skip(*ids, max_length) is None:
                kept.append(row)
        if len(kept) >= at_most:
            break
    return pairs.select(kept[:at_most])


def _write(
    pairs: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    name: str,
    workers: int,
    folder: Path,
) -> dict[str, Any]:
    first_row = 0
    for number, part in enumerate(rows_by_file(pairs)):
        part_workers = min(workers, len(part))
        with _without_tokenizer_threads() if part_workers > 1 else contextlib.nullcontext():
            part.select_columns(["source", "target"]).map(
                _Encoder(tokenizer, max_length, folder / f"counts-{number:05d}", first_row),
                batched=True,
                batch_size=ROWS_PER_RECORD_BATCH,
                writer_batch_size=ROWS_PER_RECORD_BATCH,
                with_indices=True,
                with_rank=True,
                remove_columns=["source", "target"],
                features=ENCODED_FEATURES,
                num_proc=part_workers if part_workers > 1 else None,
                cache_file_name=str(folder / f"tokens-{number:05d}.arrow"),
                load_from_cache_file=False,
                new_fingerprint=f"{folder.stem}-{number:05d}",
                desc=f"encoding {name}, {first_row:,} of {len(pairs):,} done",
            )
        first_row += len(part)
    report = CorpusReport(name)
    for counts in sorted(folder.glob("counts-*")):  # in the order of the rows
        for line in counts.read_text(encoding="utf-8").splitlines():
            report.add(CorpusReport(**json.loads(line)))
        counts.unlink()
    report.require_pairs()
    return asdict(report)


@contextlib.contextmanager
def _without_tokenizer_threads() -> Iterator[None]:
    """Threads of the tokenizer do not survive a fork, and workers that have some each would be more than there are cores."""
    environment, before = os.environ, os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        os.environ = environment  # noqa: B003  (`Dataset.map` leaves a copy in its place)
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before


def token_lengths(encoded: datasets.Dataset, column: str) -> np.ndarray:
    """Tokens of each row (rows,) int32, from the offsets of the lists: no token is read.

    The offsets lie among the tokens, and the system maps what is around a page with it, so that a pass leaves half of the
    files resident: each is mapped anew and given back.

    Args:
        encoded: as of `encode_pairs`, or any set with a column of lists.
        column: its name.
    """
    lengths = np.empty(len(encoded), dtype=np.int32)
    row = 0
    for rows in rows_by_file(encoded):
        for batch in rows.select_columns(column).with_format("arrow").iter(batch_size=_ROWS_COUNTED_AT_ONCE):
            part = pc.list_value_length(batch[column]).to_numpy()
            lengths[row : row + len(part)] = part
            row += len(part)
    return lengths


def check_end_of_sentence(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises `UserError` for a tokenizer that does not end a text with its `eos_token`."""
    ids = tokenizer("a")["input_ids"]
    if tokenizer.eos_token_id is None or ids[-1:] != [tokenizer.eos_token_id]:
        raise UserError(
            f"the tokenizer must end every sentence with its eos_token ({tokenizer.eos_token!r}), got ids {ids} "
            "for 'a'; give its tokenizer.json a post-processor that appends it"
        )
