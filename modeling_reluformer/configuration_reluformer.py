"""Configuration of ReLUFormer: what is computed. How it is computed (`attn_implementation`) is never saved."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN

# The names beside `AttentionConfig` were in this module before there was another model.
from .configuration_attention import (  # noqa: F401
    ATTENTION_OUTPUT_NORMS,
    ATTENTION_SCALINGS,
    CACHE_NAME,
    DEFAULT_ENTROPY_MARGIN,
    DEFAULT_GAMMA,
    DEFAULT_REGULARIZATION_WEIGHT,
    LOSS_FIGURES,
    NON_NEGATIVE_ACTIVATIONS,
    NORMALIZED_ACTIVATIONS,
    POINTWISE_ACTIVATIONS,
    AttentionConfig,
    require_attention_implementation,
    valid_attention_implementations,
)
from .configuration_feed_forward import FeedForwardConfig

FFN_OUTPUT_NORMS = ("none", "layer_norm")

PRESETS: dict[str, dict[str, Any]] = {
    "reluformer": {"attention_activation": "relu", "attention_scaling": "variance"},
    "vanilla": {"attention_activation": "softmax", "regularization_weight": 0.0},
    "sparsemax": {"attention_activation": "sparsemax", "regularization_weight": 0.0},
    "entmax15": {"attention_activation": "entmax15", "regularization_weight": 0.0},
    "rela": {
        "attention_activation": "relu",
        "attention_scaling": "none",
        "attention_output_norm": "gated_rms",
        "regularization_weight": 0.0,
    },
    "relu_vit": {
        "attention_activation": "relu",
        "attention_scaling": "length",
        "attention_qk_norm": True,
        "regularization_weight": 0.0,
    },
}


def require_tensor_parallel(config: "ReLUFormerConfig", processes: int) -> None:
    """Raises a `ValueError` where whole heads and FFN columns, dealt out to `processes`, would not compute the same model."""
    whole_only = {
        "attention_output_norm": (config.attention_output_norm != "none", "normalises over the heads of all processes"),
        "attention_gamma_learnable": (
            config.attention_gamma_learnable,
            "holds one gamma for each head of all processes",
        ),
        "activation_function": (
            config.activation_function == "softmax",
            "normalises over the columns of all processes",
        ),
        "ffn_top_k": (config.ffn_top_k is not None, "looks at the columns of all processes"),
        "activation_sparsity_pattern": (
            bool(config.activation_sparsity_pattern),
            "looks at the columns of all processes",
        ),
    }
    for name, (is_set, reason) in whole_only.items():
        if is_set:
            raise ValueError(f"{name}={getattr(config, name)!r} {reason}: not with tensor parallelism. Use tp_size=1.")
    for name in ("encoder_attention_heads", "decoder_attention_heads"):
        if getattr(config, name) % processes:
            raise ValueError(
                f"{name}={getattr(config, name)} must be a multiple of tp_size={processes}: heads stay whole."
            )


@strict
class ReLUFormerConfig(FeedForwardConfig):
    r"""
    Configuration of a [`ReLUFormerModel`]. The defaults are the architecture of arXiv 2302.06461 in its WMT14 size.

    The field names are Marian's; the fields of attention and of its regulariser are those of [`AttentionConfig`], those of zeros
    in the FFN of [`FeedForwardConfig`], and what follows is ReLUFormer's own. A wrong value raises a `ValueError` that names
    the field, the value and the valid choices.

    Args:
        ffn_output_norm (`str`, defaults to `"none"`): `none`, or `layer_norm` on the result of the FFN (Table 1).
        ffn_temperature (`float`, defaults to 1.0): divides the scores of a softmax FFN (§3.4).
        activation_function (`str`, defaults to `"relu"`): any name of `ACT2FN`, or `softmax` (FFN as key-value memory, Eq. 2).
        label_smoothing (`float`, defaults to 0.1): of the model's own loss, which holds the regulariser too.
        skip_logits (`bool`, defaults to `False`):
            In training with labels, compute the loss without logits, which are then None in the output. `forward` takes the same
            argument.
        decoder_vocab_size (`int`, *optional*): defaults to `vocab_size`; may differ only with unshared embeddings.
        share_encoder_decoder_embeddings (`bool`, defaults to `True`): one embedding for source and target.
        init_std (`float`, *optional*):
            Standard deviation of all initial weights. Default: as in Vaswani et al.: Xavier-uniform projections and
            embeddings of standard deviation `d_model ** -0.5`.

    Example:

    ```python
    >>> from reluformer import ReLUFormerConfig

    >>> config = ReLUFormerConfig(d_model=256, encoder_layers=3, decoder_layers=3)
    >>> baseline = ReLUFormerConfig.from_preset("vanilla", d_model=256, encoder_layers=3, decoder_layers=3)
    ```"""

    model_type = "reluformer"
    presets = PRESETS
    keys_to_ignore_at_inference = [CACHE_NAME, *LOSS_FIGURES]
    attribute_map = {
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    d_model: int = 512
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048

    attention_dropout: float | int = 0.1

    activation_function: str = "relu"
    ffn_output_norm: str = "none"
    ffn_temperature: float | int = 1.0
    activation_dropout: float | int = 0.0
    dropout: float | int = 0.1

    label_smoothing: float | int = 0.1
    skip_logits: bool = False

    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    init_std: float | int | None = None
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self.take_other_names(kwargs)
        if not self.is_encoder_decoder:
            raise ValueError("is_encoder_decoder=False is not supported: ReLUFormer always has both. Leave it at True.")
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        self.resolve_attention()
        self._check_heads()
        self._check_ffn()
        self._check_numbers()
        widths = (self.encoder_ffn_dim, self.decoder_ffn_dim)
        self.check_feed_forward(self.activation_function, self.encoder_layers + self.decoder_layers, *widths)
        super().__post_init__(**kwargs)
        # after the library, whose older versions add the embedding to the plan
        self.base_model_tp_plan = self._tensor_parallel_plan()

    def _tensor_parallel_plan(self) -> dict[str, str]:
        """How tensor parallelism cuts the model: whole heads of attention, columns of the FFN, rows of the embeddings.

        The output layer, which may share its matrix with an embedding, is in the plan of the class that has it.
        """
        attention = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
        if self.attention_gate:
            attention["gate_proj"] = "colwise"
        if self.attention_qk_norm:
            attention |= dict.fromkeys(("q_norm", "k_norm"), "replicated_with_grad_allreduce")
        attentions = ("encoder.layers.*.self_attn", "decoder.layers.*.self_attn", "decoder.layers.*.encoder_attn")
        plan = {f"{module}.{name}": style for module in attentions for name, style in attention.items()}
        for stack in ("encoder", "decoder"):
            plan |= {f"{stack}.layers.*.fc1": "colwise", f"{stack}.layers.*.fc2": "rowwise"}
            plan[f"{stack}.embed_tokens"] = "embedding_rowwise"
        if self.share_encoder_decoder_embeddings:
            plan["shared"] = "embedding_rowwise"
        return plan

    def _check_heads(self) -> None:
        for part in ("encoder", "decoder"):
            heads = getattr(self, f"{part}_attention_heads")
            if heads < 1 or self.d_model % heads != 0:
                raise ValueError(f"d_model={self.d_model} must be a multiple of {part}_attention_heads={heads}.")

    def _check_ffn(self) -> None:
        self.require_choice("ffn_output_norm", FFN_OUTPUT_NORMS)
        self.require_choice("activation_function", (*ACT2FN.keys(), "softmax"))
        if self.ffn_temperature != 1 and self.activation_function != "softmax":
            raise ValueError(
                f"ffn_temperature={self.ffn_temperature} is for activation_function='softmax'; "
                f"it is {self.activation_function!r}."
            )
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
                "set share_encoder_decoder_embeddings=False for two vocabularies."
            )

    def _check_numbers(self) -> None:
        self.require_rates("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
        if not 0 < self.ffn_temperature < float("inf"):
            raise ValueError(f"ffn_temperature={self.ffn_temperature} must be a finite number above 0.")
        self.require_at_least_one("vocab_size", "decoder_vocab_size", "d_model", "max_position_embeddings")
        self.require_at_least_one("encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")


ReLUFormerConfig.register_for_auto_class()  # `save_pretrained` writes the code beside the configuration

__all__ = ["ReLUFormerConfig"]
