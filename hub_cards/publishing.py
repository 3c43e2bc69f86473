"""Publishing a model on the Hub: what is needed to use the model, with its card, in one commit."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import transformers
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled  # HTTPError: no connection, too
from huggingface_hub.utils import filter_repo_objects
from transformers.dynamic_module_utils import custom_object_save, get_relative_import_files

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.card import PICTURES, render_card
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.records.records import new_folder, write_whole
from reluformer.records.redaction import public_values, without_secrets
from reluformer.training.run.run_folder import CARD_FILE, RECORD_FILE, is_finished
from reluformer.translating.loading import MODEL_CLASSES, load_model_config, load_tokenizer, load_whole

# By name, beside the card and the model's code: whatever else lies in the folder stays there.
PUBLISHED = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    *PICTURES,
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    "merges.txt",
)


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
    without_evaluation: bool = False,
) -> str | None:
    """Uploads a finished run or another saved model to a repository of the Hub in one commit, and returns the commit's
    URL.

    The card of the folder is written anew for that repository. Nothing is deleted from the repository. The token is
    that of `hf auth login` or `HF_TOKEN`; `HF_ENDPOINT` names another Hub.

    Args:
        folder: of a finished run, the output_dir of a plain `Trainer`, or of `save_pretrained`.
        repo_id: `owner/name`; the repository is made if there is none.
        private: make a new repository private, and refuse an existing one that is public.
        dry_run: check and tell what would be uploaded, without token or network; returns None.
        license, language, dataset: see `reluformer.hub_cards.card.render_card`.
        without_evaluation: publish a model of which no score is known.

    Raises:
        UserError: a model that is not to be published as it is, a wrong repository id, no token, or a refusal of the
            Hub.
    """
    if not re.fullmatch(r"(?!.*(--|\.\.))\w[\w.-]*/\w([\w.-]*\w)?", repo_id):
        raise UserError(f"--repo-id: {repo_id!r} is no repository; give owner/name, for example me/my-model")
    told = {"license": license, "language": language, "dataset": dataset}
    model = ModelFolder(folder, **told)
    _require_finished(model, without_evaluation)
    names = published_names(model)
    card = render_card(folder, repo_id=repo_id, **told)
    for name in names:
        print(f"  {name}  {(model.path / name).stat().st_size / 1e6:,.2f} MB")
    if dry_run:
        print(f"{repo_id}: {len(names)} files and the card; dry run: nothing was uploaded")
        return None
    if not get_token():
        raise UserError("no token for the Hub: make one with write access, then run `hf auth login` or set HF_TOKEN")
    write_whole(model.path / CARD_FILE, card)
    url = _upload(model, repo_id, [*names, CARD_FILE], private)
    print(f"published: {url}")
    return url


def _upload(model: ModelFolder, repo_id: str, names: Sequence[str], private: bool) -> str:
    api = HfApi()
    try:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise UserError(
                f"{repo_id}: exists and is public, but --private was given; make it private in its settings"
            )
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=model.path,
            allow_patterns=list(names),
            commit_message=f"Publish {model.recipe.get('name') or repo_id.split('/')[-1]}",
            commit_description=f"With reluformer {version('reluformer')}.",
        )
    except (HTTPError, HFValidationError, OfflineModeIsEnabled) as error:
        raise UserError(f"{repo_id}: {one_line(error)}; then run the same command again") from error
    return str(commit.commit_url)


def _require_finished(model: ModelFolder, without_evaluation: bool) -> None:
    folder = model.path
    if model.is_run and not is_finished(folder):
        raise UserError(f"{folder}: the run is not finished; the command that began it resumes it")
    if model.record.get("diverged"):
        raise UserError(f"{folder}: the training diverged, there is nothing to publish; see {RECORD_FILE}")
    if not (model.is_evaluated or without_evaluation):
        how = f"`reluformer evaluate --run {folder}` makes one" if model.is_run else "ModelCardCallback records them"
        raise UserError(f"{folder}: no score of it is known, {how}; --without-evaluation publishes without")


def copy_with_code(folder: str | Path, target: str | Path) -> None:
    """Copies the folder of a model, and writes the model's code and where it is beside the weights, as
    `save_pretrained` does.

    The models that come with the package have none: the package serves them by its own.

    Raises:
        UserError: no model in the folder, or a target that holds something.
    """
    kind = MODEL_CLASSES[type(load_model_config(folder))]
    with new_folder(target) as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        custom_object_save(kind, copy)
        settings = json.loads((copy / "config.json").read_text(encoding="utf-8")) | {"auto_map": kind.auto_map}
        (copy / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def published_names(model: ModelFolder) -> list[str]:
    """Names of the files of a model to publish, the card aside, once model and tokenizer are loaded and found whole.

    The recipe is not among them, since it may hold paths of this machine: the card holds its values.

    Raises:
        UserError: weights, tokenizer or the model's code are missing or damaged, or a file holds a secret or a path of
            this machine.
    """
    load_whole(getattr(transformers, model.kind.auto_class), model.path)
    if model.kind.preprocessor == "AutoTokenizer":
        load_tokenizer(model.path)
    elif not model.has("preprocessor_config.json"):
        raise UserError(f"{model.path}: holds no preprocessor_config.json; save its image processor there")
    files = sorted(path.name for path in model.path.iterdir())
    names = [*filter_repo_objects(files, allow_patterns=list(PUBLISHED))]
    for name in names:
        if name.endswith("config.json"):
            _require_nothing_private(model.path / name)
    # of the model's code, what `trust_remote_code=True` needs
    auto_map = getattr(model.config, "auto_map", None) or {}
    modules = {model.path / f"{reference.partition('.')[0]}.py" for reference in auto_map.values()}
    if model.kind.auto_class not in auto_map or not all(module.is_file() for module in modules):
        raise UserError(
            f"{model.path}: lacks the model's code or its auto_map, without which only the package can load it; save "
            "the model again with `import reluformer` and save_pretrained"
        )
    imported = [Path(file) for module in modules for file in get_relative_import_files(module)]
    return names + sorted({path.name for path in (*modules, *imported)})


def _require_nothing_private(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    texts = map(json.loads, re.findall(r'"(?:[^"\\]|\\.)*"', content))
    has_path = any(len(text) > 1 and os.path.isabs(text) and os.path.exists(text) for text in texts)
    if has_path or public_values(held := json.loads(content), without_secrets) != held:
        raise UserError(f"{path}: holds a path of this machine or a secret, which would be published; remove it")
