"""What of a model is published. Files are chosen by name: whatever else lies in the folder stays there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import CHAT_TEMPLATE_FILE

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.card import render_card_of
from reluformer.hub_cards.card_contents import PICTURES
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.weights import check_weights, weight_files
from reluformer.training.loading import IMAGE_PROCESSOR_FILE, load_tokenizer
from reluformer.training.run.redaction import is_secret, without_secrets
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE, RECORD_FILE, is_finished

_WORD = re.compile(r"[^\s\"'`,;()=]+")  # < and > are no borders: `</think>` of a template is no path
# Beside those that the tokenizer's class names.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_REGULAR_BYTES = 10_000_000  # a larger file must be stored by LFS


@dataclass(frozen=True)
class PublishedFile:
    """name: in the repository. content: the file to upload, or its bytes."""

    name: str
    content: Path | bytes

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def is_large(self) -> bool:
        """Whether the Hub is expected to store it by LFS: weights, pictures and what is large. It decides itself."""
        return self.name.endswith((".safetensors", ".png")) or self.size > _REGULAR_BYTES


def require_run(folder: Path) -> None:
    """Raises a `UserError` for a folder that `reluformer train` has not written."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of a run, for example runs/demo")
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder}: is not a run folder (no {RECIPE_FILE} in it); give one that `reluformer train` has written, or any saved "
            "model with --model"
        )


def check_trained(folder: Path) -> None:
    """Raises a `UserError` for a run that is unfinished or diverged; of another model nothing is known of that."""
    if not (folder / RECIPE_FILE).is_file():
        return
    if not is_finished(folder):
        missing = next(name for name in (RECORD_FILE, CARD_FILE) if not (folder / name).is_file())
        raise UserError(
            f"{folder}: the run is not finished (no {missing}); the command that began it goes on, or `reluformer evaluate "
            f"--run {folder}` if it was trained to the end"
        )
    if ModelFolder(folder).training_record.get("diverged"):
        raise UserError(f"{folder}: the training diverged, there is nothing to publish; see {RECORD_FILE}")


def check_evaluated(model: ModelFolder) -> None:
    """Raises a `UserError` for a model of which no score is known."""
    if model.is_evaluated:
        return
    if model.is_run:
        what = f"the run has no evaluation; `reluformer evaluate --run {model.path}` makes one"
    else:
        what = (
            "no score of the model is known; a score is a metric of `compute_metrics` in the log of its Trainer, which its "
            "checkpoints and ModelCardCallback keep"
        )
    raise UserError(f"{model.path}: {what}; --without-evaluation publishes without")


def collect_files(model: ModelFolder, *, repo_id: str) -> list[PublishedFile]:
    """The files of a model to publish, each checked, the largest first.

    The recipe is not among them, since it may hold paths of this machine: the card holds its values.

    Raises:
        UserError: weights, configuration, tokenizer or the model's code are missing, damaged or do not belong together.
    """
    folder = model.path
    check_weights(folder, model.config, model.kind.auto_class)
    names = ["config.json", *_code_files(model), *_preprocessor_files(model)]
    if (folder / "generation_config.json").is_file():
        _check_generation_config(folder)
        names.append("generation_config.json")
    names += [name for name in PICTURES if (folder / name).is_file()]
    paths = [*weight_files(folder), *(folder / name for name in dict.fromkeys(names))]
    for path in paths:
        if path.name.endswith("_config.json") or path.name == "config.json":
            _check_nothing_private(path)
    card = render_card_of(model, repo_id=repo_id)
    files = [PublishedFile(CARD_FILE, card.encode()), *(PublishedFile(path.name, path) for path in paths)]
    return sorted(files, key=lambda file: (-file.size, file.name))


def _code_files(model: ModelFolder) -> list[str]:
    """The Python files that `trust_remote_code=True` needs, those they import included."""
    folder = model.path
    auto_map = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map") or {}
    again = "save the model again with `import reluformer` and save_pretrained"
    if not {"AutoConfig", model.kind.auto_class} <= auto_map.keys():
        raise UserError(
            f"{folder / 'config.json'}: its auto_map does not name the model's code, without which only the package can load it; "
            f"{again}"
        )
    names: dict[str, None] = {}
    for reference in auto_map.values():
        if "--" in reference:
            raise UserError(f"{folder / 'config.json'}: takes its code from another repository ({reference}); {again}")
        module = folder / f"{reference.partition('.')[0]}.py"
        try:
            modules = [module, *map(Path, get_relative_import_files(module))]
        except OSError as error:
            missing = Path(error.filename or module).name
            raise UserError(f"{folder}: the model's code is incomplete: {missing} is missing; {again}") from error
        names |= dict.fromkeys(path.name for path in modules)
    return sorted(names)


def _preprocessor_files(model: ModelFolder) -> list[str]:
    """Those of the tokenizer or, of a model for pictures, of its image processor."""
    if model.kind.preprocessor == "AutoTokenizer":
        return _tokenizer_files(model.path, model.config.vocab_size)
    if not (model.path / IMAGE_PROCESSOR_FILE).is_file():
        raise UserError(
            f"{model.path}: holds no {IMAGE_PROCESSOR_FILE}, which a user of the model needs; save its image processor there "
            "with save_pretrained"
        )
    return [IMAGE_PROCESSOR_FILE]


def _tokenizer_files(folder: Path, vocab_size: int) -> list[str]:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(
            f"{folder}: holds no tokenizer, which a user of the model needs; save it there with save_pretrained"
        )
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {len(tokenizer):,} pieces, its model embeddings for {vocab_size:,}; they do not "
            "belong together"
        )
    names = dict.fromkeys((*_TOKENIZER_FILES, CHAT_TEMPLATE_FILE, *tokenizer.vocab_files_names.values()))
    return [name for name in names if (folder / name).is_file()]


def _check_generation_config(folder: Path) -> None:
    try:
        GenerationConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder}: its generation_config.json cannot be loaded: {one_line(error)}") from error


def _check_nothing_private(path: Path) -> None:
    for name, value in _texts(json.loads(path.read_text(encoding="utf-8"))):
        if is_secret(name) or without_secrets(value) != value:
            raise UserError(
                f"{path}: its field {name!r} holds what looks like a secret, which would be published; remove it"
            )
        if (found := _local_path(value)) is not None:
            raise UserError(f"{path}: holds a path of this machine ({found}), which would be published; remove it")


def _local_path(text: str) -> str | None:
    """The text or a word of it that is the path of what exists here, or a URL of a file."""
    for word in (text, *_WORD.findall(text)):
        if word.lower().startswith("file:/") or (len(word) > 1 and os.path.isabs(word) and os.path.exists(word)):
            return word
    return None


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with the field that it stands in."""
    if isinstance(value, dict):
        for field, inner in value.items():
            yield from _texts(inner, field)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str):
        yield name, value
