"""Which models are refused when they are asked for ReLU attention, and that the answer is what would happen."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    Aimv2VisionConfig,
    AlbertConfig,
    AutoModel,
    BartConfig,
    BeitConfig,
    BigBirdPegasusConfig,
    BloomConfig,
    DebertaV2Config,
    FNetConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LayoutLMConfig,
    LongT5Config,
    MambaConfig,
    MixtralConfig,
    MT5Config,
    PegasusXConfig,
    PoolFormerConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    SiglipVisionConfig,
    SwinConfig,
    Swinv2Config,
    SwitchTransformersConfig,
    T5Config,
    UMT5Config,
    Wav2Vec2ConformerConfig,
    XLNetConfig,
)

from reluformer import use_relu_attention
from reluformer.modeling_reluformer.other_models import saving as saving_foreign
from reluformer.modeling_reluformer.other_models.support import refuse_unsupported

from ...conftest import VOCABULARY
from .foreign_cases import SMALL, STABLE, tokens

TEXT = {**SMALL, **STABLE, "max_position_embeddings": 40}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4}
T5_SHAPE = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 4,
    "num_heads": 4,
    "d_ff": 16,
    "num_layers": 1,
    "pad_token_id": 0,
}
SWIN_SHAPE = {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
BART_SHAPE = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()
}
SPEECH = {
    **SMALL,
    "num_hidden_layers": 1,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 4),
    "conv_stride": (2, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
BIAS = "gives its attention 'position_bias': a bias added to the scores"
OWN = "computes attention in code of its own"
INSIDE = "has layers that compute softmax attention in code of their own"
SINK = "'s_aux': an attention sink"
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "t5": (T5Config(**T5_SHAPE), f"T5Attention {BIAS}"),
    "mt5": (MT5Config(**T5_SHAPE), f"MT5Attention {BIAS}"),
    "umt5": (UMT5Config(**T5_SHAPE), f"UMT5Attention {BIAS}"),
    "longt5": (
        LongT5Config(**T5_SHAPE, encoder_attention_type="local"),
        f"LongT5Attention {BIAS}|LongT5Stack {INSIDE}.*LongT5LocalAttention",
    ),
    "switch": (SwitchTransformersConfig(**T5_SHAPE, num_experts=2), f"SwitchTransformersAttention {BIAS}"),
    "layoutlm": (LayoutLMConfig(**TEXT), "LayoutLMModel makes 'extended_attention_mask', an additive mask"),
    "swin": (SwinConfig(**SWIN_SHAPE), "SwinAttention gives its attention 'combined_mask' as the mask: a bias"),
    "swinv2": (Swinv2Config(**SWIN_SHAPE), f"Swinv2Model {OWN}"),
    "gemma2": (Gemma2Config(**GROUPED), "Gemma2Attention gives its attention 'softcap': a soft cap bends the scores"),
    "gpt-oss": (GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1), f"GptOssAttention .*{SINK}"),
    "deberta": (DebertaV2Config(**TEXT), f"DebertaV2Model {OWN}"),
    "bloom": (BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=4), f"BloomModel {OWN}"),
    "xlnet": (XLNetConfig(vocab_size=VOCABULARY, d_model=16, n_layer=1, n_head=4, d_inner=16), f"XLNetModel {OWN}"),
}
COMPUTED: dict[str, PreTrainedConfig] = {
    "albert": AlbertConfig(**TEXT, embedding_size=8),
    "roberta": RobertaConfig(**TEXT),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2),
    "bart": BartConfig(vocab_size=VOCABULARY, d_model=16, **BART_SHAPE, pad_token_id=0),
    "mixtral, whose router takes a softmax": MixtralConfig(**GROUPED, num_local_experts=2),
    "gemma2 without a soft cap": Gemma2Config(**GROUPED, attn_logit_softcapping=None),
    "conformer with rotary positions": Wav2Vec2ConformerConfig(**SPEECH, position_embeddings_type="rotary"),
}
# The class alone does not show it: the bias depends on the configuration, or comes from outside.
AT_THE_FIRST_FORWARD = {
    "conformer with relative positions": Wav2Vec2ConformerConfig(**SPEECH, position_embeddings_type="relative"),
    "beit": BeitConfig(**SMALL, image_size=32, patch_size=8, use_relative_position_bias=True),
}


BIRD = {"vocab_size": VOCABULARY, "d_model": 16, **BART_SHAPE, "pad_token_id": 0}
SOFTMAX_LAYERS: dict[str, tuple[PreTrainedConfig, str]] = {
    "pegasus-x": (PegasusXConfig(**BIRD), r"PegasusXGlobalLocalAttention \((encoder\.)?layers\.0\.self_attn\)"),
    "bigbird in blocks": (BigBirdPegasusConfig(**BIRD), "BigBirdPegasusBlockSparseAttention"),
    "bigbird": (BigBirdPegasusConfig(**BIRD, attention_type="original_full"), "BigBirdPegasusSelfAttention"),
}
SOFTMAX_HEADS: dict[str, tuple[PreTrainedConfig, str]] = {
    "siglip": (SiglipVisionConfig(**SMALL, image_size=32, patch_size=8), "MultiheadAttention (head.attention)"),
    "aimv2": (Aimv2VisionConfig(**SMALL, image_size=32, patch_size=8), "Aimv2AttentionPoolingHead (head)"),
}
NO_ATTENTION: dict[str, PreTrainedConfig] = {
    "fnet": FNetConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, intermediate_size=16),
    "mamba": MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4),
    "poolformer": PoolFormerConfig(hidden_sizes=[8] * 4, depths=[1] * 4),
}


def model_of(config: PreTrainedConfig, implementation: str = "reluformer") -> PreTrainedModel:
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    if implementation == "reluformer":
        config.reluformer = {"gamma": 2.0}
    return AutoModel.from_config(config, attn_implementation=implementation).eval()


def computed(model: PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {model.main_input_name: tokens(2, 7)}
    if model.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    elif model.main_input_name == "input_values":
        inputs = {"input_values": torch.randn(2, 200, generator=generator)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(2, 4)
    with torch.no_grad():
        return model(**inputs)[0]


def softmax(config: PreTrainedConfig) -> torch.Tensor:
    return computed(model_of(config, "eager"))


@pytest.mark.parametrize("family", REFUSED)
def test_is_refused_when_asked_for(family):
    config, message = REFUSED[family]
    with pytest.raises(ValueError, match=message):
        model_of(config)
    model = model_of(config, "eager")
    with pytest.raises(ValueError, match=message):
        use_relu_attention(model, gamma=2.0)
    assert model.config._attn_implementation == "eager" and "reluformer" not in model.config.__dict__


@pytest.mark.parametrize("family", REFUSED)
def test_is_refused_for_a_reason(family, monkeypatch):
    """Without the refusal: an error at the first forward, softmax, or softmax with masks that are not its own."""
    config, message = REFUSED[family]
    monkeypatch.setattr(saving_foreign, "refuse_unsupported", lambda module: None)
    monkeypatch.setattr(saving_foreign, "refuse_softmax_layers", lambda *arguments: None)
    model = model_of(config)
    if OWN not in message:
        with pytest.raises(ValueError, match=r"gives its attention|needs a boolean mask"):
            computed(model)
    elif family == "bloom":  # takes the boolean mask for numbers to add
        assert not torch.allclose(computed(model), softmax(config))
    else:
        assert torch.equal(computed(model), softmax(config))


@pytest.mark.parametrize("family", COMPUTED)
def test_is_computed(family):
    config = COMPUTED[family]
    found, expected = computed(model_of(config)), softmax(config)
    assert found.isfinite().all() and (found - expected).abs().max() > 1e-5
    model = use_relu_attention(model_of(config, "eager"), gamma=2.0)
    assert torch.equal(computed(model), found)


@pytest.mark.parametrize("family", AT_THE_FIRST_FORWARD)
def test_is_refused_at_the_first_forward_at_the_latest(family):
    model = model_of(AT_THE_FIRST_FORWARD[family])
    with pytest.raises(ValueError, match=r"gives its attention 'position_bias'|needs a boolean mask"):
        computed(model)


@pytest.mark.parametrize("family", SOFTMAX_LAYERS)
def test_layers_that_would_stay_softmax_are_refused(family):
    config, message = SOFTMAX_LAYERS[family]
    with pytest.raises(ValueError, match=f"{INSIDE}.*{message}"):
        model_of(config)
    model = model_of(config, "eager")
    with pytest.raises(ValueError, match=f"{INSIDE}.*{message}"):
        use_relu_attention(model)
    assert model.config._attn_implementation == "eager" and "reluformer" not in model.config.__dict__


@pytest.mark.parametrize("asked_by", ["loading", "use_relu_attention"])
@pytest.mark.parametrize("family", SOFTMAX_HEADS)
def test_heads_that_stay_softmax_are_warned_of_and_the_layers_are_computed(family, asked_by, caplog):
    config, named = SOFTMAX_HEADS[family]
    model = model_of(config) if asked_by == "loading" else use_relu_attention(model_of(config, "eager"), gamma=2.0)
    assert f"stay softmax: {named}." in caplog.text
    assert (computed(model) - softmax(config)).abs().max() > 1e-5


@pytest.mark.parametrize("family", NO_ATTENTION)
def test_a_model_without_attention_is_refused(family):
    model = model_of(NO_ATTENTION[family], "eager")
    with pytest.raises(ValueError, match="has no module that calls Transformers' attention interface"):
        use_relu_attention(model)
    assert model.config._attn_implementation == "eager" and "reluformer" not in model.config.__dict__


def test_families_that_are_computed_are_not_warned_of(caplog):
    for config in COMPUTED.values():
        use_relu_attention(model_of(config, "eager"))
    assert "softmax" not in caplog.text


class ProductAsMask(nn.Module):
    """Its mask shows only by the product of matrices that it is a bias: no name says so."""

    def forward(self, hidden, positions):
        mask = hidden @ positions
        return attention_interface(self, hidden, hidden, hidden, mask)  # noqa: F821


def test_a_product_of_matrices_is_a_bias():
    with pytest.raises(ValueError, match="ProductAsMask gives its attention 'mask' as the mask: a bias"):
        refuse_unsupported(ProductAsMask())
