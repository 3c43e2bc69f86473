"""The tiny model for pictures and the batch that the library's mixins ask for; see `model_tester`."""

from __future__ import annotations

from typing import Any

import torch

from reluformer import ReLUFormerVisionConfig


class ReLUFormerVisionModelTester:
    """Configuration fields beyond the tiny size come from the test class, one per kind of attention."""

    batch_size = 13
    image_size = 30
    patch_size = 2
    num_channels = 3
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    intermediate_size = 37
    is_training = True
    type_sequence_label_size = 10

    def __init__(self, parent: Any, **attention_fields: Any) -> None:
        self.parent = parent
        self.attention_fields = attention_fields
        self.attn_implementation: str | None = None  # the attention's default
        with_cls = attention_fields.get("pooling") == "cls"
        self.seq_length = (self.image_size // self.patch_size) ** 2 + with_cls

    def get_config(self) -> ReLUFormerVisionConfig:
        sizes = ("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers")
        names = (*sizes, "num_attention_heads", "intermediate_size")
        fields = {name: getattr(self, name) for name in names}
        # a start of zeros, as the paper's, would make many comparisons empty
        config = ReLUFormerVisionConfig(**fields, initialization="normal", **self.attention_fields)
        if self.attn_implementation is not None:
            config._attn_implementation = self.attn_implementation
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[ReLUFormerVisionConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.num_channels, self.image_size, self.image_size)
        return self.get_config(), {"pixel_values": torch.rand(shape)}
