"""One row on pictures or on language models, trained by Transformers' `Trainer`; translation rows are `reluformer
train`'s, but for models of which no update is made (task `calibration`): γ is set by a batch, or a model evaluated in
another way.

    python -m benchmarks.studies.training ROW.yaml

The run folder ends with what a study reads: recipe, model, log, training record, and an evaluation of each split. What
is there already is not done again: a training that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import EvalLoopOutput

from benchmarks.studies import pictures, texts
from benchmarks.studies.tasks import unevaluated_splits
from reluformer.analysis.ppl_sparsity import perplexity
from reluformer.commands.main import exit_status
from reluformer.configuration.recipe_parser import build_recipe
from reluformer.modeling_reluformer.layers_reluformer import ReLUFormerAttention
from reluformer.records.records import run_record, write_json
from reluformer.training.run.checkpoints import checkpoint_folders, require_whole
from reluformer.training.run.divergence import DivergenceWatch
from reluformer.training.run.model_building import build_model
from reluformer.training.run.precision import precision_of, warn_of_slow_bfloat16
from reluformer.training.run.preparation import prepare_corpus
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE
from reluformer.training.run.token_means import TokenMeans
from reluformer.training.scoring.evaluation import evaluate_split
from reluformer.training.zeros import ZerosCallback
from reluformer.translating.translation import Translator

TASKS = {"image_classification": pictures, "language_modeling": texts}


class RowTrainer(Trainer):
    """`Trainer` that logs what the model reports with its loss, and how fast it learns, evaluation not counted.

    items: what is counted: "images" or "target_tokens".
    """

    def __init__(self, *args: Any, items: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.items, self.trained, self.evaluated = items, TokenMeans(), TokenMeans()
        self.logged_update, self.clocks = 0, _now()

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """The model's own loss, in training without the logits where it can do without."""
        labels, items = inputs["labels"], kwargs.get("num_items_in_batch")
        if self.items == texts.ITEMS and not return_outputs:
            inputs = {**inputs, "skip_logits": True}
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        shares = labels.is_floating_point()  # of each class: (batch, classes)
        count = torch.tensor(len(labels)) if shares else labels.ne(-100).sum()
        divisor = items / labels.shape[1] if shares and items is not None else items
        figures = self.trained if model.training else self.evaluated
        figures.add({**outputs, "loss": loss}, count.to(labels.device), divisor)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Adds the model's figures and the speed to each log of the training."""
        if "loss" in logs:
            means, items = self.trained.pop(lambda sums: sums)
            before, self.clocks = self.clocks, _now()
            wall, cpu = (self.clocks - before).tolist()
            updates, self.logged_update = self.state.global_step - self.logged_update, self.state.global_step
            logs |= {name: value for name, value in means.items() if name != "loss"}
            logs |= {f"{self.items}_per_update": items / updates, f"{self.items}_per_second": items / wall}
            logs["cpu_seconds"] = cpu
        super().log(logs, *args)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Adds the exact means and, of texts, the perplexity."""
        before = _now()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        means, _ = self.evaluated.pop(lambda sums: sums)
        if self.items == texts.ITEMS:
            means["perplexity"] = perplexity(means.get("cross_entropy", means["loss"]))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in means.items()})
        self.clocks += _now() - before
        return output


def _now() -> np.ndarray:
    """Seconds of the clock on the wall, and of this process on the CPU: (2,)."""
    return np.array([time.perf_counter(), time.process_time()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains and evaluates a row; the exit status is as that of `reluformer`."""
    (recipe_file,) = sys.argv[1:] if arguments is None else arguments
    return exit_status(partial(run_row, Path(recipe_file)))


