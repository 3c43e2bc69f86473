"""A page that translates in the reader's browser and shows the attention of every head: static files, and no server of
ours.

ONNX Runtime and the tokenizer are JavaScript libraries from the npm registry, of one version each whose hash is
checked. They are fetched once and kept in the cache; the page that is written asks nobody for anything.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import SpaceCardData, metadata_load
from huggingface_hub.repocard_data import EvalResult, model_index_to_eval_results
from torch.hub import download_url_to_file
from transformers import PreTrainedConfig

from reluformer.analysis.drawing import color_of_model
from reluformer.configuration.errors import UserError
from reluformer.export.exporting import export
from reluformer.export.running import DECODER_FILE, ENCODER_FILE, load_translator
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.records.records import new_folder, read_json
from reluformer.training.run.run_folder import CARD_FILE
from reluformer.training.scoring.evaluation import read_translations
from reluformer.translating.options import LIMIT_OFFSET, LIMIT_STEP
from reluformer.translating.sentences import SENTENCE, source_language
from reluformer.translating.shipped import FIGURES_FILE, located

STATIC = Path(__file__).parent / "static"
EXAMPLES = 5
# A map of a longer sentence would be too wide to begin with.
_LONGEST_EXAMPLE = 80
# In the figures of a model that comes with the package: the system that a page is.
SYSTEM_OF_GRAPHS = "this model, 8-bit ONNX, greedy"
# Its tests, as a reader knows such texts.
_TEXTS = {"Tatoeba": "everyday sentences", "Multi30k": "captions"}
# Below this BLEU a reader meets wrong sentences all the time. It is a judgement, and no measurement.
_OFTEN_WRONG = 60
_README = """---
{metadata}
---

A page of [ReLUFormer](https://arxiv.org/abs/2302.06461): {names} in ONNX, run by ONNX Runtime in the reader's browser.
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
        examples: texts to begin with; the page opens on the first. None given: sources that the first model's run has
            translated.

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
        (page / "README.md").write_text(_readme(names, [_card(model) for model in models]), encoding="utf-8")
    return Path(folder)


def _readme(names: Sequence[str], cards: Sequence[dict[str, Any]]) -> str:
    """The Space's README, with the licences of its models. Names of folders may hold what YAML and Markdown read as
    their own."""
    licences = list(dict.fromkeys(card.get("license", "apache-2.0") for card in cards))
    metadata = SpaceCardData(
        title=" and ".join(names),
        emoji="🔎",
        sdk="static",
        license=licences[0] if len(licences) == 1 else licences,
        short_description="Translates in your browser, and shows what each head reads",
    )
    named = " and ".join(f"`` {name} ``" if "`" in name else f"`{name}`" for name in names)
    return _README.format(metadata=metadata.to_yaml(), names=named)


def examples_of(model: str | Path) -> list[str]:
    """A few short sources that a run has translated for its evaluation, else the `widget` of the card; none without
    either."""
    folder = Path(located(model))
    for path in sorted(folder.glob("translations.*.tsv")):
        sources = dict.fromkeys(source for source, _, _ in read_translations(path))
        return [source for source in sources if len(source) <= _LONGEST_EXAMPLE][:EXAMPLES]
    return [each["text"] for each in _card(model).get("widget", []) if "text" in each]


def _card(model: str | Path) -> dict[str, Any]:
    """What the head of the model's card says, if it has one."""
    card = Path(located(model)) / CARD_FILE
    return (metadata_load(card) if card.is_file() else None) or {}


def _names(models: Sequence[str | Path]) -> list[str]:
    """The last part of each path or id, which is its folder on the page, too; a number is added to one that occurs
    twice."""
    names = [Path(model).resolve().name if Path(model).is_dir() else str(model).rpartition("/")[2] for model in models]
    return [name if names.index(name) == index else f"{name}-{index + 1}" for index, name in enumerate(names)]


def _write_model(model: str | Path, name: str, page: Path, examples: Sequence[str]) -> dict[str, Any]:
    """Exports a model into the page's folder `models/NAME`, and returns what the page says of it."""
    target = page / "models" / name
    export(model, target, int8=True, attentions=True)
    if not (target / "tokenizer.json").is_file():
        raise UserError(f"{model}: its tokenizer has no tokenizer.json, which the page's library reads")
    if (card := Path(located(model)) / CARD_FILE).is_file():
        shutil.copy(card, target)  # who made the model, and its licence
    translator = load_translator(target, num_beams=1)
    if translator.moses is not None:
        raise UserError(f"{model}: was trained on text that Moses has tokenised, which the page cannot do")
    config, trained = translator.model.config, translator.tokenizer.init_kwargs
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
        "quality": quality_of(model),
        "doubt": doubt_of(model),
        "source": source_language(translator.tokenizer),
        "target": trained.get("target_language") or trained.get("target_lang"),
        "unit": trained.get("text_unit", SENTENCE),
        "color": color_of_model(config),
        "first": translator(examples[:1])[0] if examples else "",
    }


