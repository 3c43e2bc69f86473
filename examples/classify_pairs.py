"""Trains a small BERT with ReLU attention, from new weights, to tell which corpus the first of two sentences is from.

    python examples/classify_pairs.py --texts data/multi30k/train.en.gz data/tatoeba/train.en.gz --output_dir pairs

Each file is a corpus, one sentence a line, gzip or plain. Each example has two sentences, one after the other, of one
file or of both. A bag of their words does not know which of them stood first: it cannot tell more than three quarters
right.
"""

import argparse
import gzip
import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from reluformer import use_relu_attention

LONGEST = 20  # words of a sentence
KINDS = ((0, 0), (0, 1), (1, 1), (1, 0))  # which corpora the two sentences of an example are from
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def read_sentences(path: str, count: int, draw: random.Random) -> list[str]:
    """`count` different sentences of 4 to 20 words, in lower case, in an order by `draw`."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as lines:
        sentences = dict.fromkeys(line.strip().lower() for line in lines)
    found = [text for text in sentences if 4 <= len(text.split()) <= LONGEST]
    if len(found) < count:
        raise SystemExit(f"{path} has {len(found)} different sentences of 4 to {LONGEST} words; {count} are needed")
    return draw.sample(found, count)


def build_examples(paths: list[str], count: int, seed: int) -> list[dict]:
    """`first`, `second` and `label` (corpus of the first), as many of each of `KINDS`. No sentence occurs twice."""
    draw = random.Random(seed)
    needed = count + (count % len(KINDS) in (1, 2))  # the first two of `KINDS` take one more of the first corpus
    corpora = [iter(read_sentences(path, needed, draw)) for path in paths]
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    draw.shuffle(kinds)
    return [{"first": next(corpora[a]), "second": next(corpora[b]), "label": a} for a, b in kinds]


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Whole words; those that are too rare are [UNK]."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=SPECIAL))
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=words, **named)


def build_model(vocab_size: int, regularization_weight: float) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
        num_labels=2,
        initializer_range=0.1,  # BERT's 0.02 is for a width of 768
    )
    model = BertForSequenceClassification(config)
    return use_relu_attention(model, regularization_weight=regularization_weight)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, nargs=2, help="two text files, one sentence a line; .gz is unpacked")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--regularization_weight", type=float, default=0.01, help="of L_reg")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--held_out", type=int, default=2_000, help="further examples, to evaluate on")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1, help="of weights, batches and dropout")
    options = parser.parse_args(arguments)

    rows = Dataset.from_list(build_examples(options.texts, options.examples + options.held_out, seed=0))
    parts = rows.train_test_split(options.held_out, shuffle=False)
    tokenizer = train_tokenizer([*parts["train"]["first"], *parts["train"]["second"]], vocab_size=4_000)
    sides = ["first", "second"]
    parts = parts.map(lambda batch: tokenizer(*(batch[side] for side in sides)), batched=True, remove_columns=sides)

    set_seed(options.seed)
    trainer = Trainer(
        model=build_model(len(tokenizer), options.regularization_weight),
        args=TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=1,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,
            per_device_train_batch_size=128,
            per_device_eval_batch_size=256,
            logging_steps=0.1,
            save_strategy="no",
            report_to="none",
            seed=options.seed,
        ),
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()
    trainer.save_model()
    return trainer.evaluate()


if __name__ == "__main__":
    print(main())
