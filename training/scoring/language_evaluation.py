"""One split of a run's texts, predicted token by token: perplexities and the loss of every document, in the run folder."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import LanguageRecipe
from reluformer.configuration.whole_files import whole_file
from reluformer.training.data.contexts import pack_contexts
from reluformer.training.data.text_sources import split_documents
from reluformer.training.language_trainer import perplexities
from reluformer.training.run.progress import say
from reluformer.training.run.records import run_record, write_json


def evaluate_language_split(
    recipe: LanguageRecipe,
    split: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    command: str | None = None,
) -> dict[str, Any]:
    """Predicts every token of a split from those before it in its context, and writes `evaluation.<split>.json` and
    `documents.<split>.tsv` (document, bytes, tokens, nats).

    Args:
        recipe: of the run.
        split: "train", "validation" or "test".
        model: a language model; it stays in evaluation mode.
        tokenizer: the model's.
        command: the command line, for the record; None takes the process' own.

    Returns:
        The run record, `split`, `dataset`, `documents`, `tokens` (with the end of each document), `bytes`, `nats_per_token`, what
        `perplexities` gives, `context`, `device`, `seconds` of predicting, and `tokens_per_second`.

    Raises:
        UserError: files that cannot be used; a loss that is no number.
    """
    contexts = pack_contexts(
        split_documents(recipe.data, split),
        tokenizer,
        max_length=recipe.data.max_length,
        name=split,
        evaluated=True,
    )
    model.eval()
    started = time.perf_counter()
    with torch.inference_mode():
        nats = np.concatenate(list(_losses(model, contexts.rows, recipe.evaluation.batch_size, split)))
    seconds = time.perf_counter() - started
    if not np.isfinite(nats).all():
        raise UserError(
            f"{split}: the loss of {int((~np.isfinite(nats)).sum()):,} tokens is no number; the model is of no use"
        )
    of_documents = np.add.reduceat(nats, np.cumsum([0, *(tokens for _, _, tokens in contexts.documents)])[:-1])
    _write_documents(recipe.run_folder / f"documents.{split}.tsv", contexts.documents, of_documents)
    mean, report = float(nats.mean()), contexts.report
    result = {
        **run_record(command, recipe.name, recipe.training.seed),
        "split": split,
        "dataset": split,
        "documents": report.kept,
        "tokens": report.tokens,
        "bytes": report.bytes,
        "nats_per_token": mean,
        **perplexities(mean, report.tokens, report.bytes),
        "context": recipe.data.max_length,
        "device": str(model.device),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(report.tokens / seconds, 1),
    }
    write_json(recipe.run_folder / f"evaluation.{split}.json", result)
    say(
        recipe,
        f"{split}: perplexity {result['perplexity']:.3f} per token, {result['perplexity_per_byte']:.4f} per byte "
        f"({result['bits_per_byte']:.4f} bits)",
    )
    return result


def _losses(model: PreTrainedModel, rows: datasets.Dataset, batch_size: int, split: str) -> Iterator[np.ndarray]:
    """Nats of each token of the stream after the first, in order: float64, one array for each batch."""
    loader = DataLoader(rows.with_format("torch"), batch_sampler=_equal_lengths(rows, batch_size))
    for batch in tqdm(loader, desc=f"predicting {split}", unit="batch", leave=False, disable=None):
        input_ids = batch["input_ids"].to(model.device).long()
        logits = model(input_ids, use_cache=False).logits[:, :-1].float()
        yield _nats(logits, input_ids[:, 1:]).double().cpu().numpy()


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def _equal_lengths(rows: datasets.Dataset, batch_size: int) -> list[list[int]]:
    """Batches in order; the last context, which may be shorter, is one of its own."""
    whole = len(rows) - 1
    batches = [list(range(start, min(start + batch_size, whole))) for start in range(0, whole, batch_size)]
    return [*batches, [whole]]


def _write_documents(path: Path, documents: list[tuple[str, int, int]], nats: np.ndarray) -> None:
    """One line for each document in order."""
    with whole_file(path) as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(("document", "bytes", "tokens", "nats"))
        writer.writerows((*document, f"{total:.6f}") for document, total in zip(documents, nats, strict=True))
