"""A page that translates in the reader's browser and shows the attention of every head: static files, and no server of ours.

ONNX Runtime and the tokenizer are JavaScript libraries from the npm registry, of one version each whose hash is checked. They are
fetched once and kept in the cache; the page that is written asks nobody for anything.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load
from torch.hub import download_url_to_file
from transformers import PreTrainedConfig

from reluformer.analysis.drawing import color_of_model
from reluformer.configuration.errors import UserError
from reluformer.export.exporting import export
from reluformer.export.running import DECODER_FILE, ENCODER_FILE, load_translator
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.training.run.records import new_folder
from reluformer.training.run.run_folder import CARD_FILE
from reluformer.training.scoring.evaluation import read_translations
from reluformer.training.shipped import located
from reluformer.training.translation import LIMIT_OFFSET, LIMIT_STEP

STATIC = Path(__file__).parent / "static"
EXAMPLES = 5
# A map of a longer sentence would be too wide to begin with.
_LONGEST_EXAMPLE = 80
_README = """---
title: {title}
emoji: 🔎
sdk: static
license: {license}
short_description: Translates in your browser, and shows what each head reads
---

A page of [ReLUFormer](https://arxiv.org/abs/2302.06461): `{names}` in ONNX, run by ONNX Runtime in the reader's browser.
Written by `reluformer space`, under the Apache License 2.0; what holds for a model says its card, in `models/NAME`.
"""


# Archive in the npm registry → its SHA-256, and the files that the page needs of it.
LIBRARIES = {
    "onnxruntime-web/-/onnxruntime-web-1.30.0.tgz": (
        "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
        ("dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs", "dist/ort-wasm-simd-threaded.wasm"),
    ),
    "@huggingface/tokenizers/-/tokenizers-0.2.0.tgz": (
        "2800014c83b8186b2e4210c20672f1fb65a12cef85d7e95e0f2003e022611b4a",
        ("dist/tokenizers.min.mjs",),
    ),
}


def write_page(models: Sequence[str | Path], folder: str | Path, examples: Sequence[str] = ()) -> Path:
    """Writes the page for one translation model, or for two side by side.

    Args:
        models: folders or Hub ids of ReLUFormers.
        folder: new; it appears whole or not at all. Any web server serves it, a static Space of the Hub, too.
        examples: texts to begin with; the page opens on the first. None given: sources that the first model's run has translated.

    Raises:
        UserError: a folder in use; a model that does not export, or whose text goes through Moses; no libraries.
    """
    examples = list(examples) or examples_of(models[0])
    libraries = cached_libraries()
    with new_folder(folder) as page:
        shutil.copytree(STATIC, page, dirs_exist_ok=True)
        shutil.copytree(libraries, page / "libraries")
        names = _names(models)
        described = [_write_model(model, name, page, examples) for model, name in zip(models, names, strict=True)]
        settings = {"examples": examples, "models": described}
        (page / "page.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
        license = _card(models[0]).get("license", "apache-2.0")
        readme = _README.format(title=" and ".join(names), names="`, `".join(names), license=license)
        (page / "README.md").write_text(readme, encoding="utf-8")
    return Path(folder)


def examples_of(model: str | Path) -> list[str]:
    """A few short sources that a run has translated for its evaluation, else the `widget` of the card; none without either."""
    folder = Path(located(model))
    for path in sorted(folder.glob("translations.*.tsv")):
        sources = dict.fromkeys(source for source, _, _ in read_translations(path))
        return [source for source in sources if len(source) <= _LONGEST_EXAMPLE][:EXAMPLES]
    return [each["text"] for each in _card(model).get("widget", [])]


def _card(model: str | Path) -> dict[str, Any]:
    """What the head of the model's card says, if it has one."""
    card = Path(located(model)) / CARD_FILE
    return (metadata_load(card) if card.is_file() else None) or {}


def _names(models: Sequence[str | Path]) -> list[str]:
    """The last part of each path or id, which is its folder on the page, too; a number is added to one that occurs twice."""
    names = [Path(model).resolve().name if Path(model).is_dir() else str(model).rpartition("/")[2] for model in models]
    return [name if names.index(name) == place else f"{name}-{place + 1}" for place, name in enumerate(names)]


def _write_model(model: str | Path, name: str, page: Path, examples: Sequence[str]) -> dict[str, Any]:
    """Exports a model into the page's folder `models/NAME`, and returns what the page says of it."""
    target = page / "models" / name
    export(model, target, int8=True, attentions=True)
    if (card := Path(located(model)) / CARD_FILE).is_file():
        shutil.copy(card, target)  # who made the model, and its licence
    translator = load_translator(target, num_beams=1)
    if translator.moses is not None:
        raise UserError(f"{model}: was trained on text that Moses has tokenised, which the page cannot do")
    config = translator.model.config
    settings = {
        "encoder": ENCODER_FILE,
        "decoder": DECODER_FILE,
        "start": config.decoder_start_token_id,
        "end": config.eos_token_id,
        "heads": config.decoder_attention_heads,
        "headSize": config.d_model // config.decoder_attention_heads,
        "positions": config.max_position_embeddings,
        "limit": {"step": LIMIT_STEP, "offset": LIMIT_OFFSET},
    }
    (target / "page.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    size = sum(path.stat().st_size for path in target.glob("*.onnx"))
    return {
        "folder": name,
        "name": name,
        "about": f"{_about(config)} · {size / 1e6:.1f} MB",
        "color": color_of_model(config),
        "first": translator(examples[:1])[0] if examples else "",
    }


def _about(config: PreTrainedConfig) -> str:
    """Attention and depth on one line."""
    scaling = f", γ = {config.attention_gamma:g}" if config.attention_scaling == "variance" else ""
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers of {config.encoder_attention_heads} heads"
    return f"{ACTIVATIONS[config.attention_activation].title} attention{scaling} · {layers}"


def cached_libraries() -> Path:
    """The folder with the JavaScript libraries, which are fetched the first time.

    Raises:
        UserError: the registry cannot be reached. RuntimeError: it gives another archive than the one whose hash is known.
    """
    folder = library_folder()
    if folder.is_dir():
        return folder
    with new_folder(folder) as partial:
        for name, (sha256, files) in LIBRARIES.items():
            address, archive = f"https://registry.npmjs.org/{name}", partial / "archive.tgz"
            print(f"fetching {address}", flush=True)
            try:
                download_url_to_file(address, str(archive), hash_prefix=sha256)
            except OSError as error:
                raise UserError(
                    f"{address}: cannot be fetched ({error}); the page needs it once, then it is in the cache"
                ) from error
            with tarfile.open(archive) as held:
                for file in files:
                    (partial / Path(file).name).write_bytes(held.extractfile(f"package/{file}").read())
            archive.unlink()
    return folder


def library_folder() -> Path:
    """Where the cache has, or will have, the libraries in these versions."""
    versions = "-".join(Path(name).stem for name in LIBRARIES)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "reluformer" / versions
