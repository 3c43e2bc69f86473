"""A run folder as training leaves it, with a tiny untrained model: what publishing takes, and much that it must not take."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from reluformer.training.run.records import run_record, write_json
from reluformer.training.scoring.metrics import score_translations

from ..conftest import demo_tokenizer, tiny_model

LEFT_BEHIND = (
    "checkpoint-2/model.safetensors",
    "checkpoint-2/optimizer.pt",
    "optimizer.pt",
    "training_args.bin",
    "pytorch_model.bin",
    "translations.test.tsv",
    "corpus.de.gz",
    "analysis/entropy.csv",
    "logs/events.out.tfevents.1",
    "notes_of_mine.py",
    ".env",
)


def write_finished_run(folder: Path) -> Path:
    """Writes the folder and returns it."""
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
