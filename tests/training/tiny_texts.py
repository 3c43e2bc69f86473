"""Small texts with a rule that a model learns in seconds, and a recipe on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


def text(seed: int, lines: int = 12) -> str:
    """Lines in which each word follows from the one before it, with an umlaut and what looks like a special token."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(lines):
        start = int(rng.integers(0, len(WORDS)))
        made.append(" ".join(WORDS[(start + step) % len(WORDS)] for step in range(8)))
    return "\n".join([*made, "über <|endoftext|> Öl", ""])


def write_texts(folder: Path, count: int = 24) -> Path:
    """Text files in two folders, one of them empty, another one not UTF-8."""
    for number in range(count):
        path = folder / ("first" if number % 2 else "second") / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(number), encoding="utf-8")
    (folder / "first" / "empty.txt").write_text("", encoding="utf-8")
    (folder / "first" / "latin1.txt").write_bytes("naïve".encode("latin-1"))
    (folder / "notes.md").write_text("not read", encoding="utf-8")
    return folder


def write_recipe(folder: Path, **sections) -> Path:
    """A recipe that trains in a second or two; its texts are a folder unless `data` says otherwise."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
    recipe = {
        "task": "language_modeling",
        "name": "tiny",
        "data": {
            "max_length": 16,
            "corpus": {"paths": str(write_texts(folder / "texts")), "pattern": "*.txt"},
            "split": {"validation": 0.2, "test": 0.2, "seed": 1},
        },
        "tokenizer": {"vocab_size": 290},
        "model": {**sizes, **sections.pop("model", {})},
        "averaging": {"last_checkpoints": 2},
        **sections,
        "training": {
            "output_dir": str(folder / "runs" / "tiny"),
            "max_steps": 8,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 3,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 2,
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 0.01,
            **sections.get("training", {}),
        },
    }
    path = folder / "tiny_text.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path
