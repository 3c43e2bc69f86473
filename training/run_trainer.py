"""What every trainer of a run has, whatever it learns from: planned batches, whole checkpoints, the model's own figures."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import datasets
import torch
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput, seed_worker

from reluformer.configuration.errors import UserError
from reluformer.training.data.mapped_files import ReleasingCollator
from reluformer.training.run.attention_loop import attention_loop
from reluformer.training.run.checkpoints import (
    begin_checkpoint,
    move_files,
    read_manifest,
    remove_older,
    removed_if_it_fails,
    saved_processes,
    seal_checkpoint,
)
from reluformer.training.run.figures import FigureMeans
from reluformer.training.run.interruptions import StopOnSigterm
from reluformer.training.run.progress import library_bars
from reluformer.training.run.progress_lines import ProgressLines


class RunTrainer(Trainer):
    """A `Trainer` whose run can be interrupted anywhere and goes on exactly, and which logs what the model reports.

    A subclass says what it counts (`items`, `batch_key`, `count_items`) and plans its batches (`plan_of_batches`).

    Logs, beside the Trainer's: `cross_entropy`, `regularization`, `attention_sum`, `attention_entropy`,
    `dead_row_fraction` (means over items since the last log, over all processes; those the model reports),
    `<items>_per_update`, `<items>_per_second` and `cpu_seconds`, this process' on all its threads since the last log (evaluation
    not counted). Evaluation: the same with `eval_`, and `eval_loss` as
    an exact mean over items.
    """

    # What the loss is a mean over, for the names of figures; and how a checkpoint's manifest names the size of a batch.
    items: ClassVar[str]
    batch_key: ClassVar[str]
    # The size of a batch, in the unit of the plan; a subclass sets it before it calls `__init__`.
    batch_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attention_loop: str | None = None
        self._began: float | None = None
        self._training_figures = FigureMeans()
        self._evaluation_figures = FigureMeans()
        self._clock_start, self._cpu_start = time.perf_counter(), time.process_time()
        self._last_logged_update = 0
        if self.args.n_gpu > 1:
            raise UserError(
                f"one process sees {self.args.n_gpu} GPUs; start one process for each with `torchrun --nproc_per_node "
                f"{self.args.n_gpu} -m reluformer train …`, or choose one with CUDA_VISIBLE_DEVICES=0"
            )
        if self.args.device.type == "cpu":  # torch would warn at each evaluation that pinning does nothing
            self.args.dataloader_pin_memory = False
        self._progress = ProgressLines()
        # A notebook's own table stays.
        if any(self.pop_callback(kind) for kind in (ProgressCallback, PrinterCallback)):
            self.add_callback(self._progress)
        self.add_callback(_StartOfTheClock(self))
        self.stop_on_sigterm = StopOnSigterm(self)
        self.add_callback(self.stop_on_sigterm)
        self.batches = None
        if self.train_dataset is not None:
            self.batches = self.plan_of_batches()
            self.add_callback(_EpochOfTheBatches(self.batches))

    @property
    def plan_seed(self) -> int:
        """That the plan of the batches follows from."""
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    @property
    def seconds(self) -> float | None:
        """Wall time of the training so far, evaluation included, with that up to the checkpoint at which it went on; None where
        the checkpoint does not tell."""
        return None if self._began is None else time.perf_counter() - self._began

    @property
    def batches_per_update(self) -> int:
        """Of all processes and steps of accumulation."""
        return self.args.gradient_accumulation_steps * self.args.world_size

    def plan_of_batches(self) -> Sampler:
        """The plan of all training batches, the same on every process, with `set_epoch`."""
        raise NotImplementedError

    def count_items(self, labels: torch.Tensor) -> torch.Tensor:
        """Number of items of a batch that count in the loss; scalar."""
        raise NotImplementedError

    def divisor_of(self, num_items_in_batch: torch.Tensor | int, labels: torch.Tensor) -> torch.Tensor | int:
        """What the model has divided its sums by, where the Trainer has told it the entries of `labels` in the update."""
        return num_items_in_batch

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the plan; accelerate deals them out to the processes."""
        if self.train_dataset is None:
            raise ValueError(f"{type(self).__name__}: training requires a train_dataset.")
        # Data sets of other kinds than `datasets` have no files.
        files = [file["filename"] for file in getattr(self.train_dataset, "cache_files", ())]
        rows = self.train_dataset
        if isinstance(rows, datasets.Dataset):
            rows = self._remove_unused_columns(rows, description="training")
        loader = DataLoader(
            rows,
            batch_sampler=self.batches,
            collate_fn=ReleasingCollator(self.data_collator, files) if files else self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            worker_init_fn=partial(
                seed_worker, num_workers=self.args.dataloader_num_workers, rank=self.args.process_index
            ),
        )
        return self.accelerator.prepare(loader)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """The Trainer's, with the loop of the attention that the checkpoint was trained with, where that can be had."""
        checkpoint = Path(resume_from_checkpoint) if isinstance(resume_from_checkpoint, str) else None
        before = 0.0 if checkpoint is None else (read_manifest(checkpoint) or {}).get("seconds")
        self._began = None if before is None else time.perf_counter() - before
        chosen = attention_loop(self.model, self.args.device, checkpoint, tell=self.args.should_save)
        with chosen as self.attention_loop, contextlib.closing(self._progress):
            return super().train(resume_from_checkpoint, *args, **kwargs)

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
                    **{self.batch_key: self.batch_size},
                    attention_loop=self.attention_loop,
                    seconds=self.seconds,
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

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """The Trainer's, without a bar for each file within that of the training."""
        with library_bars(shown=False):
            super()._save(*args, **kwargs)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's own loss; what the model reports with it is kept for the next log."""
        labels = inputs["labels"]
        items = self.count_items(labels)
        if not return_outputs:  # a training step
            inputs = self.inputs_of_the_loss(inputs)
        # What the model divided its sums by: the items of the whole update, of which this batch may be a part.
        told = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        divisor = self.divisor_of(num_items_in_batch, labels) if told else None
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        # The Trainer has multiplied the loss by the number of processes, over which DDP takes the mean of the gradients.
        processes = 1 if divisor is None else self.args.world_size
        figures = self._training_figures if model.training else self._evaluation_figures
        figures.add({**outputs, "loss": loss / processes}, items, divisor)
        return (loss, outputs) if return_outputs else loss

    def inputs_of_the_loss(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model is given where its loss alone is wanted."""
        return inputs

    def rows_that_count(self, rows: int, device: torch.device) -> torch.Tensor | None:
        """Which rows of the last batch of an evaluation are not repetitions, (rows,); None where all count.

        The rows of all processes side by side are those that are left and then the first ones of the set again, which accelerate
        has added to fill the batches of all processes.
        """
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return None
        return torch.arange(rows, device=device) + self.args.process_index * rows < state.remainder

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the model's figures and the speed to each training log."""
        if "loss" in logs:
            logs.update(self._figures_since_last_log())
        super().log(logs, start_time)

    def _figures_since_last_log(self) -> dict[str, float]:
        means, items = self._training_figures.pop(self._sum_over_processes)
        means.pop("loss", None)  # the Trainer's own `loss` is the mean over updates
        now = time.perf_counter()
        seconds, self._clock_start = now - self._clock_start, now
        cpu_now = time.process_time()
        cpu_seconds, self._cpu_start = cpu_now - self._cpu_start, cpu_now
        updates = self.state.global_step - self._last_logged_update
        self._last_logged_update = self.state.global_step
        return {
            **means,
            f"{self.items}_per_update": items / max(updates, 1),
            f"{self.items}_per_second": items / seconds,
            "cpu_seconds": cpu_seconds,
        }

    def _sum_over_processes(self, values: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(values, reduction="sum")

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """The Trainer's loop, then the exact means over items and, in training, what `scores` adds."""
        started, cpu_started = time.perf_counter(), time.process_time()
        # Some trainers gather with the rows that accelerate repeats to fill the last batch, and would score them twice.
        self.gather_function = self.accelerator.gather_for_metrics
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        means, items = self._evaluation_figures.pop(self._sum_over_processes)
        scores = self.scores(means, items) if metric_key_prefix == "eval" else {}
        # Here, rather than after `evaluate`, logs, callbacks and the choice of the best checkpoint see them too.
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in {**means, **scores}.items()})
        self._clock_start += time.perf_counter() - started
        self._cpu_start += time.process_time() - cpu_started
        return output

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As in `Trainer`, but a tied weight, which a checkpoint holds once under its other name, is not called missing."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def scores(self, means: dict[str, float], items: int) -> dict[str, float]:
        """Further figures of an evaluation during training, the same on every process.

        Args:
            means: what the model has reported, over the items.
            items: their number.
        """
        return {}


class _StartOfTheClock(TrainerCallback):
    """Starts the clock and the count of updates where training starts, from a checkpoint or from the beginning."""

    def __init__(self, trainer: RunTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._last_logged_update = state.global_step
        self._trainer._clock_start, self._trainer._cpu_start = time.perf_counter(), time.process_time()


class _EpochOfTheBatches(TrainerCallback):
    """Tells the plan of batches which epoch begins.

    The Trainer hands the epoch to the loader's batch sampler and to the one inside it. When several processes resume in
    the middle of an epoch ours lies one deeper (skip of shard of ours), and the order of epoch 0 would return. What a
    checkpoint keeps is the number of the update, so the epoch is derived from it, by the Trainer's own formula.
    """

    def __init__(self, batches: Sampler) -> None:
        self._batches = batches

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        updates_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        self._batches.set_epoch(state.global_step // updates_per_epoch)
