"""What a reader calls the contenders and settings that result files hold under the names of programs."""

from __future__ import annotations

from typing import Any

CONTENDERS = {
    "fused": "ReLU",
    "fused+S": "ReLU with S",
    "fused+S+T": "ReLU with S and T",
    "sdpa softmax": "softmax (SDPA)",
    "sdpa": "softmax (SDPA)",
    "eager softmax": "softmax, all weights in memory",
    "eager relu": "ReLU, all weights in memory",
    "entmax15": "1.5-entmax",
    "rela": "ReLA",
    "vanilla": "our softmax model",
    "MarianMTModel sdpa": "Marian",
    "MarianMTModel sdpa with label smoothing": "Marian with label smoothing",
    "ReLUFormer, λ = 0": "ReLUFormer without the regulariser",
    "ReLU, λ = 0": "ReLU without the regulariser",
    "ReLU, L_reg": "ReLU with the regulariser",
    "softmax": "our softmax model",
    "ViTForImageClassification": "Transformers' ViT",
    "GPT2LMHeadModel": "Transformers' GPT-2",
    "LlamaForCausalLM": "Transformers' Llama",
    "FlexAttention log(ReLU+1)": "FlexAttention, log(ReLU + 1)",
}
VALUES = {
    "multi30k-like": "sentences",
    "1,024 tokens": "documents",
    "iwslt14": "IWSLT14",
    "forward": "forward",
    "forward+backward": "forward and backward",
    "GPT2LMHeadModel": "GPT-2",
    "LlamaForCausalLM": "Llama",
}
# What a setting of a cell is called in front of its value; a text speaks for itself.
SETTINGS = {
    "batch": "a batch of {}",
    "heads": "{} heads",
    "length": "{} tokens",
    "head_dim": "heads of {}",
    "attention_dropout": "attention dropout {}",
    "beams": "{} beams",
    "sentences": "{} sentences",
    "threads": "{} threads",
    "context": "a context of {}",
    "rows": "{} rows",
    "zeros": "{} % zeros",
}


def contender(name: str) -> str:
    """The name of a program in a table; one that says what it is stays as it is."""
    return CONTENDERS.get(name, name)


def value(setting: Any) -> str:
    """A setting by itself, as in a cell of a table."""
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if isinstance(setting, int):
        return f"{setting:,}"
    return VALUES.get(setting, str(setting))


def setting(name: str, of_cell: Any) -> str:
    """A setting with its name, as in a sentence; 1 of something is written in the singular."""
    if isinstance(of_cell, bool):
        return name if of_cell else f"not {name}"
    text = SETTINGS.get(name, "{}").format(value(of_cell))
    return text.removesuffix("s") if of_cell == 1 and text.endswith("s") else text
