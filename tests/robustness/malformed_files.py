"""A folder full of files that are wrong, each in one way, beside a small model that is right: what the cases name."""

import gzip
import json
import shutil
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM

from ..conftest import demo_tokenizer, tiny_model

GERMAN, ENGLISH = b"eins\nzwei\ndrei\n", b"one\ntwo\nthree\n"
TEXTS = {
    "good.de": GERMAN,
    "good.en": ENGLISH,
    "empty.txt": b"",
    "empty_too.txt": b"",
    "blank.txt": b"\n \n\t\n",
    "latin1.txt": b"eins\nf\xfcnf\ndrei\n",
    "utf16.txt": "eins\nzwei\ndrei\n".encode("utf-16"),
    "utf16_unmarked.txt": "eins\nzwei\ndrei\n".encode("utf-16-le"),
    "pairs.csv": b"de,en\neins,one\nzwei,two\n",
    "nul.txt": b"eins\nzw\0ei\ndrei\n",
    "windows.txt": b"\xef\xbb\xbf" + GERMAN.replace(b"\n", b"\r\n"),
    "two_lines.txt": b"one\ntwo\n",
    "again.txt": b"one\ntwo\none\n",
    "long_line.txt": b"eins " * 20_000,
    "not_gzip.gz": GERMAN,
    "truncated.gz": gzip.compress(GERMAN)[:-12],
    "corrupt.gz": gzip.compress(GERMAN)[:12] + b"\xff" * 20,
}
TABLES = {
    "columns.csv": b"german,english\neins,one\n",
    "nested.jsonl": b'{"translation": {"de": "eins", "en": "one"}}\n',
    "semicolons.csv": b"de;en\neins;one\n",
    "quotation.csv": b'de,en\n"eins,one\nzwei,two\ndrei,three\n',
    "sheet.csv": b"PK\3\4\x14\0\6\0",
    "utf16.csv": "de,en\neins,one\n".encode("utf-16"),
    "truncated.csv.zst": pa.compress(b"de,en\neins,one\n", "zstd", asbytes=True)[:-4],
    "gzip.csv.zst": gzip.compress(b"de,en\neins,one\n"),
    "text.jsonl": GERMAN,
    "text.parquet": GERMAN,
    "empty_rows.csv": b"de,en\neins,\nzwei,\n",
    "ragged.csv": b"de,en\neins,one\nzwei\nf\xfcnf,five\n",
    "line_breaks.csv": b'de,en\n"eins\nzwei","one\ntwo"\nnull,zero\n',
    "mark.tsv": b'de\ten\n"eins\tone\nzwei"\ttwo\n',
    "cut.jsonl": b'{"de": "eins", "en": "one"}\n{"de": "zwei", "e',
}
RECIPE = """\
name: mine
data:
  source_language: de
  target_language: en
  train: {source: good.de, target: good.en}
model: {d_model: 16, encoder_attention_heads: 2, decoder_attention_heads: 2}
evaluation: {splits: []}
training: {max_steps: 1, use_cpu: true}
"""
TEXT_RECIPE = """\
task: language_modeling
name: mine
data:
  max_length: 16
  corpus: {paths: long_line.txt}
  split: {validation: 0, test: 0}
tokenizer: {vocab_size: 259}
model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 32}
evaluation: {splits: []}
training: {max_steps: 1, use_cpu: true}
"""
RECIPES = {
    "good.yaml": RECIPE,
    "text.yaml": TEXT_RECIPE,
    "empty.yaml": "",
    "list.yaml": "- name: mine\n",
    "syntax.yaml": "name: mine\nmodel: {d_model: 16\ndata: {}\n",
    "unknown_key.yaml": RECIPE + "modle: 8\n",
    "wrong_type.yaml": RECIPE.replace("max_steps: 1", "max_steps: many"),
    "twice.yaml": RECIPE + "name: yours\n",
    "python_object.yaml": RECIPE.replace("name: mine", "name: !!python/object/apply:os.system ['touch executed']"),
    "python_name.yaml": "base: !!python/name:os.system\n",
    "class_path.yaml": RECIPE + "initialize_from: {class_path: hostile_module.Hostile}\n",
    "dotted_name.yaml": RECIPE + "tokenizer: hostile_module.Hostile\n",
    "class_of_the_library.yaml": RECIPE.replace("use_cpu: true", "parallelism_config: hostile_module.Hostile"),
    "dotted_key.yaml": RECIPE + "tokenizer.vocab_size: 300\n",
    "cycle_a.yaml": "base: cycle_b.yaml\nname: a\n",
    "cycle_b.yaml": "base: cycle_a.yaml\nname: b\n",
    "itself.yaml": "description: &a [*a]\n",
    "deep.yaml": "description: " + "[" * 3_000 + "]" * 3_000 + "\n",
    "billion.yaml": "a: &a [x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
}  # fmt: skip
BINARY_RECIPES = {"nul.yaml": b"name: mi\0ne\n", "latin1.yaml": b"name: f\xfcnf\n"}


