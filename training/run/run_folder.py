"""The folder of a run: whether training starts in it, resumes in it, or must not touch it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import flatten_dict

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_parser import recipe_text, recipe_to_dict, yaml_text
from reluformer.records.records import read_json, write_whole
from reluformer.training.run.checkpoints import read_run_state, require_whole, set_aside, update_of

RECIPE_FILE = "recipe.yaml"
RECORD_FILE = "training_record.json"
CARD_FILE = "README.md"  # the last file of a run
# How the recipe in a run folder begins. A folder without it was not written by a run, and is left alone.
WRITTEN_BY_A_RUN = "# Written by `reluformer train`: the recipe of this run with all its keys.\n"
_TRAIN_ANEW = "give another name, or --overwrite to train anew"

# Keys of a recipe, and beginnings of keys, that teach the model nothing. All others must stay as they were when the run
# began.
_MAY_CHANGE = (
    "name",
    "description",
    "evaluation.",
    "averaging.",
    "on_divergence",
    "data.workers",
    "data.homepage",
    "data.text",  # for scores alone
    "training.logging_",
    "training.log_",
    "training.disable_tqdm",
    "training.report_to",
    "training.run_name",
    "training.project",
    "training.trackio_",
    "training.push_to_hub",
    "training.hub_",
    "training.save_",
    "training.output_dir",
    "training.overwrite_output_dir",
    "training.resume_from_checkpoint",
    "training.eval_",
    "training.do_",
    "training.per_device_eval_batch_size",
    "training.use_cpu",
    "training.local_rank",
    "training.ddp_",
    "training.dataloader_",
    "training.torch_empty_cache",
    "training.gradient_accumulation_steps",  # `batches_per_update` is compared
)
_LENGTH = ("training.max_steps", "training.num_train_epochs")
# Their learning rates do not depend on the length of the training.
_SCHEDULES_OF_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")


@contextlib.contextmanager
def only_training_in(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder, the file `.<name>.lock` beside it; the system releases it if the process dies."""
    path = folder.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), blocking=False):
            yield
    except Timeout:
        advice = "wait until it ends, or give another name or training.output_dir"
        raise UserError(f"{folder}: another training is writing into it; {advice}") from None


def checkpoint_to_resume(recipe: Recipe, *, overwrite: bool = False) -> Path | None:
    """The checkpoint to resume at: `training.resume_from_checkpoint`, or the last one in the run folder. None starts
    anew.

    With `overwrite`, what an earlier run left in the folder is removed.

    Raises:
        UserError: a finished run, a folder that is not a run's, a checkpoint that does not exist, a recipe that differs
            from the one that the checkpoint was trained with, a checkpoint that lacks a file.
    """
    folder, explicit = recipe.run_folder, recipe.training.resume_from_checkpoint
    marked = folder / RECIPE_FILE
    is_ours = marked.is_file() and marked.read_text(encoding="utf-8", errors="replace").startswith(WRITTEN_BY_A_RUN)
    # what a process that was killed left half written has a name with a dot
    if not is_ours and any(not path.name.startswith(".") for path in folder.glob("*")):
        raise UserError(f"{folder}: holds files that no run wrote; give another training.output_dir")
    if overwrite:
        _remove_run(recipe)
        return None
    read_record(folder)  # a damaged one is found now, not when training is over
    if explicit:
        checkpoint = Path(explicit)
        if not (checkpoint / "trainer_state.json").is_file():
            raise UserError(f"training.resume_from_checkpoint: {explicit!r} is no checkpoint of a training run")
    elif is_finished(folder):
        raise UserError(f"{folder}: holds a finished run; {_TRAIN_ANEW}")
    elif not folder.is_dir() or (last := get_last_checkpoint(str(folder))) is None:
        return None
    else:
        checkpoint = Path(last)
    require_same_settings(recipe, checkpoint)
    require_whole(checkpoint)
    return checkpoint


