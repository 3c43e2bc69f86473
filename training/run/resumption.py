"""What may differ between a run and its continuation. All else is refused, so that its record is true of all its updates."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedTokenizerBase

from reluformer.configuration.errors import UserError
from reluformer.configuration.image_recipe import ImageDataConfig
from reluformer.configuration.language_recipe import LanguageRecipe, TextDataConfig
from reluformer.configuration.recipe import DataConfig
from reluformer.configuration.recipe_parser import AnyRecipe, library_defaults, recipe_to_dict
from reluformer.training.data.arrow_cache import content_hash
from reluformer.training.data.text_sources import corpus_files
from reluformer.training.run.records import write_json

logger = logging.getLogger(__name__)

AnyData = DataConfig | ImageDataConfig | TextDataConfig

TRAINING_FILES = "training_files.json"
_SECTIONS = ("description", "evaluation", "averaging", "on_divergence", "expected_world_size")
# As long as the schedule of the learning rate is the same for a training of any length.
_LENGTH = ("max_steps", "num_train_epochs")
_SCHEDULES_OF_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")
# As long as the learning rate does not follow from the evaluations.
_EVALUATION = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "do_eval")
_TRAINING = (
    # logs and checkpoints
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "logging_dir"),
    *("log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"),
    *(
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "output_dir",
        "overwrite_output_dir",
        "resume_from_checkpoint",
    ),
    # reporting and the Hub
    *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *(
        "push_to_hub",
        "hub_token",
        "hub_private_repo",
        "hub_model_id",
        "hub_strategy",
        "hub_always_push",
        "hub_revision",
    ),
    # devices and processes; the batches of an update are compared with those of the checkpoint
    *("use_cpu", "no_cuda", "local_rank", "gradient_accumulation_steps", "torch_empty_cache_steps"),
    *("per_device_eval_batch_size", "eval_accumulation_steps"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
    *("dataloader_multiprocessing_context", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb", "ddp_static_graph"),
    "ddp_find_unused_parameters",
    # what the library derives, or what has no effect here
    *("do_train", "do_predict"),
)


def require_same_recipe(recipe: AnyRecipe, recipe_file: Path, *, remedy: str, other_name: bool = False) -> None:
    """A run goes on with the recipe it began with, except for what is listed above.

    Args:
        recipe: of the run that is about to go on.
        recipe_file: of the run that the checkpoint is from.
        remedy: what to do instead, for the message.
        other_name: it may have another name.

    Raises:
        UserError: it says something else; names the first such key, and both values.
    """
    before = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    now = yaml.safe_load(yaml.safe_dump(recipe_to_dict(recipe)))
    for plain in (before, now):
        for key in ("workers", "homepage"):  # change no result
            plain["data"].pop(key, None)
    sections = [name for name in now if name not in (*_SECTIONS, "training", *(["name"] if other_name else []))]
    differences = [found for name in sections for found in _differences(name, before.get(name), now[name])]
    defaults = library_defaults(recipe.training.output_dir)
    before_training, now_training = ({**defaults, **plain["training"]} for plain in (before, now))
    for name in {**before_training, **now_training}:
        if name not in _may_change(before_training):
            found = _differences(f"training.{name}", before_training.get(name), now_training.get(name))
            differences += found
    if differences:
        key, old, new = differences[0]
        why = ""
        if key.removeprefix("training.") in _LENGTH:
            why = f" (the schedule {before_training['lr_scheduler_type']} depends on it)"
        raise UserError(
            f"{recipe_file.parent}: holds checkpoints trained with {key} {old!r}, the recipe says {new!r}{why}; {remedy}"
        )


def require_unfinished_length(recipe: AnyRecipe, checkpoint: Path, *, remedy: str) -> None:
    """Refuses a training that would have ended before the checkpoint at which it is to go on.

    Raises:
        UserError: `max_steps` or, where that is not given, `num_train_epochs` ends it before.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    updates, epochs = state.get("global_step") or 0, state.get("epoch") or 0.0
    key, done, end = "max_steps", updates, recipe.training.max_steps
    too_far = updates > end
    if end <= 0:
        # A part of an epoch is rounded up to a whole update: too far is what does not begin before the end.
        key, done, end = "num_train_epochs", epochs, recipe.training.num_train_epochs
        too_far = updates > 0 and (updates - 1) / updates * epochs > end - 1e-9
    if too_far:
        raise UserError(
            f"{checkpoint}: was written after {done:g} {'updates' if key == 'max_steps' else 'epochs'}, the recipe ends at "
            f"training.{key} {end:g}; raise it, or {remedy}"
        )


