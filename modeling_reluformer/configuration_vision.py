"""Configuration of the Vision Transformer with ReLU attention (arXiv 2309.08586): what is computed."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN

from .attention_reluformer import check_regularization_share, require
from .configuration_reluformer import LOSS_PARTS, AttentionConfig

_PAPER = {"attention_qk_norm": True, "initialization": "xavier", "pooling": "mean", "regularization_weight": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "relu_vit": {"attention_activation": "relu", "attention_scaling": "length", **_PAPER},
    "softmax_vit": {"attention_activation": "softmax", **_PAPER},
}
# The paper's models S/32, S/16 and S/8 on pictures of 224 × 224 pixels: 49, 196 and 784 patches.
_SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
SIZES: dict[str, dict[str, int]] = {
    f"S/{patch_size}": {**_SMALL, "image_size": 224, "patch_size": patch_size} for patch_size in (32, 16, 8)
}


@strict
class ReLUFormerVisionConfig(AttentionConfig):
    r"""
    Configuration of a [`ReLUFormerVisionModel`]. The defaults are the architecture of arXiv 2309.08586 in the size of
    ViT-B/16.

    The field names are those of Transformers' `ViTConfig` and of [`AttentionConfig`], with two other defaults:
    `attention_scaling` is `length` for point-wise activations, and `attention_qk_norm` is on. What follows is this
    class' own. A wrong value raises a `ValueError` that names the field, the value and the valid choices.

    Args:
        pooling (`str`, defaults to `"mean"`):
            What stands for the whole picture after the last norm: `mean`, the mean over the patches, or `cls`, a token
            of its own before them, as in ViT, with which there is one token more.
        pooler_act (`str`, *optional*):
            Activation of one more layer between pooling and classifier, for example `tanh`; None: no such layer.
        initialization (`str`, defaults to `"xavier"`):
            Weights to start with: `xavier`, those of the paper's code (Xavier-uniform projections, a classifier of
            zeros), or `normal`, ViT's (standard deviation `initializer_range`).
        initializer_range (`float`, defaults to 0.02): standard deviation of the initialization `normal`.
        image_size, patch_size (`int` or pair of `int`): height and width in pixels; a patch must divide the picture.
    """

    model_type = "reluformer_vision"
    presets = PRESETS
    pointwise_scaling: ClassVar[str] = "length"
    more_arguments: ClassVar[tuple[str, ...]] = ("num_labels",)
    keys_to_ignore_at_inference = list(LOSS_PARTS)
    attribute_map = {"attention_dropout": "attention_probs_dropout_prob", "activation_function": "hidden_act"}

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initialization: str = "xavier"
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    qkv_bias: bool = True
    pooling: str = "mean"
    pooler_act: str | None = None
    attention_qk_norm: bool = True

    @classmethod
    def from_preset(cls, preset: str, size: str | None = None, **config_fields: Any) -> "ReLUFormerVisionConfig":
        """As `AttentionConfig.from_preset`, with `size` in one of the paper's: `S/32`, `S/16` or `S/8`."""
        if size is not None and size not in SIZES:
            raise ValueError(f"size={size!r} is unknown; choose one of {', '.join(SIZES)}.")
        return super().from_preset(preset, **{**SIZES.get(size, {}), **config_fields})

    def __post_init__(self, **kwargs: Any) -> None:
        self.take_other_names(kwargs)
        self.resolve_attention()
        self.require_choice("pooling", ("mean", "cls"))
        self.require_choice("initialization", ("xavier", "normal"))
        self.require_choice("hidden_act", tuple(ACT2FN))
        self.require_choice("pooler_act", (None, *ACT2FN))
        require(self, "lie in [0, 1)", "hidden_dropout_prob", "attention_probs_dropout_prob")
        require(self, "be at least 1", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        require(self, "be at least 1", "num_channels")
        self.check_feed_forward(self.hidden_act, self.num_hidden_layers, self.intermediate_size)
        check_regularization_share(self, self.attention_modules)
        require(self, "be a finite number above 0", "initializer_range", "layer_norm_eps")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={self.num_attention_heads}."
            )
        if min(*pair(self.image_size), *pair(self.patch_size)) < 1:
            raise ValueError(f"image_size={self.image_size} and patch_size={self.patch_size} must be at least 1.")
        if any(pixels % patch for pixels, patch in zip(pair(self.image_size), pair(self.patch_size), strict=True)):
            raise ValueError(
                f"patch_size={self.patch_size} does not divide image_size={self.image_size}: choose a patch that does."
            )
        super().__post_init__(**kwargs)

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return tuple(
            pixels // patch for pixels, patch in zip(pair(self.image_size), pair(self.patch_size), strict=True)
        )


def pair(size: int | list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of a size that may be given as one number."""
    return (size, size) if isinstance(size, int) else tuple(size)


ReLUFormerVisionConfig.register_for_auto_class()
