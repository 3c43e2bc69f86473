"""Folders of models: of a run that is documented or finished, and as a plain `Trainer` leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import yaml

from reluformer import ReLUFormerConfig
from reluformer.records.records import run_record, write_json
from reluformer.training.scoring.metrics import score_translations

from ..conftest import demo_tokenizer, tiny_model

# What `reluformer train` writes beside the model.
OF_A_RUN = ("recipe.yaml", "training_record.json", "evaluation.test.json", "README.md", "attention_map.png")
TINY = {"vocab_size": 1234, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 77}


def write_documented_run(folder):
    """A run folder as training and analysis leave it, without weights: all that a card is rendered from."""
    ReLUFormerConfig(attention_gamma=5.5, regularization_weight=0.03, **TINY).save_pretrained(folder)
    recipe = {
        "name": "little",
        "description": "A small one: for a test.",
        "data": {
            "source_language": "de",
            "target_language": "no",
            "max_length": 99,
            "train": {"source": "/home/somebody/corpus/train.de.gz", "target": "/home/somebody/corpus/train.no.gz"},
            "dataset": None,
            "demo": None,
        },
        "training": {"learning_rate": 0.005, "lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2000},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    record = run_record("reluformer train --config little.yaml", "little", 17)
    record |= {"updates": 2400, "seconds": 90, "target_tokens_per_update": 4096.4, "target_tokens_per_second": 9876.5}
    record |= {"parameters": 54321, "averaged_checkpoints": ["checkpoint-2300", "checkpoint-2400"]}
    write_json(folder / "training_record.json", record)
    reports = [{"name": "train files", "read": 1010, "kept": 1000, "skipped": {"empty line": 10}, "first": {}}]
    write_json(folder / "corpus_report.json", reports)
    scores = score_translations(["the cat sat on a mat"], ["The cat sat on a mat"])
    evaluation = {"split": "test", "dataset": "little test", **scores, "decoding": {"num_beams": 5}}
    evaluation |= {"sentences_per_second": 12.34, "machine": {"cpu": "slow processor", "torch_threads": 2}}
    write_json(folder / "evaluation.test.json", evaluation)
    history = [
        {"step": 100, "attention_entropy": 9.9, "dead_row_fraction": 0.9},
        {"step": 2400, "attention_entropy": 1.234, "dead_row_fraction": 0.05},
        {"step": 2400, "eval_dead_row_fraction": 0.0123},
    ]
    write_json(folder / "trainer_state.json", {"log_history": history})
    write_json(folder / "analysis" / "entropy.json", entropy_analysis())
    return folder


def entropy_analysis():
    """As `reluformer analyze --what entropy` writes it."""
    row = {"layer": "all", "head": "all", "entropy": 1.111, "uniform_entropy": 2.222, "dead_row_fraction": 0.0333}
    row |= {"row_sum": 0.444, "zero_fraction": 0.555}
    cross = {**row, "module": "cross", "entropy": 0.6666, "zero_fraction": 0.777}
    table = [{**row, "module": "all"}, cross, {**cross, "layer": 1, "entropy": 9.99}]
    text = {"source_file": "/home/somebody/new.de", "sentences": 1200, "target": "given, teacher-forced"}
    config = {"attention_activation": "relu", "attention_scaling": "variance", "attention_gamma": 5.5}
    return {"what": "entropy", "date": "2024-05-06", "model": {"config": config}, "text": text, "table": table}


def change_recipe(run, **fields):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"] |= fields.pop("data", {})
    (run / "recipe.yaml").write_text(yaml.safe_dump({**recipe, **fields}), encoding="utf-8")


def change(path, **fields):
    """None removes a field."""
    held = {**json.loads(path.read_text()), **fields}
    write_json(path, {name: value for name, value in held.items() if value is not None})


LEFT_BEHIND = (
    "checkpoint-2/model.safetensors",
    "training_args.bin",
    "pytorch_model.bin",
    "corpus.de.gz",
    "notes_of_mine.py",
    ".env",
)


def write_finished_run(folder: Path) -> Path:
    """A run with a tiny untrained model: what publishing takes, and much that it must not take."""
    torch.manual_seed(0)
    tokenizer = demo_tokenizer(60)
    model = tiny_model(vocab_size=len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {"source": str(folder / "corpus.de.gz"), "target": str(folder / "corpus.en.gz")}
    data = {"source_language": "de", "target_language": "en", "max_length": 32, "train": files}
    recipe = {"name": "little", "data": data, "training": {"output_dir": str(folder)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = f"reluformer train --config {folder}/little.yaml --training.output_dir={folder}"
    write_json(folder / "training_record.json", {**run_record(command, "little", 5), "updates": 2})
    scores = score_translations(["one"], ["one"])
    write_json(folder / "evaluation.test.json", {"split": "test", "dataset": "little test", **scores})
    write_json(
        folder / "trainer_state.json", {"log_history": [], "best_model_checkpoint": str(folder / "checkpoint-2")}
    )
    for name in ("training_curve.png", "attention_map.png"):
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + name.encode())
    (folder / "README.md").write_text("# little\n", encoding="utf-8")
    for name in LEFT_BEHIND:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"secret")
    return folder
