"""`Seq2SeqTrainer` with token batches, the model's own figures in the logs, and translation of validation pairs."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, seed_worker

from reluformer.configuration.errors import UserError
from reluformer.training.data.encoding import token_lengths
from reluformer.training.data.mapped_files import ReleasingCollator
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.run.checkpoints import (
    begin_checkpoint,
    move_files,
    remove_older,
    removed_if_it_fails,
    saved_processes,
    seal_checkpoint,
)
from reluformer.training.run.figures import FigureMeans
from reluformer.training.run.interruptions import StopOnSigterm

# Scores a model during training: (model, process index, number of processes) → figures, the same on every process.
TranslationScorer = Callable[[torch.nn.Module, int, int], dict[str, float]]


class ReLUFormerTrainer(Seq2SeqTrainer):
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

    def __init__(
        self,
        *args: Any,
        tokens_per_batch: int,
        translation_scorer: TranslationScorer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.tokens_per_batch = tokens_per_batch
        self.translation_scorer = translation_scorer
        self._training_figures = FigureMeans()
        self._evaluation_figures = FigureMeans()
        self._clock_start = time.perf_counter()
        self._last_logged_update = 0
        if self.args.n_gpu > 1:
            raise UserError(
                f"one process sees {self.args.n_gpu} GPUs; start one process for each with `torchrun --nproc_per_node "
                f"{self.args.n_gpu} -m reluformer train …`, or choose one with CUDA_VISIBLE_DEVICES=0"
            )
        self.add_callback(_StartOfTheClock(self))
        self.stop_on_sigterm = StopOnSigterm(self)
        self.add_callback(self.stop_on_sigterm)
        self.token_batches = None
        if self.train_dataset is not None:
            self.token_batches = self._token_batches()
            self.add_callback(_EpochOfTheBatches(self.token_batches))

    def _token_batches(self) -> TokenBatchSampler:
        """The plan of all training batches; the same on every process."""
        return TokenBatchSampler(
            token_lengths(self.train_dataset, "input_ids"),
            token_lengths(self.train_dataset, "labels"),
            tokens_per_batch=self.tokens_per_batch,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            batches_per_update=self.args.gradient_accumulation_steps * self.args.world_size,
        )

    def get_train_dataloader(self) -> DataLoader:
        """Batches of `token_batches`; accelerate deals them out to the processes."""
        if self.train_dataset is None:
            raise ValueError("ReLUFormerTrainer: training requires a train_dataset.")
        # Data sets of other kinds than `datasets` have no files.
        files = [file["filename"] for file in getattr(self.train_dataset, "cache_files", ())]
        loader = DataLoader(
            self._remove_unused_columns(self.train_dataset, description="training"),
            batch_sampler=self.token_batches,
            collate_fn=ReleasingCollator(self.data_collator, files) if files else self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            # Without an accelerator torch only warns that pinning does nothing.
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type != "cpu",
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            worker_init_fn=partial(
                seed_worker, num_workers=self.args.dataloader_num_workers, rank=self.args.process_index
            ),
        )
        return self.accelerator.prepare(loader)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Mean number of pairs in an update; the Trainer's figures of samples per second stand on it."""
        batches_per_update = args.gradient_accumulation_steps * args.world_size
        return max(round(len(self.train_dataset) * batches_per_update / len(self.token_batches)), 1)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """The Trainer's, unless all updates are made: a run that goes on at its last checkpoint would make one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """The Trainer's, whole or not at all: sealed when every process has written, and older ones removed only then."""
        run_folder = Path(self._get_output_dir(trial=trial))
        folder = run_folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        limit, off_schedule = self.args.save_total_limit, self.stop_on_sigterm.off_schedule
        with removed_if_it_fails(folder) if self.args.should_save else contextlib.nullcontext():
            if self.args.should_save:
                begin_checkpoint(folder)
            self.accelerator.wait_for_everyone()
            self.args.save_total_limit = None
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.args.save_total_limit = limit
            self.accelerator.wait_for_everyone()  # every process writes its random state
            if self.args.should_save:
                seal_checkpoint(
                    folder,
                    processes=self.args.world_size,
                    accumulation_steps=self.args.gradient_accumulation_steps,
                    tokens_per_batch=self.tokens_per_batch,
                    off_schedule=off_schedule,
                )
        if self.args.should_save and not off_schedule:
            remove_older(run_folder, folder, keep=limit, best=self.state.best_model_checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The Trainer's, where as many processes go on as have written the checkpoint.

        Otherwise some would have no state to go on with, and would draw the dropout masks of the first updates again; all begin
        anew, with a seed that depends on the update.
        """
        if checkpoint is None or saved_processes(Path(checkpoint)) == self.args.world_size:
            super()._load_rng_state(checkpoint)
        else:
            set_seed(self.args.seed + self.state.global_step)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The Trainer's. In the run folder, every file is whole or as it was before, and the weights are the last."""
        target = Path(self.args.output_dir if output_dir is None else output_dir)
        if target != Path(self.args.output_dir):
            super().save_model(output_dir, _internal_call)
            return
        partial = target / ".model.partial"
        if self.args.should_save and partial.exists():
            shutil.rmtree(partial)
        super().save_model(str(partial), _internal_call=True)
        if self.args.should_save:
            move_files(partial, target, last="*.safetensors")
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's own loss; what the model reports with it is kept for the next log."""
        target_tokens = inputs["labels"].ne(-100).sum()
        # What the model divided its sums by: the targets of the whole update, of which this batch may be a part.
        divisor = num_items_in_batch if self.model_accepts_loss_kwargs else None
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        # The Trainer has multiplied the loss by the number of processes, over which DDP takes the mean of the gradients.
        processes = 1 if divisor is None else self.args.world_size
        figures = self._training_figures if model.training else self._evaluation_figures
        figures.add({**outputs, "loss": loss / processes}, target_tokens, divisor)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """As in `Seq2SeqTrainer`; pairs that stand in the last batch a second time do not count."""
        if self.args.world_size > 1 and "labels" in inputs:
            inputs = {**inputs, "labels": self._without_repeated_pairs(inputs["labels"])}
        return super().prediction_step(model, inputs, *args, **kwargs)

    def _without_repeated_pairs(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels (batch, target) with -100 in the rows that accelerate has added to fill the batches of all processes.

        The rows of all processes side by side are the pairs that are left and then the first ones of the set again.
        """
        state = self.accelerator.gradient_state
        if not state.end_of_dataloader or state.remainder <= 0:
            return labels
        rows = torch.arange(len(labels), device=labels.device) + self.args.process_index * len(labels)
        return labels.masked_fill((rows >= state.remainder).unsqueeze(1), -100)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the model's figures and the speed to each training log."""
        if "loss" in logs:
            logs.update(self._figures_since_last_log())
        super().log(logs, start_time)

    def _figures_since_last_log(self) -> dict[str, float]:
        means, target_tokens = self._training_figures.pop(self._sum_over_processes)
        means.pop("loss", None)  # the Trainer's own `loss` is the mean over updates
        now = time.perf_counter()
        seconds, self._clock_start = now - self._clock_start, now
        updates = self.state.global_step - self._last_logged_update
        self._last_logged_update = self.state.global_step
        return {
            **means,
            "target_tokens_per_update": target_tokens / max(updates, 1),
            "target_tokens_per_second": target_tokens / seconds,
        }

    def _sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(values, reduction="sum")

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """The Trainer's loop, then the exact means over target tokens and, in training, the scores of translations."""
        started = time.perf_counter()
        # `Seq2SeqTrainer` gathers with the pairs that accelerate repeats to fill the last batch, and would score them twice.
        self.gather_function = self.accelerator.gather_for_metrics
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        means, _ = self._evaluation_figures.pop(self._sum_over_processes)
        scores = {}
        if self.translation_scorer is not None and metric_key_prefix == "eval":
            model = self.accelerator.unwrap_model(self.model)
            scores = self.translation_scorer(model, self.args.process_index, self.args.world_size)
        # Here, rather than after `evaluate`, logs, callbacks and the choice of the best checkpoint see them too.
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in {**means, **scores}.items()})
        self._clock_start += time.perf_counter() - started
        return output


class _StartOfTheClock(TrainerCallback):
    """Starts the clock and the count of updates where training starts, from a checkpoint or from the beginning."""

    def __init__(self, trainer: ReLUFormerTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._last_logged_update = state.global_step
        self._trainer._clock_start = time.perf_counter()


class _EpochOfTheBatches(TrainerCallback):
    """Tells the token batches which epoch begins.

    The Trainer hands the epoch to the loader's batch sampler and to the one inside it. When several processes resume in
    the middle of an epoch ours lies one deeper (skip of shard of ours), and the order of epoch 0 would return. What a
    checkpoint keeps is the number of the update, so the epoch is derived from it, by the Trainer's own formula.
    """

    def __init__(self, token_batches: TokenBatchSampler) -> None:
        self._token_batches = token_batches

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        updates_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        self._token_batches.set_epoch(state.global_step // updates_per_epoch)
