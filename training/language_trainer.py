"""`Trainer` of a language model: contexts in batches, and perplexity at every evaluation."""

from __future__ import annotations

import math
from typing import Any

from reluformer.training.data.shuffled_batches import ShuffledBatches
from reluformer.training.trainer import TokenTrainer


def perplexities(nats_per_token: float, tokens: int, text_bytes: int) -> dict[str, float]:
    """Perplexity per token, which depends on the vocabulary, and per byte of the text, which does not; bits per byte.

    Args:
        nats_per_token: mean cross-entropy.
        tokens: that were predicted, those that end documents among them.
        text_bytes: of the same documents in UTF-8.
    """
    nats_per_byte = nats_per_token * tokens / text_bytes
    return {
        "perplexity": perplexity(nats_per_token),
        "perplexity_per_byte": perplexity(nats_per_byte),
        "bits_per_byte": nats_per_byte / math.log(2),
    }


def perplexity(nats: float) -> float:
    """exp of a mean cross-entropy; infinity where a float has no room, as for a run that has diverged."""
    return math.exp(nats) if nats < 700 else math.inf


class LanguageTrainer(TokenTrainer):
    """Trains a decoder-only model; it logs `eval_perplexity`, too.

    Args:
        model: that shifts `labels` by itself.
        text_bytes: of the documents of `eval_dataset`; None without one.
        others: as in `Trainer`; batches are planned for `args.per_device_train_batch_size`.
    """

    batch_key = "contexts_per_batch"

    def __init__(self, model: Any, args: Any, *, text_bytes: int | None = None, **kwargs: Any) -> None:
        self.batch_size, self.text_bytes = args.per_device_train_batch_size, text_bytes
        super().__init__(model, args, **kwargs)

    def plan_of_batches(self) -> ShuffledBatches:
        """The plan of all training batches; the same on every process."""
        return ShuffledBatches(len(self.train_dataset), self.batch_size, self.plan_seed, self.batches_per_update)

    def scores(self, means: dict[str, float], items: int) -> dict[str, float]:
        """The perplexities of the evaluation."""
        nats = means.get("cross_entropy", means["loss"])
        return {} if self.text_bytes is None else perplexities(nats, items, self.text_bytes)
