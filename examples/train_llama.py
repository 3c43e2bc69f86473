"""Trains a small Llama language model from new weights, with ReLU attention or softmax.

    python examples/train_llama.py --texts data/europarl_it_en/train.en.gz --output_dir llama --attention relu

The file holds one sentence a line, gzip or plain. Its first lines are read in their order, as one text that is cut into blocks of
equal length; the last blocks are held out. Beside the model's loss stands that of guessing each token by its frequency alone.
"""

import argparse
import gzip
from itertools import islice

import torch
from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from reluformer import use_relu_attention

BLOCK = 128  # tokens
BATCH = 8  # blocks


def read_lines(path: str, count: int) -> list[str]:
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as lines:
        found = list(islice(lines, count))
    if len(found) < count:
        raise SystemExit(f"{path} has {len(found)} lines; {count} are needed")
    return found


def train_tokenizer(lines: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(lines, vocab_size=vocab_size, special_tokens=["<s>", "</s>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, bos_token="<s>", eos_token="</s>")


def in_blocks(lines: list[str], tokenizer: PreTrainedTokenizerFast) -> Dataset:
    ids = torch.tensor(tokenizer("".join(lines))["input_ids"])
    blocks = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK).tolist()
    return Dataset.from_dict({"input_ids": blocks, "labels": blocks})


def frequency_loss(train: Dataset, validation: Dataset, vocab_size: int) -> float:
    """Cross-entropy a token, in nats, of the frequencies in the training text, each count one higher."""
    counts = torch.tensor(train["input_ids"]).flatten().bincount(minlength=vocab_size) + 1.0
    return -(counts / counts.sum()).log()[torch.tensor(validation["input_ids"])].mean().item()


def build_model(options: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=BLOCK,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    if options.attention == "relu":
        use_relu_attention(model, gamma="auto", length=BLOCK, regularization_weight=options.regularization_weight)
    return model


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="text file, one sentence a line; .gz is unpacked")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--attention", choices=("relu", "softmax"), default="relu")
    parser.add_argument(
        "--regularization_weight", type=float, default=0.01, help="of the regulariser of ReLU attention"
    )
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--held_out", type=int, default=100, help="blocks to evaluate on")
    parser.add_argument("--max_steps", type=int, default=240)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    options = parser.parse_args(arguments)

    lines = read_lines(options.texts, options.lines)
    tokenizer = train_tokenizer(lines, vocab_size=2_000)
    parts = in_blocks(lines, tokenizer).train_test_split(options.held_out, shuffle=False)

    set_seed(options.seed)
    model = build_model(options, tokenizer)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=16,
            logging_steps=0.1,
            save_strategy="no",
            report_to="none",
            seed=options.seed,
        ),
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        data_collator=default_data_collator,
    )
    trainer.train()
    trainer.save_model()
    tokenizer.save_pretrained(options.output_dir)
    return {
        "training_tokens": trainer.state.global_step * BATCH * BLOCK,
        "updates": trainer.state.global_step,
        "attention": getattr(model.config, "reluformer", "softmax"),
        "frequency_loss": frequency_loss(parts["train"], parts["test"], len(tokenizer)),
        "validation_loss": trainer.evaluate()["eval_loss"],
    }


if __name__ == "__main__":
    print(main())
