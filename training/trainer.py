"""`Seq2SeqTrainer` with token batches, whole checkpoints, the model's own figures in the logs, and scores of
translations."""

from __future__ import annotations

import math
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback, Seq2SeqTrainer, TrainerCallback, set_seed
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    TrainOutput,
    get_last_checkpoint,
    rotate_checkpoints,
    seed_worker,
)

from reluformer.configuration.errors import UserError, write_failure
from reluformer.records.progress import ProgressBars, ProgressLines
from reluformer.training.data.encoding import token_lengths
from reluformer.training.data.token_batches import TokenBatchSampler
from reluformer.training.run.checkpoints import (
    PARTIAL_FOLDER,
    publish_checkpoint,
    read_run_state,
    reading,
    remove_off_schedule,
    require_whole,
    saved_processes,
)
from reluformer.training.run.interruptions import StopOnSigterm, resumes_at
from reluformer.training.run.precision import warn_of_slow_bfloat16
from reluformer.training.run.token_means import TokenMeans

_LOADER_OPTIONS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context")


class ReLUFormerTrainer(Seq2SeqTrainer):
    """Trains any encoder-decoder of Transformers on batches filled by tokens; an interrupted run resumes exactly.

    Logs, beside the Trainer's: what the model reports (see `token_means`) as means over target tokens since the last
    log, over all processes; `target_tokens_per_update`, `target_tokens_per_second` and this process' `cpu_seconds`,
    evaluation not counted. Evaluation: the same means with `eval_`, `eval_loss` among them.

    Args:
        others: as in `Seq2SeqTrainer`; `train_dataset`, if there is one, has columns `input_ids` and `labels` of
            unpadded lists.
        tokens_per_batch: budget of a batch in tokens with padding.
        translation_scorer: called at every evaluation with the model, the number of the process and how many there are;
            its values, the same in every process, are logged as `eval_bleu` and so on.
        settings: what checkpoints keep of the recipe, see `run_folder.settings_of`.
    """

    def __init__(
        self,
        *args: Any,
        tokens_per_batch: int,
        translation_scorer: Callable[[torch.nn.Module, int, int], dict[str, float]] | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            each = f"`torchrun --nproc_per_node {self.args.n_gpu} -m reluformer train …`"
            raise UserError(
                f"one process sees {self.args.n_gpu} GPUs; start {each}, or choose one by CUDA_VISIBLE_DEVICES=0"
            )
        self.args.dataloader_pin_memory &= self.args.device.type != "cpu"  # torch would warn at each evaluation
        self.translation_scorer, self.settings = translation_scorer, settings
        self._began = time.perf_counter()
        self._training_means, self._evaluation_means = TokenMeans(), TokenMeans()
        self._start_the_clock()
        if self.args.torch_compile and getattr(self.model.config, "regularization_share", 1) < 1:
            # a graph for each sample of modules, of which there is at most one more than modules
            torch._dynamo.config.recompile_limit += self.model.config.attention_modules + 1
        self._partial: Path | None = None  # while a checkpoint is being written
        if any(self.pop_callback(kind) for kind in (ProgressCallback, PrinterCallback)):  # a notebook's table stays
            self.add_callback(ProgressLines())
            if sys.stderr.isatty() and not self.args.disable_tqdm:
                self.add_callback(ProgressBars())
        self.stop_on_sigterm = StopOnSigterm(self)
        self.add_callback(self.stop_on_sigterm)
        if self.train_dataset is not None:
            self._plan_batches(tokens_per_batch)
        self.add_callback(_StartOfTraining(self))

    def _plan_batches(self, tokens_per_batch: int) -> None:
        """Sets `batches`, and `fingerprint`: the number of pairs and the checksums of the lengths of both sides."""
        lengths = [token_lengths(self.train_dataset, name) for name in ("input_ids", "labels")]
        self.fingerprint = [len(self.train_dataset), *(zlib.crc32(np.ascontiguousarray(side)) for side in lengths)]
        self.batches = TokenBatchSampler(
            *lengths,
            tokens_per_batch=tokens_per_batch,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            batches_per_update=self.args.gradient_accumulation_steps * self.args.world_size,
        )

    @property
    def seconds(self) -> float:
        """Wall time of the training so far, evaluation included, with that up to the checkpoint at which it resumed."""
        return time.perf_counter() - self._began

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the plan; accelerate deals them out to the processes."""
        rows = self._remove_unused_columns(self.train_dataset, description="training")
        options = {name: getattr(self.args, f"dataloader_{name}") for name in _LOADER_OPTIONS}
        workers = partial(seed_worker, num_workers=options["num_workers"], rank=self.args.process_index)
        batches = {"batch_sampler": self.batches, "collate_fn": self.data_collator}
        return self.accelerator.prepare(DataLoader(rows, worker_init_fn=workers, **batches, **options))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """The Trainer's; it refuses to resume with another training set, and at a checkpoint that lacks a file."""
        if self.train_dataset is None:
            raise ValueError("ReLUFormerTrainer: training needs a train_dataset, and none was given.")
        if resume_from_checkpoint is True:  # the last one; without any, the Trainer says so
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        before = {}
        if isinstance(resume_from_checkpoint, str):
            before = read_run_state(Path(resume_from_checkpoint))
            require_whole(Path(resume_from_checkpoint))
        if before.get("data", self.fingerprint) != self.fingerprint:
            advice = "restore them, or give another name, or --overwrite to train anew"
            raise UserError(
                f"{resume_from_checkpoint}: was trained with other training data than those read now; {advice}"
            )
        warn_of_slow_bfloat16(self.args)
        self._began = time.perf_counter() - before.get("seconds", 0.0)
        with self.stop_on_sigterm.listening():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """The Trainer's, unless all updates are made: a run that resumes at its last checkpoint would make one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._partial is None else str(self._partial)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """The Trainer's, in a folder that becomes a checkpoint when every process has written; older ones go only
        then."""
        run_folder, name = Path(self._get_output_dir(trial)), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._partial = run_folder / PARTIAL_FOLDER
        try:
            if self.args.should_save:
                shutil.rmtree(self._partial, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            best, goes = self.state.best_model_checkpoint, self.stop_on_sigterm.off_schedule
            super()._save_checkpoint(model, trial)
            if goes or self.state.best_global_step == self.state.global_step:  # super() says where it is being written
                self.state.best_model_checkpoint = best if goes else str(run_folder / name)
            self.accelerator.wait_for_everyone()  # every process writes its random state
            if self.args.should_save:
                self._publish(self._partial / name, run_folder / name)
        except Exception as error:
            if (reason := write_failure(error)) is None:
                raise
            advice = f"free space there; {resumes_at(run_folder)}"
            raise UserError(f"{run_folder / name}: cannot be written: {reason}; {advice}") from error
        finally:
            if self.args.should_save:
                shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = None

    def _publish(self, partial: Path, checkpoint: Path) -> None:
        self.state.save_to_json(str(partial / "trainer_state.json"))
        off_schedule = self.stop_on_sigterm.off_schedule
        run_state = {"settings": self.settings, "data": self.fingerprint, "seconds": self.seconds}
        publish_checkpoint(partial, checkpoint, run_state | {"off_schedule": off_schedule})
        if not off_schedule:
            remove_off_schedule(checkpoint)
            limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
            rotate_checkpoints(str(checkpoint.parent), save_total_limit=limit, best_model_checkpoint=best)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with reading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The Trainer's, where as many processes resume as wrote the checkpoint; else there is not one state for each.

        All begin anew then, with a seed that depends on the update, or they would draw the first updates' masks again.
        """
        if checkpoint is None or saved_processes(Path(checkpoint)) == self.args.world_size:
            with reading(checkpoint):
                super()._load_rng_state(checkpoint)
        else:
            set_seed(self.args.seed + self.state.global_step)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's own loss; what the model reports with it is kept for the next log."""
        target_tokens = inputs["labels"].ne(-100).sum()
        if not return_outputs:  # a training step
            inputs = self._with_module_sample(self.inputs_of_the_loss(inputs))
        # What the model divided its sums by: the target tokens of the whole update, of which this batch may be a part.
        divisor = num_items_in_batch if self.model_accepts_loss_kwargs else None
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        # The Trainer has multiplied the loss by the number of processes, over which DDP takes the mean of the
        # gradients.
        processes = 1 if divisor is None else self.args.world_size
        means = self._training_means if model.training else self._evaluation_means
        means.add({**outputs, "loss": loss / processes}, target_tokens, divisor)
        return (loss, outputs) if return_outputs else loss

    def _with_module_sample(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Draws whose regulariser the pass computes, where the model takes a share: here, since a compiled graph
        cannot."""
        draw = getattr(self.model, "draw_modules", None)
        sample = None if draw is None else draw()
        return inputs if sample is None else {**inputs, "module_sample": sample}

    def inputs_of_the_loss(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Asks the model for its loss alone, if it can skip the logits and no other loss is computed from them.

        With `torch_compile` the configuration decides: a loss without logits ends the graph, and a graph holds less of
        them.
        """
        can_skip = hasattr(getattr(self.model, "config", None), "skip_logits") and not self.args.torch_compile
        needed = self.label_smoother is not None or self.compute_loss_func is not None
        return {**inputs, "skip_logits": True} if can_skip and not needed else inputs

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """The Trainer's; rows that stand in the last batch a second time do not count."""
        if prediction_loss_only and "labels" in inputs:
            inputs = self.inputs_of_the_loss(inputs)
        labels = inputs.get("labels")
        if labels is not None and (count := self._rows_that_count(len(labels), labels.device)) is not None:
            inputs = {**inputs, "labels": labels.masked_fill(~count.unsqueeze(1), -100)}
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **kwargs)

    def _rows_that_count(self, rows: int, device: torch.device) -> torch.Tensor | None:
        """Which rows of the last batch of an evaluation count, (rows,); None where all do.

        Across the processes, accelerate fills it with the first rows of the set again, after those that are left.
        """
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return None
        return torch.arange(rows, device=device) + self.args.process_index * rows < state.remainder

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            means, tokens = self._training_means.pop(self.accelerator.reduce)
            updates = self.state.global_step - self._last_logged_update
            logs |= {
                **means,
                "loss": logs["loss"],  # the Trainer's is the mean over updates
                "target_tokens_per_update": tokens / max(updates, 1),
                "target_tokens_per_second": tokens / (time.perf_counter() - self._clock_start),
                "cpu_seconds": time.process_time() - self._cpu_start,
            }
            self._start_the_clock()
        super().log(logs, start_time)

    def _start_the_clock(self) -> None:
        self._clock_start, self._cpu_start = time.perf_counter(), time.process_time()
        self._last_logged_update = self.state.global_step

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """The Trainer's loop, then the exact means over target tokens and, in training, the scores of translations."""
        started, cpu_started = time.perf_counter(), time.process_time()
        # Some trainers gather with the rows that accelerate repeats to fill the last batch, and would score them twice.
        self.gather_function = self.accelerator.gather_for_metrics
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        means, _ = self._evaluation_means.pop(self.accelerator.reduce)
        scores = {}
        if metric_key_prefix == "eval" and self.translation_scorer is not None:
            model = self.accelerator.unwrap_model(self.model)
            scores = self.translation_scorer(model, self.args.process_index, self.args.world_size)
        # Here, rather than after `evaluate`, logs, callbacks and the choice of the best checkpoint see them too.
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in {**means, **scores}.items()})
        self._clock_start += time.perf_counter() - started
        self._cpu_start += time.process_time() - cpu_started
        return output

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """The Trainer's; a tied weight, which a checkpoint holds under its other name, is not missing."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def get_total_train_batch_size(self, args: Any) -> int:
        """Mean number of pairs in an update; the Trainer's values of samples per second stand on it."""
        batches_per_update = args.gradient_accumulation_steps * args.world_size
        return max(round(len(self.train_dataset) * batches_per_update / len(self.batches)), 1)


class _StartOfTraining(TrainerCallback):
    """Starts the clock where training starts, and tells the plan of batches which epoch begins, by the Trainer's
    formula.

    The Trainer tells the loader's batch sampler and the one inside it. Where several processes resume amid an epoch
    ours lies one deeper (skip of shard of ours), and the order of epoch 0 would return.
    """

    def __init__(self, trainer: ReLUFormerTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._start_the_clock()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        updates_per_epoch = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        self._trainer.batches.set_epoch(state.global_step // updates_per_epoch)
