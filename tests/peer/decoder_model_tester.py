"""The tiny decoder-only model and batch that the library's mixins ask for; see `model_tester`."""

from __future__ import annotations

from typing import Any

import torch

from reluformer import ReLUFormerDecoderConfig, ReLUFormerDecoderModel, ReLUFormerForCausalLM


class ReLUFormerDecoderModelTester:
    """Configuration fields beyond the tiny size come from the test class, one per kind of model."""

    base_model_class = ReLUFormerDecoderModel
    causal_lm_class = ReLUFormerForCausalLM
    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    is_training = True

    def __init__(self, parent: Any, **fields: Any) -> None:
        self.parent = parent
        self.fields = fields
        self.attn_implementation: str | None = None  # the attention's default

    def get_config(self) -> ReLUFormerDecoderConfig:
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        config = ReLUFormerDecoderConfig(
            **{name: getattr(self, name) for name in sizes},
            intermediate_size=37,
            max_position_embeddings=512,
            **self.fields,
        )
        if self.attn_implementation is not None:
            config._attn_implementation = self.attn_implementation
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerDecoderConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.seq_length)
        input_ids = torch.randint(4, self.vocab_size, shape)
        return self.get_config(), {"input_ids": input_ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
