"""The tiny model and batch that the library's mixins ask for. The attributes' names are those the mixins look for."""

from __future__ import annotations

from typing import Any

import torch

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration


class ReLUFormerModelTester:
    """Configuration fields beyond the tiny size come from the test class, one per kind of attention."""

    causal_lm_class = ReLUFormerForConditionalGeneration
    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True

    def __init__(self, parent: Any, **attention_fields: Any) -> None:
        self.parent = parent
        self.attention_fields = attention_fields
        self.attn_implementation: str | None = None  # the attention's default

    def get_config(self) -> ReLUFormerConfig:
        config = ReLUFormerConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            decoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=128,
            label_smoothing=0.0,  # the library compares the loss with plain cross-entropy
            **self.attention_fields,
        )
        if self.attn_implementation is not None:
            config._attn_implementation = self.attn_implementation
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.seq_length)
        config = self.get_config()
        source, target = (torch.randint(4, self.vocab_size, shape) for _ in range(2))
        source[:, -1] = config.eos_token_id
        target[:, 0] = config.decoder_start_token_id
        source_mask = torch.ones(shape, dtype=torch.long)
        inputs = {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones(shape, dtype=torch.long),
        }
        return config, inputs
