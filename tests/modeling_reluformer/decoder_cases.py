"""Small decoder-only models and batches, shared by the tests."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

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
