"""A tiny model, corpus and trainer, shared by the tests of training; as a program, one training under torchrun."""

import json
import sys

import datasets
import numpy as np
import torch
from transformers import Seq2SeqTrainingArguments, set_seed

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.training.trainer import ReLUFormerTrainer

VOCABULARY = 24
TOKENS_PER_BATCH = 40


def tiny_pairs(count: int = 30, seed: int = 0) -> datasets.Dataset:
    """Encoded pairs of unequal lengths; the first source token says which pair it is."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        source = generator.integers(4, VOCABULARY, generator.integers(2, 9)).tolist()
        target = generator.integers(4, VOCABULARY, generator.integers(2, 9)).tolist()
        rows.append({"input_ids": [*source, 2], "attention_mask": [1] * (len(source) + 1), "labels": [*target, 2]})
    return datasets.Dataset.from_list(rows)


def tiny_model(**fields) -> ReLUFormerForConditionalGeneration:
    set_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = ReLUFormerConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **{**sizes, **heads, **fields})
    return ReLUFormerForConditionalGeneration(config)


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Padding on the right; labels with -100."""

    def pad(name: str, value: int) -> torch.Tensor:
        longest = max(len(row[name]) for row in rows)
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    return {"input_ids": pad("input_ids", 0), "attention_mask": pad("attention_mask", 0), "labels": pad("labels", -100)}


def tiny_trainer(folder, model=None, pairs=None, scorer=None, **arguments) -> ReLUFormerTrainer:
    settings = {
        "learning_rate": 0.01,
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "ddp_find_unused_parameters": False,
        "seed": 3,
        **arguments,
    }
    return ReLUFormerTrainer(
        tiny_model() if model is None else model,
        Seq2SeqTrainingArguments(output_dir=str(folder), **settings),
        data_collator=collate,
        train_dataset=tiny_pairs() if pairs is None else pairs,
        eval_dataset=tiny_pairs(12, seed=1),
        tokens_per_batch=TOKENS_PER_BATCH,
        translation_scorer=scorer,
    )


if __name__ == "__main__":
    # folder, JSON of {"resume": checkpoint or null, "pairs": their number, "model": {…}, …training arguments}
    options = json.loads(sys.argv[2])
    resume, count, fields = (options.pop(name) for name in ("resume", "pairs", "model"))
    trainer = tiny_trainer(sys.argv[1], tiny_model(**fields), tiny_pairs(count), **options)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    trainer.save_state()