def _about(config: PreTrainedConfig) -> str:
    """Attention and depth on one line."""
    scaling = f", γ = {config.attention_gamma:g}" if config.attention_scaling == "variance" else ""
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers of {config.encoder_attention_heads} heads"
    return f"{ACTIVATIONS[config.attention_activation].title} attention{scaling} · {layers}"


def quality_of(model: str | Path) -> str:
    """How good the translations are, as far as the model's folder says: its `figures.json`, else the scores of its
    card.

    Example: "everyday sentences, often wrong: BLEU 51 on sentences like those it was trained on, 19 on captions".
    """
    if (figures := _figures(model)) is not None:
        return _quality_by_figures(figures)
    index = _card(model).get("model-index")
    results = model_index_to_eval_results(index)[1] if index else []
    # the card begins with its headline; what was tested on tells more than what the training was steered by
    best = min(results, key=lambda result: result.dataset_split != "test", default=None)
    return "no score of it is known here" if best is None else _quality_by_result(best)


def doubt_of(model: str | Path) -> dict[str, float] | None:
    """Below which mean log-probability of a token a translation is doubtful, `threshold`, and the share of bad ones
    among such validation translations, `share`: what `python -m benchmarks.doubt` has measured of a model of the
    package; None of others."""
    measured = (_figures(model) or {}).get("doubt")
    if measured is None or measured["threshold"] is None:
        return None
    counts = measured["Tatoeba"]
    return {"threshold": measured["threshold"], "share": counts["doubtful_and_bad"] / counts["doubtful"]}


def _figures(model: str | Path) -> dict[str, Any] | None:
    """What `benchmarks` has measured of a model that comes with the package; None of others."""
    path = Path(located(model)) / FIGURES_FILE
    return read_json(path, instead="restore it, or delete it") if path.is_file() else None


def _quality_by_figures(figures: dict[str, Any]) -> str:
    bleu = {each["test"]: each["bleu"] for each in figures["scores"] if each["system"] == SYSTEM_OF_GRAPHS}
    trained = [test for test in bleu if figures["recipe"].startswith(test.lower())]
    scores = [f"{bleu[test]:.0f} on sentences like those it was trained on" for test in trained]
    scores += [f"{bleu[test]:.0f} on {_TEXTS[test]}" for test in bleu if test not in trained]
    wrong = ["often wrong"] if min(bleu.values()) < _OFTEN_WRONG else []
    return f"{', '.join([*(_TEXTS[test] for test in trained), *wrong])}: BLEU {', '.join(scores)}"


def _quality_by_result(result: EvalResult) -> str:
    wrong = "often wrong: " if result.metric_type == "bleu" and result.metric_value < _OFTEN_WRONG else ""
    split = f" ({result.dataset_split})" if result.dataset_split else ""
    return f"{wrong}{result.metric_name} {result.metric_value:.0f} on {result.dataset_name}{split}"


def cached_libraries() -> Path:
    """The folder with the JavaScript libraries, which are fetched the first time.

    Raises:
        UserError: the registry cannot be reached, or gives another archive than the one whose hash is known.
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
            except (OSError, RuntimeError) as error:  # RuntimeError: another hash, as of an archive that is cut off
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
