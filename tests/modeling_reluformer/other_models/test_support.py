"""Which models are refused when they are asked for ReLU attention, and that those that are not compute it."""

import copy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    BartConfig,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    MixtralConfig,
    PegasusXConfig,
    PreTrainedConfig,
    PreTrainedModel,
    SiglipVisionConfig,
    SwinConfig,
    T5Config,
)

from reluformer import use_relu_attention

from ...conftest import VOCABULARY
from .foreign_cases import SMALL, STABLE, tokens

TEXT = {**SMALL, **STABLE, "max_position_embeddings": 40}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4}
T5_SHAPE = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 16, "num_layers": 1}
STACKS = {f"{part}_{name}": value for part in ("encoder", "decoder")
          for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()}  # fmt: skip
PAIRS = {"vocab_size": VOCABULARY, "d_model": 16, **STACKS, "pad_token_id": 0}
SWIN = {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
# Refused as soon as they are asked for ReLU attention: in all layers, or in some.
AT_ONCE: dict[str, tuple[PreTrainedConfig, str]] = {
    "bloom": (
        BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=4),
        "BloomModel computes attention in code of its own",
    ),
    "pegasus-x": (
        PegasusXConfig(**PAIRS),
        r"has 1 layers that .* PegasusXGlobalLocalAttention \((encoder\.)?layers\.0\.self_attn\)",
    ),
}
# Refused by the first forward pass.
IN_A_CALL: dict[str, tuple[PreTrainedConfig, str]] = {
    "t5": (T5Config(**T5_SHAPE, pad_token_id=0), "T5Attention gives its attention 'position_bias', which"),
    "gemma2": (Gemma2Config(**GROUPED), "Gemma2Attention gives its attention 'softcap'"),
    "gpt-oss": (GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1), "GptOssAttention gives .*'s_aux'"),
    "swin": (SwinConfig(**SWIN), "needs a boolean mask"),
}
COMPUTED: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2),
    "bart": BartConfig(**PAIRS),
    "mixtral, whose router takes a softmax": MixtralConfig(**GROUPED, num_local_experts=2),
    "gemma2 without a soft cap": Gemma2Config(**GROUPED, attn_logit_softcapping=None),
}
ASKED = ["loading", "use_relu_attention"]


def model_of(config: PreTrainedConfig, asked_by: str | None) -> PreTrainedModel:
    """A model with ReLU attention; with softmax where nobody asked."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    if asked_by == "loading":
        config.reluformer = {"gamma": 2.0}
    name = "reluformer" if asked_by == "loading" else "eager"
    model = AutoModel.from_config(config, attn_implementation=name).eval()
    return use_relu_attention(model, gamma=2.0) if asked_by == "use_relu_attention" else model


def computed(model: PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {model.main_input_name: tokens(2, 7)}
    if model.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 4)
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("asked_by", ASKED)
@pytest.mark.parametrize("family", AT_ONCE)
def test_own_code_is_refused_at_once(family, asked_by):
    config, message = AT_ONCE[family]
    with pytest.raises(ValueError, match=message):
        model_of(config, asked_by)


@pytest.mark.parametrize("family", IN_A_CALL)
def test_what_a_call_shows_is_refused_by_the_first(family):
    config, message = IN_A_CALL[family]
    with pytest.raises(ValueError, match=message):
        computed(model_of(config, "use_relu_attention"))


@pytest.mark.parametrize("family", COMPUTED)
def test_other_families_are_computed_without_a_warning(family, caplog):
    config = COMPUTED[family]
    found = computed(model_of(config, "loading"))
    assert found.isfinite().all() and (found - computed(model_of(config, None))).abs().max() > 1e-5
    assert torch.equal(computed(model_of(config, "use_relu_attention")), found)
    assert "softmax" not in caplog.text


@pytest.mark.parametrize("asked_by", ASKED)
def test_a_head_that_stays_softmax_is_warned_of(asked_by, caplog):
    config = SiglipVisionConfig(**SMALL, image_size=32, patch_size=8)
    found = computed(model_of(config, asked_by))
    assert "stay softmax: MultiheadAttention (head.attention)." in caplog.text
    assert (found - computed(model_of(config, None))).abs().max() > 1e-5
