"""What a recipe may not say although its types are right: found before anything is loaded, with the key that is to be changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainingArguments

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES
from reluformer.configuration.splits import EVALUATED_SPLITS, SPLITS

if TYPE_CHECKING:
    from reluformer.configuration.recipe import DataConfig, Recipe, TablesConfig
    from reluformer.configuration.recipe_base import AveragingConfig


def check_recipe(recipe: Recipe) -> None:
    """Raises `UserError` for values that cannot be trained."""
    _check_data(recipe.data)
    _check_documents(recipe)
    _check_text(recipe)
    check_initialization(recipe)
    _check_counts(recipe)
    recipe.check_settings(_REPLACED_ARGUMENTS)


def check_name(name: str) -> None:
    """Raises `UserError` for what cannot name a folder."""
    if not name or Path(name).name != name or name in (".", ".."):
        raise UserError(f"name: {name!r} cannot name a folder; give a word such as 'multi30k_en_de'")


def only_origin(origins: Mapping[str, bool], section: str = "data") -> str:
    """The one place that a section names; `UserError` where it names none or several. origins: is it given, by name."""
    given = [name for name, is_given in origins.items() if is_given]
    if len(given) != 1:
        raise UserError(
            f"{section}: give exactly one of {', '.join(origins)}; given: {' and '.join(given) if given else 'none of them'}"
        )
    return given[0]


def _check_data(data: DataConfig) -> None:
    origins = {
        "train/validation/test": any((data.train, data.validation, data.test)),
        "tables": data.tables is not None,
        "dataset": data.dataset is not None,
        "demo": data.demo is not None,
    }
    if only_origin(origins) == "train/validation/test" and data.train is None:
        raise UserError("data: the files of `train` are missing; give data.train.source and data.train.target")
    if data.tables is not None:
        _check_tables(data.tables)
    if data.demo is not None:
        for split in SPLITS:
            count, least = getattr(data.demo, split), 1 if split == "train" else 0
            if count < least:
                raise UserError(f"data.demo.{split}: {count} pairs cannot be generated; give at least {least}")
    if data.max_length < 2:
        raise UserError(f"data.max_length: {data.max_length} leaves no room for a token and </s>; give at least 2")
    if data.workers is not None and data.workers < 1:
        raise UserError(f"data.workers: {data.workers} processes cannot tokenise; give at least 1, or null")
    if data.workers is not None and data.packing is not None:
        raise UserError(
            "data.workers: would have no effect on packed documents, which one process tokenises; leave it out"
        )


def _check_tables(tables: TablesConfig) -> None:
    if not tables.paths("train"):
        raise UserError("data.tables.train: names no file; give at least one")
    if tables.delimiter is None:
        return
    if len(tables.delimiter) != 1 or tables.delimiter in '\r\n"':
        raise UserError(f"data.tables.delimiter: {tables.delimiter!r} cannot be one; give one character, such as ';'")
    paths = [path for split in SPLITS for path in tables.paths(split)]
    if not any(kind in path.lower() for path in paths for kind in (".csv", ".tsv")):
        raise UserError("data.tables.delimiter: would have no effect, since no table is CSV or TSV; leave it out")


def check_chosen_documents(key: str, documents: str | None, only: Sequence[str] | None) -> None:
    """Raises a `UserError` where `only`, below `key`, chooses of no file of documents, or chooses none."""
    if only is None:
        return
    if documents is None:
        raise UserError(f"{key}.only: chooses documents, but {key}.documents names no file of them")
    if not only:
        raise UserError(f"{key}.only: chooses no document; name at least one, or leave it out to take all")


def _check_documents(recipe: Recipe) -> None:
    data = recipe.data
    files = {split: given for split in SPLITS if (given := getattr(data, split)) is not None}
    for split, given in files.items():
        check_chosen_documents(f"data.{split}", given.documents, given.only)
    if data.packing is None:
        name = recipe.evaluation.headline
        if SCORES[name].of_documents:
            raise UserError(f"evaluation.headline: {name} is a score of packed documents; set data.packing")
        return
    if data.demo is not None:
        raise UserError("data.packing: the generated corpus has no documents; give files or a data set that has them")
    for section, given in (("tables", data.tables), ("dataset", data.dataset)):
        if given is not None and given.document_column is None:
            raise UserError(
                f"data.packing: needs data.{section}.document_column, the column that names each pair's document"
            )
    for split, given in files.items():
        if given.documents is None:
            raise UserError(f"data.packing: needs data.{split}.documents, the file that names each pair's document")
    if recipe.tokenizer.moses:
        raise UserError(
            "tokenizer.moses: does not go with data.packing, since Moses splits the full stop at the end of a text alone; "
            "tokenise the corpus beforehand and say data.text: moses, or set it to false"
        )


def _check_text(recipe: Recipe) -> None:
    """Refuses scores that the kind of text does not have: 13a or Moses over tokens that Moses has made."""
    text, score = recipe.data.text, SCORES[recipe.evaluation.headline]
    if text == "moses" and recipe.tokenizer.moses:
        raise UserError(
            "tokenizer.moses: would tokenise a second time what data.text says Moses has tokenised already; set it to false"
        )
    if score.text not in (None, text):
        others = [name for name, other in SCORES.items() if other.text == text and other.is_told]
        raise UserError(
            f"evaluation.headline: {score.name} is a score of data.text {score.text}, and data.text is {text}; choose "
            f"{' or '.join([*others, 'bleu'])}, or say data.text: {score.text} if that is what the corpus holds"
        )


def check_initialization(recipe: Recipe) -> None:
    """Raises `UserError` for a tokenizer beside a model that brings its own."""
    if recipe.initialize_from is not None and recipe.tokenizer != type(recipe.tokenizer)():
        raise UserError(
            "tokenizer: comes with the model of initialize_from, whose embeddings were made for it; leave the section out"
        )


def _check_counts(recipe: Recipe) -> None:
    evaluation = recipe.evaluation
    at_least_one = {
        "batching.tokens_per_batch": recipe.batching.tokens_per_batch,
        "evaluation.num_beams": evaluation.num_beams,
        "evaluation.batch_tokens": evaluation.batch_tokens,
        "tokenizer.vocab_size": recipe.tokenizer.vocab_size,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise UserError(f"{name}: {value} must be at least 1")
    at_least_zero = {
        "evaluation.samples": evaluation.samples,
        "evaluation.at_most": evaluation.at_most,
    }
    for name, value in at_least_zero.items():
        if value < 0:
            raise UserError(f"{name}: {value} must be at least 0")
    if recipe.batching.tokens_per_batch < recipe.data.max_length:
        raise UserError(
            f"batching.tokens_per_batch: {recipe.batching.tokens_per_batch} cannot hold one pair of "
            f"data.max_length {recipe.data.max_length}; raise the first or lower the second"
        )
    check_splits(evaluation.splits)


def check_splits(splits: Sequence[str]) -> None:
    """Raises `UserError` for what is no split to evaluate."""
    for split in splits:
        if split not in EVALUATED_SPLITS:
            raise UserError(
                f"evaluation.splits: {split!r} is not a split to evaluate; choose of {', '.join(EVALUATED_SPLITS)}"
            )


# Arguments of metrics of predictions, of which an evaluation of texts has none: refused, never ignored.
OF_PREDICTIONS = dict.fromkeys(
    ("batch_eval_metrics", "eval_accumulation_steps"), "an evaluation of texts sums the loss, and keeps no predictions"
)
# Arguments that the token batches, the model's own loss or our evaluation would make void: refused, never ignored.
_REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "set model.label_smoothing: smoothing in the trainer would drop the model's regulariser",
    "per_device_train_batch_size": "set batching.tokens_per_batch: training batches are filled by tokens",
    "auto_find_batch_size": "set batching.tokens_per_batch: training batches are filled by tokens",
    "train_sampling_strategy": "pairs are bucketed by length and reshuffled every epoch already",
    "sortish_sampler": "pairs are bucketed by length and reshuffled every epoch already",
    "average_tokens_across_devices": "the loss is a mean over the target tokens of all processes, however they are dealt out",
    "dataloader_drop_last": "no batch is incomplete: batches are filled by tokens",
    "predict_with_generate": "set evaluation.at_most to translate validation pairs during training",
    "generation_max_length": "decoding stops by itself at a length that follows the source's",
    "generation_num_beams": "set evaluation.num_beams",
    "generation_config": "set evaluation.num_beams and evaluation.length_penalty",
    "use_liger_kernel": "Liger has no kernels for this model",
    **OF_PREDICTIONS,
}
# What Transformers writes for a token, and so stands in the recipes of earlier runs.
_HIDDEN_TOKEN = "<HUB_TOKEN>"


def check_training(training: TrainingArguments, replaced: Mapping[str, str]) -> None:
    """Raises `UserError` for arguments that are `replaced` (name → what to do instead), or cannot be used."""
    defaults = {name: f.default for name, f in type(training).__dataclass_fields__.items()}
    for name, instead in replaced.items():
        value = getattr(training, name, defaults.get(name))
        if value != defaults.get(name):
            raise UserError(f"training.{name}: {value!r} would have no effect here; {instead}")
    if training.learning_rate < 0:
        raise UserError(f"training.learning_rate: {training.learning_rate} must be at least 0")
    if training.max_steps == 0:
        raise UserError(
            "training.max_steps: 0 updates train nothing; give a number, or -1 and training.num_train_epochs"
        )
    if training.save_only_model:
        raise UserError(
            "training.save_only_model: true leaves checkpoints that a run cannot go on at; leave it out: the folder of the run "
            "holds the model alone beside them"
        )
    if training.fp16 and training.device.type == "cpu":
        raise UserError(
            "training.fp16: true, but the device is a CPU, on which it would have no effect; leave it out, or set training.bf16"
        )
    if training.hub_token not in (None, _HIDDEN_TOKEN):
        raise UserError(
            "training.hub_token: would stand in the files of the run, and is not needed; leave it out, and set HF_TOKEN or run "
            "`hf auth login`"
        )
    accelerator = training.accelerator_config
    if accelerator.split_batches or accelerator.dispatch_batches or not accelerator.even_batches:
        raise UserError(
            "training.accelerator_config: split_batches, dispatch_batches and even_batches=False cannot be used with "
            "batches of unequal numbers of pairs; leave them out"
        )


def checkpoints_of(training: TrainingArguments) -> int | None:
    """Number of checkpoints a run writes, before `save_total_limit`; None where only the data can tell."""
    if training.save_strategy == "no":
        return 0
    if training.save_strategy != "steps" or training.max_steps < 0:
        return None
    every = training.save_steps if training.save_steps >= 1 else math.ceil(training.save_steps * training.max_steps)
    return math.ceil(training.max_steps / every)  # the last update is always saved


def check_averaging(averaging: AveragingConfig, training: TrainingArguments) -> None:
    """Raises `UserError` where the checkpoints to average will not be there."""
    wanted = averaging.last_checkpoints
    if wanted < 0:
        raise UserError(f"averaging.last_checkpoints: {wanted} must be at least 0")
    if wanted < 2:
        return
    written, limit = checkpoints_of(training), training.save_total_limit
    if written is not None and written < wanted:
        raise UserError(
            f"averaging.last_checkpoints: {wanted}, but the run writes {written} (training.max_steps "
            f"{training.max_steps}, training.save_steps {training.save_steps}); save more often or average fewer"
        )
    if limit is not None and limit < wanted:
        raise UserError(f"averaging.last_checkpoints: {wanted}, but training.save_total_limit keeps {limit}; raise it")
    if training.load_best_model_at_end:
        raise UserError(
            "averaging.last_checkpoints and training.load_best_model_at_end exclude each other; "
            "set averaging.last_checkpoints to 0 to keep the best checkpoint"
        )