def write_files(folder: Path) -> None:
    """Texts, recipes, models and tokenizers into `folder`; `model` alone is without fault."""
    for name, content in {**TEXTS, **TABLES, **BINARY_RECIPES}.items():
        (folder / name).write_bytes(content)
    for name, text in RECIPES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "hostile_module.py").write_text(
        "import pathlib\nimport dataclasses\n\npathlib.Path('executed').touch()\n\n\n"
        "@dataclasses.dataclass\nclass Hostile:\n    vocab_size: int = 1\n",
        encoding="utf-8",
    )
    (folder / "a_folder").mkdir()
    (folder / "text_set").mkdir()
    (folder / "text_set" / "train.jsonl").write_text('{"content": "eins"}\n', encoding="utf-8")
    (folder / "a_file").write_text("no folder\n", encoding="utf-8")
    _write_models(folder)


def _write_models(folder: Path) -> None:
    good = folder / "model"
    tokenizer = demo_tokenizer(200)
    tokenizer.save_pretrained(good)
    model = tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    model.save_pretrained(good)
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    config.pop("auto_map", None)  # a model of the library's names no code of its own
    weights = load_file(good / "model.safetensors")
    name = "model.encoder.layers.0.fc1.weight"

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(good, folder / kind))

    def reconfigured(kind: str, **fields) -> None:
        (copy(kind) / "config.json").write_text(json.dumps({**config, **fields}), encoding="utf-8")

    def reweighted(kind: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, copy(kind) / "model.safetensors", metadata={"format": "pt"})

    language_model = ReLUFormerForCausalLM(
        ReLUFormerDecoderConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )
    language_model.save_pretrained(folder / "language_model")
    tokenizer.save_pretrained(folder / "language_model")
    (copy("no_config") / "config.json").unlink()
    (copy("broken_config") / "config.json").write_text('{"model_type": "relu', encoding="utf-8")
    (copy("list_config") / "config.json").write_text("[]", encoding="utf-8")
    reconfigured("unknown_type", model_type="no-such-model")
    reconfigured("decoder_only", model_type="gpt2", is_encoder_decoder=False)
    reconfigured("wrong_field", d_model="wide")
    reconfigured("own_code", model_type="theirs", auto_map={"AutoConfig": "hostile_module.Hostile"})
    shutil.copy(folder / "hostile_module.py", folder / "own_code")
    (copy("no_weights") / "model.safetensors").unlink()
    whole = (good / "model.safetensors").read_bytes()
    (copy("truncated_weights") / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    (copy("no_safetensors") / "model.safetensors").write_bytes(b"no tensors in here")
    reweighted("foreign_weights", {"bert.embeddings.weight": torch.zeros(3, 4)})
    reweighted("lacking_weights", {key: tensor for key, tensor in weights.items() if key != name})
    reweighted("misshapen_weights", {**weights, name: torch.zeros(3, 16)})
    reweighted("nan_weights", {**weights, name: torch.full_like(weights[name], torch.nan)})
    torch.save(weights, copy("pickled_weights") / "pytorch_model.bin")
    (folder / "pickled_weights" / "model.safetensors").unlink()

    (copy("broken_tokenizer") / "tokenizer.json").write_text("{", encoding="utf-8")
    for path in copy("no_tokenizer").glob("tokenizer*"):
        path.unlink()
    copy("large_tokenizer")
    tokenizer.add_tokens(["zwölfundzwanzig", "dreizehnhundert"])
    tokenizer.save_pretrained(folder / "large_tokenizer")