def run_row(recipe_file: Path) -> int:
    """What is left to do of a row: see above."""
    text = recipe_file.read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    folder, task = Path(recipe["training"]["output_dir"]), TASKS.get(recipe["task"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECIPE_FILE).write_text(text, encoding="utf-8")
    if not (folder / RECORD_FILE).is_file():
        (calibrate if recipe["task"] == "calibration" else train)(recipe, folder)
    for split in unevaluated_splits(folder):
        device = TrainingArguments(**recipe["training"]).device
        model = task.MODEL.from_pretrained(folder).eval().to(device)
        measured = {"split": split, "dataset": split, **task.evaluate(recipe, split, model, folder)}
        record = run_record(None, recipe["name"], recipe["training"]["seed"])
        write_json(folder / f"evaluation.{split}.json", {**record, **measured})
    return 0


def train(recipe: Mapping[str, Any], folder: Path) -> None:
    """Trains a row's model and writes the training record; a run whose loss is not finite leaves no model."""
    arguments, task = TrainingArguments(logging_nan_inf_filter=False, **recipe["training"]), TASKS[recipe["task"]]
    warn_of_slow_bfloat16(arguments)
    set_seed(arguments.seed)
    trainer = RowTrainer(args=arguments, items=task.ITEMS, **task.prepare(recipe, folder))
    watch = DivergenceWatch(trainer, recipe.get("on_divergence", "stop"))
    trainer.add_callback(watch)
    if recipe.get("zeros"):
        trainer.add_callback(ZerosCallback(**recipe["zeros"]))
    # the Trainer writes the state last: without it, a checkpoint was cut short
    whole = [each for each in checkpoint_folders(folder) if (each / "trainer_state.json").is_file()]
    if whole:
        require_whole(whole[-1])
    trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
    trainer.save_state()
    if watch.divergence is None:
        trainer.save_model()
    record = {
        **run_record(None, recipe["name"], arguments.seed),
        **{"updates": trainer.state.global_step, "epochs": trainer.state.epoch, "processes": arguments.world_size},
        "parameters": trainer.model.num_parameters(),
        "precision": precision_of(arguments),
        **{"diverged": watch.divergence, "dead_modules": watch.dead_modules, "exploded": watch.exploded},
    }
    write_json(folder / RECORD_FILE, record)


def calibrate(row: Mapping[str, Any], folder: Path) -> None:
    """Writes and evaluates a translation model without an update, with γ set where there is a `row_sum`; the record has
    it."""
    recipe = build_recipe({key: says for key, says in row.items() if key not in ("task", "row_sum")})
    corpus = prepare_corpus(recipe)
    model = build_model(recipe, corpus.config)
    pairs = corpus.encoded["train"].shuffle(seed=recipe.training.seed).select(range(64))
    pairs = pairs.select_columns(["input_ids", "labels"]).with_format("torch")
    gamma = None if row["row_sum"] is None else set_gamma(model, pairs, row["row_sum"])
    model.save_pretrained(folder)
    corpus.tokenizer.save_pretrained(folder)
    write_json(folder / "trainer_state.json", {"log_history": []})
    for split in recipe.evaluation.splits:
        translator = Translator.from_pretrained(folder, num_beams=recipe.evaluation.num_beams)
        evaluate_split(recipe, split, translator, corpus.read[split])
    record = {**run_record(None, recipe.name, recipe.training.seed), "updates": 0, "gamma": gamma}
    write_json(folder / RECORD_FILE, record)


@torch.no_grad()
def set_gamma(model: torch.nn.Module, pairs: Iterable[dict[str, Tensor]], row_sum: float) -> dict[str, list[float]]:
    """Sets the learnable γ of each head so that its rows' mean sum is `row_sum` on the pairs; γ by name of the
    attention."""
    model.eval().set_attn_implementation("eager")
    attentions = {name: part for name, part in model.named_modules() if isinstance(part, ReLUFormerAttention)}
    sums: dict[torch.nn.Module, list[Tensor]] = {}
    for each in attentions.values():
        each.register_forward_hook(lambda part, _, output: sums.setdefault(part, []).append(output[1].sum(-1)))
    for _ in attentions:  # what one reads follows from γ of those before it
        sums.clear()
        for pair in pairs:
            model(**{name: ids[None] for name, ids in pair.items()})
        for part, row_sums in sums.items():
            part.log_gamma += torch.log(torch.cat(row_sums, -1).mean((0, 2)) / row_sum)
    return {name: part.log_gamma.exp().tolist() for name, part in attentions.items()}


if __name__ == "__main__":
    sys.exit(main())
