"""A page that translates in the reader's browser and shows the attention of every head: static files, and no server of ours.

ONNX Runtime and the tokenizer are JavaScript libraries from the npm registry, of one version each whose hash is checked. They are
fetched once and kept in the cache; the page that is written asks nobody for anything.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

from reluformer.analysis.drawing import color_of_model
from reluformer.configuration.errors import UserError
from reluformer.export.exporting import export
from reluformer.export.running import DECODER_FILE, ENCODER_FILE, load_translator
from reluformer.modeling_reluformer.fused.activations import ACTIVATIONS
from reluformer.training.scoring.evaluation import read_translations
from reluformer.training.translation import LIMIT_OFFSET, LIMIT_STEP, Translator

STATIC = Path(__file__).parent / "static"
EXAMPLES = 5
# A map of a longer sentence would be too wide to begin with.
_LONGEST_EXAMPLE = 80
_README = """---
title: {title}
emoji: 🔎
sdk: static
license: apache-2.0
short_description: Translates in your browser, and shows what each head reads
---

A page of [ReLUFormer](https://arxiv.org/abs/2302.06461): `{names}` in ONNX, run by ONNX Runtime in the reader's browser.
Written by `reluformer space`.
"""


class Library(NamedTuple):
    """A package of the npm registry: the hash of its archive, and the files that the page needs of it."""

    name: str
    version: str
    sha512: str
    files: tuple[str, ...]

    @property
    def address(self) -> str:
        return f"https://registry.npmjs.org/{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"


LIBRARIES = (
    Library(
        "onnxruntime-web",
        "1.30.0",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        ("dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs", "dist/ort-wasm-simd-threaded.wasm"),
    ),
    Library(
        "@huggingface/tokenizers",
        "0.2.0",
        "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        ("dist/tokenizers.min.mjs",),
    ),
)


def write_page(models: Sequence[str | Path], folder: str | Path, examples: Sequence[str] = ()) -> Path:
    """Writes the page for one translation model, or for two side by side.

    Args:
        models: folders or Hub ids of ReLUFormers.
        folder: it must be new or empty; it appears whole or not at all. Any web server serves it, a static Space of the Hub, too.
        examples: texts to begin with; the page opens on the first. None: sources that the first model's run has translated.

    Raises:
        UserError: a folder in use; a model that does not export, or whose text goes through Moses; libraries that are neither in
            the cache nor can be fetched.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output: {folder} is in use; give a new folder")
    examples = list(examples) or examples_of(models[0])
    libraries = cached_libraries()
    with _whole(folder) as target:
        shutil.copytree(STATIC, target, dirs_exist_ok=True)
        shutil.copytree(libraries, target / "libraries")
        names = _names(models)
        described = [_write_model(model, name, target, examples) for model, name in zip(models, names, strict=True)]
        settings = {"examples": examples, "models": described}
        (target / "page.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
        readme = _README.format(title=" and ".join(names), names="`, `".join(names))
        (target / "README.md").write_text(readme, encoding="utf-8")
    return folder


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end of the block, and is removed if the block raises."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as partial:
        filled = Path(partial) / folder.name
        filled.mkdir()
        yield filled
        os.replace(filled, folder)


def examples_of(model: str | Path) -> list[str]:
    """A few short sources that a run has translated for its evaluation; none where the folder holds no such file."""
    for path in sorted(Path(model).glob("translations.*.tsv")):
        sources = dict.fromkeys(source for source, _, _ in read_translations(path))
        return [source for source in sources if len(source) <= _LONGEST_EXAMPLE][:EXAMPLES]
    return []


def _names(models: Sequence[str | Path]) -> list[str]:
    """The last part of each path or id, which is its folder on the page, too; a number is added to one that occurs twice."""
    names = [Path(model).resolve().name if Path(model).is_dir() else str(model).rpartition("/")[2] for model in models]
    return [name if names.index(name) == place else f"{name}-{place + 1}" for place, name in enumerate(names)]


def _write_model(model: str | Path, name: str, page: Path, examples: Sequence[str]) -> dict[str, Any]:
    """Exports a model into the page's folder `models/NAME`, and returns what the page says of it."""
    target = page / "models" / name
    export(model, target, int8=True, attentions=True)
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
    return {
        "folder": name,
        "name": name,
        "about": _about(translator, sum(path.stat().st_size for path in target.glob("*.onnx"))),
        "color": color_of_model(config),
        "first": translator(examples[:1])[0] if examples else "",
    }


def _about(translator: Translator, size: int) -> str:
    """Attention, depth and size on one line."""
    config = translator.model.config
    scaling = f", γ = {config.attention_gamma:g}" if config.attention_scaling == "variance" else ""
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers of {config.encoder_attention_heads} heads"
    return f"{ACTIVATIONS[config.attention_activation].title} attention{scaling} · {layers} · {size / 1e6:.1f} MB"


def cached_libraries() -> Path:
    """The folder with the JavaScript libraries, which are fetched the first time.

    Raises:
        UserError: the registry cannot be reached, or gives another archive than the one whose hash is known.
    """
    folder = library_folder()
    if not folder.is_dir():
        with _whole(folder) as partial:
            for library in LIBRARIES:
                _unpack(library, _fetch(library), partial)
    return folder


def library_folder() -> Path:
    """Where the cache has, or will have, the libraries in these versions."""
    versions = "-".join(f"{library.name.rpartition('/')[2]}-{library.version}" for library in LIBRARIES)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "reluformer" / versions


def _fetch(library: Library) -> bytes:
    print(f"fetching {library.address}", flush=True)
    try:
        with urllib.request.urlopen(library.address, timeout=60) as answer:
            archive = answer.read()
    except URLError as error:
        raise UserError(
            f"{library.address}: cannot be fetched ({error.reason}); the page needs it once, then it is in the cache"
        ) from error
    if hashlib.sha512(archive).digest() != base64.b64decode(library.sha512):
        raise UserError(
            f"{library.address}: is another archive than the one whose hash this version knows; nothing of it is used"
        )
    return archive


def _unpack(library: Library, archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for name in library.files:
            (folder / Path(name).name).write_bytes(files.extractfile(f"package/{name}").read())
