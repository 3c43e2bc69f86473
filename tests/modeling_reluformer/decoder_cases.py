"""Small decoder-only models and batches, shared by the tests."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM

from .vision_cases import moved

VOCABULARY = 53
SIZES = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def decoder_config(**fields) -> ReLUFormerDecoderConfig:
    fields = {"preset": "gpt2", **SIZES, **fields}
    return ReLUFormerDecoderConfig.from_preset(fields.pop("preset"), **fields)


def decoder_model(seed: int = 0, attn_implementation: str | None = None, **fields) -> ReLUFormerForCausalLM:
    torch.manual_seed(seed)
    config = decoder_config(**fields)
    config._attn_implementation = attn_implementation
    return moved(ReLUFormerForCausalLM(config))


def gpt2_model(seed: int = 0, **fields) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return moved(GPT2LMHeadModel(GPT2Config(**{**sizes, "n_inner": 40, **no_dropout, **SPECIAL, **fields})))


def llama_model(seed: int = 0, **fields) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return moved(LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **SPECIAL, **fields})))


def token_ids(batch: int = 3, length: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


class Counting(torch.utils.data.Dataset):
    """Sequences of unequal lengths in which each token is the last one plus one."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict:
        ids = [3 + (index + place) % 20 for place in range(6 + index % 4)]
        return {"input_ids": ids, "labels": ids}


def padded_collator(rows: list[dict]) -> dict:
    longest = max(len(row["input_ids"]) for row in rows)

    def padded_to(value: int, name: str) -> torch.Tensor:
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    ids = padded_to(0, "input_ids")
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": padded_to(-100, "labels")}


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Its words are w3, w4, …, each one token."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, VOCABULARY)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
