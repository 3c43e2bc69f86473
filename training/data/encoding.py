"""Pairs of text → pairs of token ids, in several processes, through the cache of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.training.data.corpus import CorpusReport, keep_good
from reluformer.translating.moses import MosesStep

# Part of every key of the cache: raise it where the same pairs are encoded in another way than before.
ENCODING_VERSION = 2
ENCODED_FEATURES = datasets.Features({name: datasets.List(datasets.Value("int32")) for name in ("input_ids", "labels")})


def encode_pairs(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str, workers: int = 1
) -> tuple[datasets.Dataset, CorpusReport]:
    """Token ids of raw pairs, columns "input_ids" and "labels"; both end in `</s>`. The processes, `workers`, change no
    row.

    The tokenizer's Moses step, if it has one, is applied here. A pair is skipped and counted if either side has more
    than `max_length` tokens, `</s>` included, or none but `</s>`; nothing is truncated.

    Raises:
        UserError: a tokenizer that does not end a sentence with its `eos_token`; no pair left.
    """
    return keep_good(encode_rows(pairs, tokenizer, max_length=max_length, name=name, workers=workers), name)


def first_encoded_pairs(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, at_most: int
) -> datasets.Dataset:
    """The first pairs, as text, of those that `encode_pairs` keeps; its arguments, and how many pairs at most."""
    rows = encode_rows(pairs, tokenizer, max_length=max_length, name="pairs")
    return pairs.select(np.flatnonzero(rows.data.column("problem").is_null())[:at_most])


def encode_rows(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, name: str, workers: int = 1
) -> datasets.Dataset:
    """As `encode_pairs`, but a pair to skip is a row without tokens, whose column "problem" says why."""
    ids = tokenizer("a")["input_ids"]
    if tokenizer.eos_token_id is None or ids[-1:] != [tokenizer.eos_token_id]:
        raise UserError(
            f"the tokenizer must end every sentence with its eos_token ({tokenizer.eos_token!r}), got ids {ids} "
            "for 'a'; give its tokenizer.json a post-processor that appends it"
        )
    # What decides the ids. The rules hold the padding of the last call, which is the one above; a hash of the whole
    # tokenizer would change with more.
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer
    facts = [rules, getattr(tokenizer, "split_special_tokens", None), tokenizer.init_kwargs.get("moses"), max_length]
    return pairs.map(
        _encode,
        fn_kwargs={"tokenizer": tokenizer, "max_length": max_length},
        batched=True,
        num_proc=workers if 1 < workers <= len(pairs) else None,
        remove_columns=pairs.column_names,
        features=datasets.Features({**ENCODED_FEATURES, "problem": datasets.Value("string")}),
        new_fingerprint=Hasher.hash([ENCODING_VERSION, pairs._fingerprint, *facts]),
        desc=f"encoding {name}",
    )


def _encode(
    batch: Mapping[str, list[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    """The columns of a batch of `Dataset.map`."""
    inputs, labels = token_ids(tokenizer, batch)
    problems: list[str | None] = [None] * len(inputs)
    for row, (source, target) in enumerate(zip(inputs, labels, strict=True)):
        if max(len(source), len(target)) > max_length:
            problems[row] = f"longer than {max_length} tokens"
        elif min(len(source), len(target)) < 2:
            problems[row] = "without any token"
        if problems[row] is not None:
            inputs[row], labels[row] = [], []
    return {"input_ids": inputs, "labels": labels, "problem": problems}


def token_ids(
    tokenizer: PreTrainedTokenizerBase, batch: Mapping[str, list[str]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of the texts "source" and "target", after the tokenizer's Moses step if it has one."""
    sources, targets = batch["source"], batch["target"]
    if (moses := MosesStep.from_tokenizer(tokenizer)) is not None:
        sources, targets = moses.apply(sources, side="source"), moses.apply(targets, side="target")
    # Too long is counted by the caller, so the tokenizer's own warning about it would only be noise.
    inputs = tokenizer(sources, verbose=False)["input_ids"]
    return inputs, tokenizer(text_target=targets, verbose=False)["input_ids"]


def token_lengths(encoded: datasets.Dataset, column: str) -> np.ndarray:
    """Tokens of each row (rows,) int32, of a set with such a column of lists."""
    batches = encoded.select_columns(column).with_format("arrow").iter(batch_size=100_000)
    return np.concatenate([pc.list_value_length(batch[column]).to_numpy() for batch in batches])
