"""What a recipe may not say although its types are right: found before anything is loaded, with the key that is to be
changed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import SPLITS, Recipe, TokenizerConfig
from reluformer.configuration.scores import SCORES

_NO_PREDICTIONS = "an evaluation of texts sums the loss, and keeps no predictions"
_BY_TOKENS = "set batching.tokens_per_batch: training batches are filled by tokens"
_BY_LENGTH = "pairs are bucketed by length and reshuffled every epoch already"
# Training arguments that the token batches, the model's own loss or our evaluation replace: refused, never ignored.
REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "set model.label_smoothing: smoothing in the trainer would drop the model's regulariser",
    "per_device_train_batch_size": _BY_TOKENS,
    "auto_find_batch_size": _BY_TOKENS,
    "train_sampling_strategy": _BY_LENGTH,
    "sortish_sampler": _BY_LENGTH,
    "average_tokens_across_devices": "the loss is a mean over the target tokens of all processes, however they are "
    "dealt out",
    "dataloader_drop_last": "no batch is incomplete: batches are filled by tokens",
    "predict_with_generate": "set evaluation.at_most to translate validation pairs during training",
    "generation_max_length": "decoding stops by itself at a length that follows the source's",
    "generation_num_beams": "set evaluation.num_beams",
    "generation_config": "set evaluation.num_beams and evaluation.length_penalty",
    "push_to_hub": "publish the run when it is finished, by `reluformer publish`",
    "save_on_each_node": "the processes of all machines share the run folder",
    "use_liger_kernel": "Liger has no kernels for this model",
    "enable_jit_checkpoint": "SIGTERM ends a run with a checkpoint already",
    "batch_eval_metrics": _NO_PREDICTIONS,
    "eval_accumulation_steps": _NO_PREDICTIONS,
}
# What torch or the trainer would refuse with a traceback, after the corpus and the model are made.
_LEAST = {
    "learning_rate": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "neftune_noise_alpha": 0,
    "seed": 0,
    "data_seed": 0,
    "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 1,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": 1,
    "logging_steps": 0,
    "save_steps": 0,
    "eval_steps": 0,
    "eval_delay": 0,
    "save_total_limit": 0,
}
_LARGEST_SEED = 2**32 - 1  # of numpy's generator
# What Transformers writes for a token, and so stands in the recipe of a run.
_HIDDEN_TOKEN = "<HUB_TOKEN>"


def check_recipe(recipe: Recipe) -> None:
    """Raises `UserError` for values that cannot be trained."""
    parts = (_in_general, _of_data, _of_text, _of_documents, _of_arguments, _of_training, _of_averaging)
    problem = next(itertools.chain.from_iterable(part(recipe) for part in parts), None)
    if problem is not None:
        raise UserError(problem)


def _in_general(recipe: Recipe) -> Iterator[str]:
    tokens, length = recipe.batching.tokens_per_batch, recipe.data.max_length
    if not recipe.name or Path(recipe.name).name != recipe.name or recipe.name == "..":
        yield f"name: {recipe.name!r} cannot name a folder; give a word such as 'multi30k_en_de'"
    if tokens < length:
        yield (
            f"batching.tokens_per_batch: {tokens} cannot hold one pair of data.max_length {length}; raise the first or "
            "lower the second"
        )
    if recipe.initialize_from is not None and recipe.tokenizer != TokenizerConfig():
        yield (
            "tokenizer: comes with the model of initialize_from, whose embeddings were made for it; leave the section "
            "out"
        )
    if recipe.tokenizer.path is not None and recipe.tokenizer != TokenizerConfig(path=recipe.tokenizer.path):
        yield "tokenizer.path: the tokenizer is taken as it is; leave vocab_size, lowercase and moses out"


def _of_data(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    origins = {
        "train/validation/test": any((data.train, data.validation, data.test)),
        "dataset": data.dataset is not None,
        "demo": data.demo is not None,
    }
    chosen = [name for name, is_given in origins.items() if is_given]
    if len(chosen) != 1:
        yield f"data: give exactly one of {', '.join(origins)}; given: {' and '.join(chosen) or 'none of them'}"
    if chosen == ["train/validation/test"] and data.train is None:
        yield "data: the files of `train` are missing; give data.train.source and data.train.target"
    if data.variants is None:
        return
    if data.packing is not None:
        yield "data.variants: does not go with data.packing, whose documents stay whole; leave one of them out"
    if data.text == "moses":
        yield "data.variants: are of plain text, and data.text is moses; leave it out"
    for one, other in (("lower", "upper"), ("untranslated", "foreign")):
        if (both := getattr(data.variants, one) + getattr(data.variants, other)) > 1:
            yield (
                f"data.variants: {one} and {other} are {both:g} together, and exclude each other; lower them to 1 at "
                "most"
            )


def _of_documents(recipe: Recipe) -> Iterator[str]:
    data, headline = recipe.data, recipe.evaluation.headline
    files = {split: corpus for split in SPLITS if (corpus := getattr(data, split)) is not None}
    for split, corpus in files.items():
        if corpus.only is not None and corpus.documents is None:
            yield f"data.{split}.only: chooses documents, but data.{split}.documents names no file of them"
    if data.packing is None:
        if SCORES[headline].of_documents:
            yield f"evaluation.headline: {headline} is a score of packed documents; set data.packing"
        return
    lacking = [f"{split}.documents" for split, corpus in files.items() if corpus.documents is None]
    if data.dataset is not None and data.dataset.document_column is None:
        lacking.append("dataset.document_column")
    if lacking or data.demo is not None:
        what = f"give data.{lacking[0]}" if lacking else "the generated corpus has none"
        yield f"data.packing: needs the name of each pair's document; {what}"
    if data.max_length < max(limits := data.packing.train_lengths or [1]):
        yield (
            f"data.packing.train_lengths: {max(limits)} is above data.max_length {data.max_length}; raise that or "
            "lower this"
        )
    if recipe.tokenizer.moses:
        yield (
            "tokenizer.moses: does not go with data.packing, since Moses splits the full stop at the end of a text "
            "alone; tokenise the corpus beforehand and say data.text: moses, or set it to false"
        )


def _of_text(recipe: Recipe) -> Iterator[str]:
    """Scores that the kind of text does not have: 13a or Moses over tokens that Moses has made."""
    text, score = recipe.data.text, SCORES[recipe.evaluation.headline]
    if text == "moses" and recipe.tokenizer.moses:
        yield "tokenizer.moses: would tokenise what data.text says Moses has tokenised already; set it to false"
    if score.text not in (None, text):
        others = [name for name, other in SCORES.items() if other.text == text and other.is_told]
        yield (
            f"evaluation.headline: {score.name} is a score of data.text {score.text}, and data.text is {text}; choose "
            f"{' or '.join([*others, 'bleu'])}, or say data.text: {score.text} if that is what the corpus holds"
        )


def _of_arguments(recipe: Recipe) -> Iterator[str]:
    """Training arguments that would have no effect, and those out of range."""
    training = recipe.training
    defaults = {field.name: field.default for field in dataclasses.fields(training)}
    for name, instead in REPLACED_ARGUMENTS.items():
        value = getattr(training, name, defaults.get(name))
        if value != defaults.get(name):
            yield f"training.{name}: {value!r} would have no effect here; {instead}"
    for name, least in _LEAST.items():
        if (value := getattr(training, name)) is not None and value < least:
            yield f"training.{name}: {value} must be at least {least}"
    if training.seed > _LARGEST_SEED:
        yield f"training.seed: {training.seed} must be at most {_LARGEST_SEED}"


def _of_training(recipe: Recipe) -> Iterator[str]:
    training = recipe.training
    if training.max_steps < -1:  # the Trainer would train num_train_epochs, as for -1
        yield (
            f"training.max_steps: {training.max_steps} is no number of updates; give one, or -1 and "
            "training.num_train_epochs"
        )
    if training.max_steps == 0 or (training.max_steps < 0 and training.num_train_epochs <= 0):
        yield "training.max_steps: 0 updates train nothing; give a number, or -1 and training.num_train_epochs"
    if training.eval_on_start and training.eval_strategy == "no":
        yield "training.eval_on_start: nothing is evaluated with training.eval_strategy no; leave it out, or set that"
    if training.dataloader_persistent_workers and not training.dataloader_num_workers:
        yield "training.dataloader_persistent_workers: there are no workers; set training.dataloader_num_workers"
    if any("=" not in part for part in (training.optim_args or "=").split(",")):
        yield f"training.optim_args: {training.optim_args!r} is no list such as 'name=value,other=value'"
    if training.save_only_model:
        yield "training.save_only_model: a run cannot resume at such checkpoints; leave it out"
    if training.fp16 and training.device.type == "cpu":
        yield "training.fp16: true has no effect on a CPU, which is the device; leave it out, or set training.bf16"
    if training.hub_token not in (None, _HIDDEN_TOKEN):
        yield "training.hub_token: would stand in the files of the run; set HF_TOKEN or run `hf auth login` instead"
    batches = training.accelerator_config
    if batches.split_batches or batches.dispatch_batches or not batches.even_batches:
        yield (
            "training.accelerator_config: split_batches, dispatch_batches, even_batches=False need equal batches; "
            "leave out"
        )


def _of_averaging(recipe: Recipe) -> Iterator[str]:
    """Checkpoints to average that will not be there."""
    wanted, training = recipe.averaging.last_checkpoints, recipe.training
    if wanted < 2:
        return
    too_seldom = training.save_strategy == "steps" and 0 < training.max_steps < training.save_steps
    if training.save_strategy == "no" or too_seldom:
        yield (
            f"averaging.last_checkpoints: {wanted}, but the run writes no checkpoint before the last update "
            f"(training.save_steps {training.save_steps}); save more often, or leave it out"
        )
    limit = training.save_total_limit
    if limit is not None and limit < wanted:
        yield f"averaging.last_checkpoints: {wanted}, but training.save_total_limit keeps {limit}; raise it"
    if training.load_best_model_at_end:
        yield "averaging.last_checkpoints and training.load_best_model_at_end exclude each other; set the first to 0"
