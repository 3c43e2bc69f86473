"""Trains a decoder-only language model with ReLU attention, or with softmax, on text files; each file is a document.

    python examples/train_language_model.py --texts "notes/**/*.md" --output_dir lm
    python examples/train_language_model.py --texts "src/**/*.py" --output_dir lm --preset normalization_free

Documents are joined by an end token to one stream, which is cut into contexts of equal length. The last documents are
held out, and the example ends with their perplexity per token and per byte; only the latter can be compared between
tokenizers.
"""

import argparse
import math

import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, default_data_collator, set_seed

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, as GPT-2 has it: it writes any text and decodes it exactly."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<end>"], initial_alphabet=alphabet)
    pieces.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<end>", eos_token="<end>", pad_token="<end>")


def in_contexts(texts: list[str], tokenizer: PreTrainedTokenizerFast, length: int) -> Dataset:
    """Each context begins with the last token of the one before it, so that every token is predicted once."""
    stream = [tokenizer.eos_token_id]
    for ids in tokenizer(texts, split_special_tokens=True, verbose=False)["input_ids"]:
        stream += [*ids, tokenizer.eos_token_id]
    if len(stream) < length:
        raise SystemExit(f"{len(texts)} texts have {len(stream)} tokens, fewer than one context of {length}; give more")
    contexts = torch.tensor(stream).unfold(0, length, length - 1).tolist()
    return Dataset.from_dict({"input_ids": contexts, "labels": [[-100, *ids[1:]] for ids in contexts]})


def build_model(options: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> ReLUFormerForCausalLM:
    relu = {"attention_activation": "relu", "attention_scaling": "variance", "regularization_weight": 0.01}
    config = ReLUFormerDecoderConfig.from_preset(
        options.preset,
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=options.context,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **(relu if options.attention == "relu" else {}),
    )
    return ReLUFormerForCausalLM(config)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="text files in UTF-8, as a pattern")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--attention", choices=("relu", "softmax"), default="relu")
    parser.add_argument("--preset", default="gpt2", help="gpt2, normalization_free or, with ReLU attention, llama_relu")
    parser.add_argument("--held_out", type=int, default=10, help="documents to evaluate on")
    parser.add_argument("--vocab_size", type=int, default=4_000)
    parser.add_argument("--context", type=int, default=128, help="tokens")
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--max_steps", type=int, default=1_600)
    parser.add_argument("--batch_size", type=int, default=32, help="contexts")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    options = parser.parse_args(arguments)

    rows = load_dataset("text", data_files=options.texts, sample_by="document", split="train")
    texts = [text for text in rows["text"] if text]
    if len(texts) <= options.held_out:
        parser.error(f"--texts: {len(texts)} documents are not more than --held_out {options.held_out}")
    train, test = texts[: -options.held_out], texts[-options.held_out :]
    tokenizer = train_tokenizer(train, options.vocab_size)

    set_seed(options.seed)
    trainer = Trainer(
        model=build_model(options, tokenizer),
        args=TrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            weight_decay=0.1,
            lr_scheduler_type="polynomial",
            warmup_steps=0.05,
            logging_steps=0.02,
            save_strategy="no",
            report_to="none",
            prediction_loss_only=True,
            seed=options.seed,
        ),
        train_dataset=in_contexts(train, tokenizer, options.context),
        eval_dataset=in_contexts(test, tokenizer, options.context),
        data_collator=default_data_collator,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()
    # the perplexity is that of the loss without the regulariser
    trainer.model.config.regularization_weight = 0.0
    nats = trainer.evaluate()["eval_loss"]
    tokens = sum(
        len(ids) + 1 for ids in tokenizer(test, split_special_tokens=True)["input_ids"]
    )  # with the end of each document
    size = sum(len(text.encode()) for text in test)
    return {"perplexity": math.exp(nats), "perplexity_per_byte": math.exp(nats * tokens / size)}


if __name__ == "__main__":
    print(main())