def _may_change(training: dict[str, Any]) -> tuple[str, ...]:
    schedule, warmup = training["lr_scheduler_type"], training.get("warmup_steps") or 0
    part_of_it = 0 < warmup < 1 or (training.get("warmup_ratio") or 0) > 0  # a share of all updates
    of_any_length = schedule in _SCHEDULES_OF_ANY_LENGTH and not part_of_it
    follows_evaluations = schedule == "reduce_lr_on_plateau"
    return (*_TRAINING, *(_LENGTH if of_any_length else ()), *(() if follows_evaluations else _EVALUATION))


def _differences(name: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """(key, value before, value now); a key that one of them lacks, written by another version, is null in the other."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = {**before, **now}
        return [found for key in keys for found in _differences(f"{name}.{key}", before.get(key), now.get(key))]
    return [(name, before, now)]


def write_training_files(data: AnyData, run_folder: Path, *, anew: bool) -> None:
    """Keeps the hashes of the training files, where there are any, for [`require_same_training_files`].

    Args:
        data: of the recipe.
        run_folder: of the run.
        anew: the training begins; when it goes on, they were compared with what is there already.
    """
    if _training_files(data) and (anew or not (run_folder / TRAINING_FILES).is_file()):
        write_json(run_folder / TRAINING_FILES, _hashes(data))


def require_same_training_files(recipe: AnyRecipe, run_folder: Path, *, remedy: str) -> None:
    """Compares the content of the training files with that of the run that goes on.

    Raises:
        UserError: a file has become another one.
    """
    files = _training_files(recipe.data)
    if not files:
        return
    if not (run_folder / TRAINING_FILES).is_file():
        if recipe.training.should_save:
            logger.warning(
                "%s: has no %s; whether the training files are the same is not known", run_folder, TRAINING_FILES
            )
        return
    before = json.loads((run_folder / TRAINING_FILES).read_text(encoding="utf-8"))
    if lost := sorted(before.keys() - files.keys()):
        raise UserError(
            f"{run_folder}: holds checkpoints trained with {lost[0]}, which is gone; restore it, or {remedy}"
        )
    for side, now in _hashes(recipe.data).items():
        if before.get(side) != now:
            raise UserError(
                f"{run_folder}: holds checkpoints trained with another content of {files[side]} ({_key_of(recipe, side)}); "
                f"restore the file, or {remedy}"
            )


def _key_of(recipe: AnyRecipe, side: str) -> str:
    """Where the recipe names a training file."""
    if isinstance(recipe, LanguageRecipe):
        return "data.corpus" if recipe.data.train is None else "data.train"
    return "data.tables.train" if recipe.data.train is None else f"data.train.{side}"


def require_same_tokenizer(tokenizer: PreTrainedTokenizerBase, checkpoint: Path) -> None:
    """Compares a tokenizer with the one that was saved with a checkpoint.

    Raises:
        UserError: it has become another one.
    """
    from transformers import AutoTokenizer

    if not (checkpoint / "tokenizer_config.json").is_file():
        logger.warning(
            "%s: holds no tokenizer; whether %s is the same is not known", checkpoint, tokenizer.name_or_path
        )
    elif _content(tokenizer) != _content(AutoTokenizer.from_pretrained(checkpoint)):
        raise UserError(
            f"{checkpoint}: was trained with another tokenizer than the one in {tokenizer.name_or_path} is now; restore that "
            "one (the checkpoint holds a copy), or give another name, or --overwrite to train anew"
        )


def _content(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """What decides on the ids of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = {} if backend is None else json.loads(backend.to_str())
    for of_the_last_call in ("truncation", "padding"):
        rules.pop(of_the_last_call, None)
    # Marian's has two SentencePiece models, and may have a vocabulary of its own for the target side.
    models = [getattr(tokenizer, name, None) for name in ("spm_source", "spm_target")]
    return [
        *(rules, tokenizer.get_vocab(), getattr(tokenizer, "target_encoder", None)),
        *(None if model is None else model.serialized_model_proto() for model in models),
        *(tokenizer.special_tokens_map, tokenizer.init_kwargs.get("moses")),
    ]


def _hashes(data: AnyData) -> dict[str, str]:
    """Side, table or text → hash of the file's content; a file that does not exist is left to the reading of the corpus."""
    return {side: content_hash(Path(path)) for side, path in _training_files(data).items() if Path(path).is_file()}


def _training_files(data: AnyData) -> dict[str, str]:
    """Side, table or text → path."""
    if isinstance(data, TextDataConfig):
        source = data.source("train")
        files = {name: str(path) for name, path in corpus_files(source).items()}
        return files if source.documents is None else {**files, "documents": source.documents}
    if getattr(data, "tables", None) is not None:
        return {f"table {number}": path for number, path in enumerate(data.tables.paths("train"))}
    sides = ("source", "target", "documents", "images", "labels")
    return {side: path for side in sides if (path := getattr(data.train, side, None)) is not None}
