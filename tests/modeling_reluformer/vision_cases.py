"""Small models for pictures and batches, shared by the tests."""

import torch
from transformers import ViTConfig, ViTForImageClassification

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
}
CLASSES = 5


def vision_config(**fields) -> ReLUFormerVisionConfig:
    fields = {"preset": "relu_vit", "num_labels": CLASSES, **SIZES, **fields}
    return ReLUFormerVisionConfig.from_preset(fields.pop("preset"), **fields)


def moved(model):
    """Initial biases are zero and norms one: moves them, so that a test sees a term that is forgotten."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def vision_model(seed: int = 0, attn_implementation: str | None = None, **fields) -> ReLUFormerForImageClassification:
    torch.manual_seed(seed)
    config = vision_config(**fields)
    config._attn_implementation = attn_implementation
    return moved(ReLUFormerForImageClassification(config))


def vit_model(seed: int = 0, **fields) -> ViTForImageClassification:
    torch.manual_seed(seed)
    return moved(ViTForImageClassification(ViTConfig(num_labels=CLASSES, **{**SIZES, **fields})))


def pictures(count: int = 3, size: tuple[int, int] = (8, 8), channels: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(seed))


def classes(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))
