"""Tells the token batches which epoch begins, where the Trainer does not."""

from __future__ import annotations

import math

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reluformer.training.token_batches import TokenBatchSampler


class EpochCallback(TrainerCallback):
    """Calls `set_epoch` on a `TokenBatchSampler` at the start of every epoch.

    The Trainer looks for `set_epoch` on the loader's batch sampler and on the one inside it. After a resume in the middle
    of an epoch in several processes ours sits one deeper (skip of shard of ours) and would replay the plan of epoch 0.
    """

    def __init__(self, sampler: TokenBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader | None = None,
        **kwargs,
    ) -> None:
        """Set the epoch by the Trainer's own formula."""
        updates_per_epoch = max(math.ceil(len(train_dataloader) / args.gradient_accumulation_steps), 1)
        self.sampler.set_epoch(state.global_step // updates_per_epoch)
