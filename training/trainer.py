"""`Seq2SeqTrainer` with token batches, the model's own figures in the logs, and translation of validation pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Seq2SeqTrainer

from reluformer.training.data.encoding import token_lengths
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.token_trainer import TokenTrainer

# Scores a model during training: (model, process index, number of processes) → figures, the same on every process.
TranslationScorer = Callable[[torch.nn.Module, int, int], dict[str, float]]


class ReLUFormerTrainer(TokenTrainer, Seq2SeqTrainer):
    """Trains any encoder-decoder of Transformers on batches filled by tokens.

    Logs, beside the Trainer's: `cross_entropy`, `regularization`, `attention_sum`, `attention_entropy`,
    `dead_row_fraction` (means over target tokens since the last log, over all processes; those the model reports),
    `target_tokens_per_update`, `target_tokens_per_second` (evaluation not counted). Evaluation: the same with `eval_`,
    and `eval_loss` as an exact mean over target tokens.

    Args:
        tokens_per_batch: budget of a batch in tokens with padding.
        translation_scorer: called at every evaluation; its figures are logged as `eval_bleu` and so on.
        others: as in `Seq2SeqTrainer`; `train_dataset` has columns `input_ids` and `labels` of unpadded lists.
    """

    batch_key = "tokens_per_batch"

    def __init__(
        self,
        *args: Any,
        tokens_per_batch: int,
        translation_scorer: TranslationScorer | None = None,
        **kwargs: Any,
    ) -> None:
        self.batch_size = self.tokens_per_batch = tokens_per_batch
        self.translation_scorer = translation_scorer
        super().__init__(*args, **kwargs)

    @property
    def token_batches(self) -> TokenBatchSampler | None:
        """The plan of all training batches."""
        return self.batches

    def plan_of_batches(self) -> TokenBatchSampler:
        """The plan of all training batches; the same on every process."""
        return TokenBatchSampler(
            token_lengths(self.train_dataset, "input_ids"),
            token_lengths(self.train_dataset, "labels"),
            tokens_per_batch=self.tokens_per_batch,
            seed=self.plan_seed,
            batches_per_update=self.batches_per_update,
        )

    def get_total_train_batch_size(self, args: Any) -> int:
        """Mean number of pairs in an update; the Trainer's figures of samples per second stand on it."""
        batches_per_update = args.gradient_accumulation_steps * args.world_size
        return max(round(len(self.train_dataset) * batches_per_update / len(self.token_batches)), 1)

    def scores(self, means: dict[str, float], items: int) -> dict[str, float]:
        """Those of translations of validation pairs."""
        if self.translation_scorer is None:
            return {}
        model = self.accelerator.unwrap_model(self.model)
        return self.translation_scorer(model, self.args.process_index, self.args.world_size)
