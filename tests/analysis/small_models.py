"""Random encoder-decoders, ours and others', that share one tokenizer, in memory and on disk."""

from pathlib import Path

import datasets
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
)
from reluformer.training.data.tokenization import train_tokenizer

SOURCES = ["ein hund im schnee", "zwei hunde", "schnee", "die kinder spielen im schnee und lachen", "ein mann"]
TARGETS = ["a dog in the snow", "two dogs", "the snow falls on all", "children play in the snow", "a man"]
POSITIONS = 40
LAYERS, HEADS, FFN = 2, 4, 24
SIZES = {
    "d_model": 16,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FFN,
    "decoder_ffn_dim": FFN,
    "max_position_embeddings": POSITIONS,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
OURS = {
    "reluformer": {"preset": "reluformer"},
    "vanilla": {"preset": "vanilla"},
    "memory": {"preset": "vanilla", "activation_function": "softmax", "ffn_output_norm": "layer_norm"},
    "gelu": {"preset": "reluformer", "activation_function": "gelu"},
    "identity": {"preset": "reluformer", "attention_activation": "identity"},
}


def make_tokenizer():
    pairs = datasets.Dataset.from_dict({"source": SOURCES * 4, "target": TARGETS * 4})
    sizes = {"vocab_size": 320, "max_length": POSITIONS, "lowercase": True, "moses": False}
    return train_tokenizer(pairs, source_language="de", target_language="en", **sizes)


def make_model(kind: str, vocabulary: int):
    """`kind`: a key of `OURS`, "marian" or "t5"; in evaluation mode."""
    torch.manual_seed(0)
    if kind in OURS:
        fields = dict(OURS[kind])
        config = ReLUFormerConfig.from_preset(fields.pop("preset"), vocab_size=vocabulary, **SIZES, **fields)
        model = ReLUFormerForConditionalGeneration(config)
    elif kind == "marian":
        ends = {"forced_eos_token_id": None}
        model = MarianMTModel(
            MarianConfig(vocab_size=vocabulary, activation_function="relu", **ends, **SIZES, **TOKENS)
        )
    else:
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": FFN, "num_layers": LAYERS, "num_heads": HEADS}
        special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
        model = T5ForConditionalGeneration(T5Config(vocab_size=vocabulary, **sizes, **special))
    with torch.no_grad():  # away from the start, where weights are all but equal and biases 0
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def save_model(folder: Path, kind: str, tokenizer) -> Path:
    make_model(kind, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_decoder(folder: Path, kind: str, tokenizer) -> Path:
    """`kind`: "gpt2", or "relu_decoder", ours; of 24 positions, with the tokenizer of the translation models."""
    torch.manual_seed(3)
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 24, "activation_function": "relu"}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), initializer_range=0.3, **sizes, **tokens))
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "init_std": 0.3}
        config = ReLUFormerDecoderConfig.from_preset(
            "llama_relu", vocab_size=len(tokenizer), max_position_embeddings=24, **sizes, **tokens
        )
        model = ReLUFormerForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
