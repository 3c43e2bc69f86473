"""The tiny models and batches that the library's mixins ask for. The attributes' names are those the mixins look for."""

from __future__ import annotations

from typing import Any

import torch

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerDecoderModel,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerVisionConfig,
)


class ModelTester:
    """A subclass names the configuration; its fields beyond the tiny size come from the test class, one per kind of attention."""

    config_class: type
    batch_size = 13
    seq_length = 7
    vocab_size = 99
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True

    def __init__(self, parent: Any, **fields: Any) -> None:
        self.parent = parent
        self.fields = fields
        self.attn_implementation: str | None = None  # the attention's default

    def get_config(self) -> Any:
        config = self.config_class(**self.sizes(), **self.fields)
        if self.attn_implementation is not None:
            config._attn_implementation = self.attn_implementation
        return config

    def token_ids(self) -> torch.Tensor:
        return torch.randint(4, self.vocab_size, (self.batch_size, self.seq_length))


class TranslationTester(ModelTester):
    config_class, causal_lm_class = ReLUFormerConfig, ReLUFormerForConditionalGeneration
    hidden_size = 16

    def sizes(self) -> dict[str, Any]:
        one = {"layers": self.num_hidden_layers, "attention_heads": self.num_attention_heads, "ffn_dim": 24}
        both = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in one.items()}
        sizes = {"vocab_size": self.vocab_size, "d_model": self.hidden_size, "max_position_embeddings": 128}
        return {**sizes, **both, "label_smoothing": 0.0}  # the library compares the loss with plain cross-entropy

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerConfig, dict[str, torch.Tensor]]:
        config, source, target = self.get_config(), self.token_ids(), self.token_ids()
        source[:, -1] = config.eos_token_id
        target[:, 0] = config.decoder_start_token_id
        masks = {"attention_mask": torch.ones_like(source), "decoder_attention_mask": torch.ones_like(target)}
        return config, {"input_ids": source, "decoder_input_ids": target, **masks}


class DecoderTester(ModelTester):
    config_class, base_model_class, causal_lm_class = (
        ReLUFormerDecoderConfig,
        ReLUFormerDecoderModel,
        ReLUFormerForCausalLM,
    )
    hidden_size = 32
    num_key_value_heads = 2

    def sizes(self) -> dict[str, Any]:
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        sizes = {name: getattr(self, name) for name in names}
        return {**sizes, "intermediate_size": 37, "max_position_embeddings": 512}

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerDecoderConfig, dict[str, torch.Tensor]]:
        ids = self.token_ids()
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class VisionTester(ModelTester):
    config_class = ReLUFormerVisionConfig
    image_size = 30
    patch_size = 2
    num_channels = 3
    hidden_size = 32
    intermediate_size = 37
    type_sequence_label_size = 10

    def __init__(self, parent: Any, **fields: Any) -> None:
        super().__init__(parent, **fields)
        self.seq_length = (self.image_size // self.patch_size) ** 2 + (fields.get("pooling") == "cls")

    def sizes(self) -> dict[str, Any]:
        names = ("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers")
        sizes = {name: getattr(self, name) for name in (*names, "num_attention_heads", "intermediate_size")}
        return {**sizes, "initialization": "normal"}  # a start of zeros, as the paper's, would make comparisons empty

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerVisionConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.num_channels, self.image_size, self.image_size)
        return self.get_config(), {"pixel_values": torch.rand(shape)}
