"""Configuration of the decoder-only language model: GPT-2's and Llama's architecture, with or without norms."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN

from .attention_reluformer import check_regularization_share, require
from .configuration_reluformer import CACHE_NAME, LOSS_PARTS, AttentionConfig

_SOFTMAX = {"attention_activation": "softmax", "regularization_weight": 0.0}
_FEW_BIASES = {"value_bias": False, "output_bias": False, "ffn_bias": False}
PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {**_SOFTMAX, "hidden_act": "gelu_new", "scale_residual_init": True},
    "normalization_free": {
        **_SOFTMAX,
        **_FEW_BIASES,
        "normalization": "none",
        "hidden_act": "relu",
        "scale_residual_init": False,
    },
    "llama_relu": {
        "attention_activation": "relu",
        "attention_scaling": None,  # that of the activation, which a caller may exchange
        "norm_type": "rms_norm",
        "position_embedding": "rotary",
        "ffn_type": "glu",
        "hidden_act": "relu",
        "query_key_bias": False,
        **_FEW_BIASES,
        "scale_residual_init": False,
        "tie_word_embeddings": False,
    },
}


@strict
class ReLUFormerDecoderConfig(AttentionConfig):
    r"""
    Configuration of a [`ReLUFormerDecoderModel`]. The defaults are GPT-2's architecture in its smallest size, with ReLU
    attention and without dropout.

    The presets are `gpt2` (softmax attention), `normalization_free` (arXiv 2410.09637: softmax attention, a ReLU
    between the layers of the FFN, no norm but the last, and the start of its authors) and `llama_relu` (Llama's
    architecture, with a ReLU for SiLU in the FFN and for the softmax of attention). They name neither sizes nor
    dropout.

    It has the fields of [`AttentionConfig`] and those that follow. A wrong value raises a `ValueError` that names the
    field, the value and the valid choices.

    Args:
        intermediate_size (`int`, *optional*): width of the FFN. Default: `4 * hidden_size`.
        num_key_value_heads (`int`, *optional*): heads of keys and values, which neighbouring queries share. Default: no
            sharing.
        head_dim (`int`, *optional*): features of a head. Default: `hidden_size / num_attention_heads`.
        normalization (`str`, defaults to `"pre"`): a norm before attention and FFN of each layer, or `none`.
        final_norm (`bool`, defaults to `True`): a norm after the last layer.
        norm_type (`str`, defaults to `"layer_norm"`): `layer_norm` or `rms_norm`; `norm_eps` is the epsilon of both.
        position_embedding (`str`, defaults to `"learned"`):
            `learned`, a table of `max_position_embeddings` rows; or `rotary` (arXiv 2104.09864), as in Llama.
        rope_parameters (`dict`, *optional*): of rotary positions, as Transformers has them. Default: a
            `rope_theta` of 10000.
        ffn_type (`str`, defaults to `"mlp"`):
            With `f` for `hidden_act`: `mlp`, `W2 f(W1 x)`; `glu`, `W3 (f(W1 x) * W2 x)` (SwiGLU, ReGLU); `dglu`,
            `W3 (f(W1 x) * f(W2 x))` (dReLU).
        hidden_act (`str`, defaults to `"gelu_new"`): any name of `ACT2FN`; also given as `activation_function`.
        query_key_bias, value_bias, output_bias, ffn_bias (`bool`, default to `True`):
            Biases of the projections of attention to queries and keys, to values, and of its output; of the FFN.
        init_std (`float`, defaults to 0.02): standard deviation of all initial weights; biases are 0.
        scale_residual_init (`bool`, defaults to `True`):
            Divide `init_std` by `sqrt(2 * num_hidden_layers)` for the last projection of attention and FFN, as in
            GPT-2.
        embedding_dropout, dropout, activation_dropout (`float`, default to 0.0):
            Dropout of the input of the first layer, of the output of each attention and FFN, and within the FFN.
        label_smoothing (`float`, defaults to 0.0): of the model's own loss, which holds the regulariser too.
        skip_logits (`bool`, defaults to `False`):
            In training with labels, compute the loss without logits, which are then None in the output. `forward` takes
            the same argument.
    """

    model_type = "reluformer_decoder"
    presets = PRESETS
    more_arguments: ClassVar[tuple[str, ...]] = ("rope_theta", "rope_scaling")
    attribute_map = {"initializer_range": "init_std", "activation_function": "hidden_act"}
    keys_to_ignore_at_inference = [CACHE_NAME, *LOSS_PARTS]

    vocab_size: int = 32000
    max_position_embeddings: int = 1024
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None

    normalization: str = "pre"
    final_norm: bool = True
    norm_type: str = "layer_norm"
    norm_eps: float | int = 1e-5
    position_embedding: str = "learned"
    rope_parameters: dict | None = None
    ffn_type: str = "mlp"
    hidden_act: str = "gelu_new"
    query_key_bias: bool = True
    value_bias: bool = True
    output_bias: bool = True
    ffn_bias: bool = True

    init_std: float | int = 0.02
    scale_residual_init: bool = True
    embedding_dropout: float | int = 0.0
    dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0

    label_smoothing: float | int = 0.0
    skip_logits: bool = False
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: Any) -> None:
        self.take_other_names(kwargs)
        self.resolve_attention()
        self.require_choice("normalization", ("pre", "none"))
        self.require_choice("norm_type", ("layer_norm", "rms_norm"))
        self.require_choice("position_embedding", ("learned", "rotary"))
        self.require_choice("ffn_type", ("mlp", "glu", "dglu"))
        self.require_choice("hidden_act", tuple(ACT2FN))
        require(self, "lie in [0, 1)", "embedding_dropout", "dropout", "attention_dropout", "activation_dropout")
        require(self, "lie in [0, 1)", "label_smoothing")
        require(self, "be a finite number above 0", "init_std", "norm_eps")
        self._resolve_sizes()
        self.check_feed_forward(self.hidden_act, self.num_hidden_layers, self.intermediate_size)
        check_regularization_share(self, self.attention_modules)
        for name, value in {"rope_parameters": self.rope_parameters, **kwargs}.items():
            if name.startswith("rope_") and value is not None and self.position_embedding != "rotary":
                raise ValueError(
                    f"{name}={value} needs position_embedding='rotary'; it is {self.position_embedding!r}."
                )
        super().__post_init__(**kwargs)
        if self.position_embedding == "learned":
            self.rope_parameters = None  # the library makes some for every configuration that has the field
        elif "partial_rotary_factor" in self.rope_parameters:
            raise ValueError("partial_rotary_factor is not supported: rotary positions turn whole heads. Leave it out.")

    def _resolve_sizes(self) -> None:
        require(self, "be at least 1", "vocab_size", "max_position_embeddings", "hidden_size")
        require(self, "be at least 1", "num_hidden_layers", "num_attention_heads")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={self.num_attention_heads}, "
                "or head_dim be given."
            )
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        require(self, "be at least 1", "head_dim", "intermediate_size", "num_key_value_heads")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        if self.position_embedding == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} must be even for position_embedding='rotary', which turns pairs."
            )


ReLUFormerDecoderConfig.register_for_auto_class()
