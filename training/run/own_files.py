"""The files that the program writes into a folder, by name: `--overwrite` removes these and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from transformers.dynamic_module_utils import get_relative_imports
from transformers.utils import CHAT_TEMPLATE_FILE

from reluformer.configuration.analyses import ANALYSES
from reluformer.configuration.errors import UserError
from reluformer.configuration.splits import SPLITS
from reluformer.training.run.checkpoints import (
    MANIFEST_FILE,
    UNSEALED_FILE,
    checkpoint_folders,
    is_leftover,
    read_manifest,
)

RECIPE_FILE = "recipe.yaml"
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    CHAT_TEMPLATE_FILE,
)
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    *TOKENIZER_FILES,
    IMAGE_PROCESSOR_FILE,
)
_STATE_FILES = ("trainer_state.json", "training_args.bin")
# Beside those of the model; the last ones are of models that are spread over processes.
_CHECKPOINT_FILES = (
    MANIFEST_FILE,
    UNSEALED_FILE,
    *_STATE_FILES,
    *("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_*.pth"),
    *("optimizer.bin", "pytorch_model_fsdp.bin", "optimizer_[0-9]*/*", "pytorch_model_fsdp_[0-9]*/*"),
)
_PICTURES = ("training_curve.png", "attention_map.png")
_ANALYSIS_FILES = (
    *(f"analysis/{what}.{ending}" for what in ANALYSES for ending in ("json", "csv", "png")),
    *("analysis/attention-maps/[0-9]*.*.layer[0-9]*.png", "analysis/text-*/source.txt", "analysis/text-*/target.txt"),
)
RUN_FILES = (
    *(RECIPE_FILE, "training_record.json", "README.md"),
    *("corpus_report.json", "packing_report.json", "training_files.json"),
    *(f"{name}.{split}.{ending}" for split in SPLITS
      for name, ending in (("evaluation", "json"), ("translations", "tsv"), ("translations", "tsv.partial"))),
    *(f"{name}.{split}.tsv" for split in SPLITS for name in ("predictions", "documents")),
    *_PICTURES,
    *_STATE_FILES,
    *MODEL_FILES,
    *_ANALYSIS_FILES,
    "runs/*/events.out.tfevents.*",  # of report_to: tensorboard
)  # fmt: skip


def own_files_of_model(folder: Path) -> list[Path]:
    """All files of a model's folder.

    Raises:
        UserError: one of them is not the model's; it is named.
    """
    return _own_files(folder, [*MODEL_FILES, *_code_files(folder)])


def own_files_of_run(folder: Path) -> list[Path]:
    """All files of a run folder.

    Raises:
        UserError: one of them was not written by a run; it is named.
    """
    names = [*RUN_FILES, *_code_files(folder)]
    for checkpoint in checkpoint_folders(folder):
        manifest = read_manifest(checkpoint)
        inside = [*_CHECKPOINT_FILES, *MODEL_FILES, *_code_files(checkpoint)] if manifest is None else manifest["files"]
        names += [f"{checkpoint.name}/{name}" for name in (*inside, MANIFEST_FILE, UNSEALED_FILE, "")]
    return _own_files(folder, names)


def remove_files(folder: Path, files: Sequence[Path]) -> None:
    """Removes files of a folder, and the folders below it that are empty then."""
    for path in files:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    for inner, _, _ in os.walk(folder, topdown=False):
        if Path(inner) != folder and not any(Path(inner).iterdir()):
            Path(inner).rmdir()


def holds_one(folder: Path, what: str, marks: Sequence[str], *, overwrite: bool) -> bool:
    """Whether a folder that is about to be written holds a `what` that is to be replaced; False for one that is empty or missing.

    Args:
        folder: what the user has named.
        what: the program writes there, for the message.
        marks: files or folders that each `what` has.
        overwrite: whether it may be replaced. The caller looks for files of others in it.

    Raises:
        UserError: it is a file, holds something else, or holds a `what` and `overwrite` is not given.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not all((folder / mark).exists() for mark in marks):
        raise UserError(f"{folder}: holds files but no {what}; give another folder")
    if not overwrite:
        raise UserError(f"{folder}: holds a {what} already; give another folder, or --overwrite to replace it")
    return True


def require_own(folder: Path, foreign: Sequence[str]) -> None:
    """Raises a `UserError` that names files which `--overwrite` must not remove, if there are any."""
    if foreign:
        more = f" and {len(foreign) - 5} more" if len(foreign) > 5 else ""
        raise UserError(
            f"{folder}: holds {', '.join(foreign[:5])}{more}, which the program has not written, and --overwrite removes only "
            "what it has; move it out of the folder, or give another folder"
        )


def _own_files(folder: Path, names: Sequence[str]) -> list[Path]:
    files, foreign = [], {}
    for path in _entries(folder):
        name = path.relative_to(folder).as_posix() + "/" * (path.is_dir() and not path.is_symlink())
        if _is_of_leftover(path, folder) or (
            not path.is_symlink() and any(_matches(name, pattern) for pattern in names)
        ):
            files.append(path)
        else:
            top = name.partition("/")[0]
            # the whole of a folder in which nothing is the program's is told by its name
            of_others = "/" in name and not any(pattern.startswith(f"{top}/") for pattern in names)
            foreign[f"{top}/" if of_others else name] = None
    require_own(folder, list(foreign))
    return files


def _entries(folder: Path) -> Iterator[Path]:
    """Files, links and empty folders below a folder, sorted."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and any(path.iterdir()):
            yield from _entries(path)
        else:
            yield path


def _is_of_leftover(path: Path, folder: Path) -> bool:
    return is_leftover(folder / path.relative_to(folder).parts[0]) or is_leftover(path)


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _code_files(folder: Path) -> list[str]:
    """The model's code in its folder, whatever version has written it: the modules that config.json names, and their imports."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (FileNotFoundError, ValueError):
        config = {}  # no configuration of ours names any code
    auto_map = config.get("auto_map") or {} if isinstance(config, dict) else {}
    modules = [str(reference).partition(".")[0] for reference in auto_map.values()]
    found: dict[str, None] = {}
    while modules:
        name = f"{PurePosixPath(modules.pop()).name}.py"
        if name not in found and (folder / name).is_file():
            found[name] = None
            modules += get_relative_imports(folder / name)
    return list(found)