def is_finished(folder: Path) -> bool:
    """Whether a run has left everything: its record, and its card unless it has diverged and has nothing to show."""
    has_record = (folder / RECORD_FILE).is_file()
    return has_record and ((folder / CARD_FILE).is_file() or bool(read_record(folder).get("diverged")))


def read_record(folder: Path) -> dict[str, Any]:
    """The training record of a run; {} without it. A `UserError` where it is damaged."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return {}
    return read_json(path, instead="restore it, or remove it: the command of the training writes it anew")


def write_recipe(recipe: Recipe) -> None:
    """Writes the resolved recipe into the run folder, which marks the folder as a run's."""
    write_whole(recipe.run_folder / RECIPE_FILE, WRITTEN_BY_A_RUN + recipe_text(recipe))


def write_kind_of_text(folder: Path, recipe: Recipe) -> None:
    """Changes `data.text`, and the headline that goes with it, in the recipe of a run; all else stays as it was
    written."""
    path = folder / RECIPE_FILE
    says = yaml.safe_load(path.read_text(encoding="utf-8"))
    says["data"]["text"], says["evaluation"]["headline"] = recipe.data.text, recipe.evaluation.headline
    write_whole(path, WRITTEN_BY_A_RUN + yaml_text(says))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The values that a checkpoint keeps, to be compared when it is resumed: key with its sections → value."""
    training = recipe.training
    batches = training.world_size * training.gradient_accumulation_steps
    return {**flatten_dict(recipe_to_dict(recipe)), "batches_per_update": batches}


def require_same_settings(recipe: Recipe, checkpoint: Path) -> None:
    """Raises a `UserError` that names the first value that differs from those a checkpoint was trained with."""
    before, now = read_run_state(checkpoint).get("settings"), settings_of(recipe)
    if before is None:
        raise UserError(
            f"{checkpoint}: was not written by `reluformer train`; give it as initialize_from, for new updates"
        )
    warms_up_by_share = 0 < recipe.training.warmup_steps < 1
    of_any_length = recipe.training.lr_scheduler_type in _SCHEDULES_OF_ANY_LENGTH and not warms_up_by_share
    may_change = (*_MAY_CHANGE, *(_LENGTH if of_any_length else ()))
    for key in {**before, **now}:
        old = before[key] if key in before else _default_of(recipe, key)
        new = now.get(key, "the default")
        if old != new and not key.startswith(may_change):
            what = f"{key} (processes × gradient_accumulation_steps)" if key == "batches_per_update" else key
            raise UserError(f"{checkpoint}: was trained with {what} {old!r}, the recipe says {new!r}; {_TRAIN_ANEW}")
    if 0 < recipe.training.max_steps < update_of(checkpoint):
        raise UserError(f"{checkpoint}: is beyond training.max_steps {recipe.training.max_steps}; {_TRAIN_ANEW}")


def _default_of(recipe: Recipe, key: str) -> Any:
    """The default of a key that a checkpoint lacks, as it is newer than the checkpoint.

    Of an argument of the Trainer it is not known: checkpoints hold only those that differ from the Trainer's defaults.
    """
    *sections, name = key.split(".")
    owner = recipe
    for section in sections:
        owner = getattr(owner, section, None)
    fields = {field.name: field for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    if name not in fields or sections == ["training"]:
        return "the default"
    field = fields[name]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "the default" if default is dataclasses.MISSING else json.loads(json.dumps(default, default=str))


def _remove_run(recipe: Recipe) -> None:
    """Empties the folder of a run. The recipe, by which it is known as one, goes last."""
    folder = recipe.run_folder
    for path in (recipe.initialize_from, recipe.tokenizer.path, recipe.training.resume_from_checkpoint):
        if path is not None and Path(path).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path!r} lies in {folder}, which --overwrite would empty; give the run another name")
    for path in sorted(folder.glob("*"), key=lambda path: path.name == RECIPE_FILE):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(set_aside(path))
        else:
            path.unlink()
