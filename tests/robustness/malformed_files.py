"""A folder full of files that are wrong, each in one way, beside a small model that is right: what the cases name."""

import contextlib
import gzip
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.run.checkpoints import PARTIAL_FOLDER, RUN_STATE_FILE, publish_checkpoint
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE, settings_of, write_recipe

from ..conftest import demo_tokenizer, tiny_model

GERMAN, ENGLISH = b"eins\nzwei\ndrei\n", b"one\ntwo\nthree\n"
TEXTS = {
    "good.de": GERMAN,
    "good.en": ENGLISH,
    "latin1.txt": b"eins\nf\xfcnf\ndrei\n",
    "utf16.txt": "eins\nzwei\ndrei\n".encode("utf-16"),
    "pairs.csv": b"de,en\neins,one\nzwei,two\n",
    "windows.txt": b"\xef\xbb\xbf" + GERMAN.replace(b"\n", b"\r\n"),
    "two_lines.txt": b"one\ntwo\n",
    "long_line.txt": b"eins " * 20_000,
    "truncated.gz": gzip.compress(GERMAN)[:-12],
    "columns.csv": b"german,english\neins,one\n",
    "semicolons.csv": b"de;en\neins;one\n",
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
RECIPES = {
    "good.yaml": RECIPE,
    "warm_up.yaml": RECIPE.replace("max_steps: 1", "max_steps: 9, warmup_steps: 5, lr_scheduler_type: inverse_sqrt"),
    "unknown_key.yaml": RECIPE + "modle: 8\n",
    "python_object.yaml": RECIPE.replace("name: mine", "name: !!python/object/apply:os.system ['touch executed']"),
    "class_path.yaml": RECIPE + "initialize_from: {class_path: hostile_module.Hostile}\n",
}


def write_files(folder: Path) -> None:
    """Texts, recipes, models, tokenizers and runs into `folder`; `model` alone is without fault."""
    for name, content in TEXTS.items():
        (folder / name).write_bytes(content)
    for name, text in RECIPES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "hostile_module.py").write_text(
        "import pathlib\nimport dataclasses\n\npathlib.Path('executed').touch()\n\n\n"
        "@dataclasses.dataclass\nclass Hostile:\n    vocab_size: int = 1\n",
        encoding="utf-8",
    )
    _write_models(folder)
    _write_runs(folder)


def _write_models(folder: Path) -> None:
    good = folder / "model"
    tokenizer = demo_tokenizer(200)
    tokenizer.save_pretrained(good)
    model = tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    model.save_pretrained(good)
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    config.pop("auto_map", None)  # a model of the library's names no code of its own
    weights = load_file(good / "model.safetensors")

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(good, folder / kind))

    (copy("no_config") / "config.json").unlink()
    own = {**config, "model_type": "theirs", "auto_map": {"AutoConfig": "hostile_module.Hostile"}}
    (copy("own_code") / "config.json").write_text(json.dumps(own), encoding="utf-8")
    shutil.copy(folder / "hostile_module.py", folder / "own_code")
    whole = (good / "model.safetensors").read_bytes()
    (copy("truncated_weights") / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    lacking = {name: tensor for name, tensor in weights.items() if name != "model.encoder.layers.0.fc1.weight"}
    save_file(lacking, copy("lacking_weights") / "model.safetensors", metadata={"format": "pt"})
    torch.save(weights, copy("pickled_weights") / "pytorch_model.bin")
    (folder / "pickled_weights" / "model.safetensors").unlink()
    for path in copy("no_tokenizer").glob("tokenizer*"):
        path.unlink()
    (copy("no_tokenizer_config") / "tokenizer_config.json").unlink()
    rules = (good / "tokenizer.json").read_text(encoding="utf-8")
    (copy("damaged_record") / RECORD_FILE).write_text('{"updates": ', encoding="utf-8")
    (copy("cut_tokenizer") / "tokenizer.json").write_text(rules[: len(rules) // 2], encoding="utf-8")
    for kind, name, changes in (
        ("moses_of_nothing", "tokenizer_config.json", {"moses": {"language": "de"}}),
        ("eos_of_letters", "config.json", {"eos_token_id": "a"}),
        ("generation_eos_of_letters", "generation_config.json", {"eos_token_id": "a"}),
        ("generation_start_beyond", "generation_config.json", {"decoder_start_token_id": 1_000_000}),
        # more than any processor has addresses for: a system that promises memory it does not have refuses it too
        ("positions_beyond_memory", "config.json", {"max_position_embeddings": 10**15}),
    ):
        settings = json.loads((good / name).read_text(encoding="utf-8"))
        (copy(kind) / name).write_text(json.dumps({**settings, **changes}), encoding="utf-8")


def _write_runs(folder: Path) -> None:
    """Run folders of good.yaml with a checkpoint after its only update, each with a file that is missing or cut off."""
    damage = {
        "no_optimizer": "checkpoint-1/optimizer.pt",
        "cut_optimizer": "checkpoint-1/optimizer.pt",
        "cut_run_state": f"checkpoint-1/{RUN_STATE_FILE}",
        "cut_record": RECORD_FILE,
        "cut_recipe": RECIPE_FILE,
    }
    with contextlib.chdir(folder):
        for name, damaged in damage.items():
            recipe = parse_recipe(["--config", "good.yaml", "--name", name])
            write_recipe(recipe)
            (recipe.run_folder / RECORD_FILE).write_text('{"updates": 1}', encoding="utf-8")
            partial = recipe.run_folder / PARTIAL_FOLDER
            partial.mkdir()
            (partial / "trainer_state.json").write_text("{}", encoding="utf-8")
            (partial / "optimizer.pt").write_text("moments", encoding="utf-8")
            publish_checkpoint(partial, recipe.run_folder / "checkpoint-1", {"settings": settings_of(recipe)})
            path = recipe.run_folder / damaged
            content = path.read_bytes()
            path.unlink()
            if name.startswith("cut"):
                whole = content[: len(content) // 2]
                # half a recipe may be one: it ends within a name here, which no YAML does
                path.write_bytes(whole.rpartition(b"\n")[0] + b'\n"cut' if damaged == RECIPE_FILE else whole)
