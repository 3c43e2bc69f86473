"""`use_relu_attention`: its settings, what one call of attention refuses, compact masks, and which models are
refused."""

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sdpa_mask,
    sliding_window_overlay,
)
from transformers.masking_utils import sliding_window_causal_mask_function as sliding_window
from transformers.utils.logging import warning_once

from reluformer import use_relu_attention
from reluformer.modeling_reluformer.other_models import attention as attention_foreign
from reluformer.modeling_reluformer.other_models import trial, use
from reluformer.modeling_reluformer.other_models.attention import (
    VisibilityMask,
    relu_attention_forward,
    relu_attention_mask,
)

from ...conftest import VOCABULARY, tiny_model
from .foreign_cases import SMALL, STABLE, bert_config, build, llama_config, padding, tokens


@pytest.fixture
def warnings():
    """What the attention logs, as in a new process."""
    warning_once.cache_clear()
    handler, messages = logging.Handler(), []
    handler.emit = lambda record: messages.append(record.getMessage())
    attention_foreign.logger.addHandler(handler)
    yield messages
    attention_foreign.logger.removeHandler(handler)


def test_the_three_ways_to_ask_are_one():
    ids, results = tokens(2, 7), []
    for way in ("built", "set", "used"):
        model = build("bert", "reluformer" if way == "built" else "sdpa")
        if way == "set":
            model.set_attn_implementation("reluformer")
        elif way == "used":
            assert use_relu_attention(model, gamma=0.6) is model
            assert model.config.reluformer["activation"] == "relu" and model.config.reluformer["gamma"] == 0.6
        results.append(model(ids).last_hidden_state)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert (build("bert", "sdpa")(ids).last_hidden_state - results[0]).abs().max() > 0.1


def test_defaults_and_the_reference_are_said_once(warnings):
    model = transformers.AutoModel.from_config(
        transformers.BertConfig(**{**SMALL, **STABLE}), attn_implementation="reluformer"
    ).eval()
    for _ in range(2):
        model(tokens(2, 7))
    assert len(warnings) == 1 and "BertConfig" in warnings[0] and "gamma=16.0" in warnings[0], warnings
    build("mistral")(tokens(2, 7))
    assert len(warnings) == 1, "a sliding window has a compact form"
    model = build("modernbert")
    for _ in range(2):
        model(tokens(2, 7))
    assert len(warnings) == 2 and "a window on both sides" in warnings[1], warnings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"gama": 8.0},
            "'gama' is no setting of ReLU attention; did you mean gamma\\? They are activation, scaling, gamma",
        ),
        ({"attention_scaling": "none"}, "'attention_scaling' is no setting .*; did you mean scaling\\?"),
        ({"preset": "rela"}, "'preset' is no setting of ReLU attention; they are activation, "),
        ({"gamma": "8"}, "gamma must be a number; got '8'"),
        ({"gamma": torch.tensor(8.0)}, "gamma must be a number; got torch.float32 \\(\\)"),
        ({"regularization_weight": None}, "regularization_weight must be a number; got None"),
        ({"activation": "softmax"}, "'softmax' is not point-wise; choose one of relu, .* attn_implementation='sdpa'"),
        ({"regularization_weight": -1}, "regularization_weight=-1 must be finite and at least 0"),
        ({"regularization_weight": 0.1, "entropy_margin": 2}, "entropy_margin=2 from 0 to 1"),
        ({"activation": "gelu", "regularization_weight": 0.1}, "L_reg needs weights that are never negative.*'gelu'"),
        ({"alpha": 1.0}, "alpha belongs to scaling='length'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build("bert", reluformer=settings)(tokens(1, 4))
    with pytest.raises((TypeError, ValueError), match=message):
        use_relu_attention(build("bert", "sdpa"), **settings)


def test_a_margin_without_effect_is_refused():
    with pytest.raises(ValueError, match="belongs to a regularization_weight above 0"):
        use_relu_attention(build("bert", "sdpa"), entropy_margin=0.5)


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_weights_are_returned_on_demand(family):
    model = build(family)
    inputs = {"input_ids": tokens(2, 5), **({"decoder_input_ids": tokens(2, 4)} if family == "marian" else {})}
    names = ["encoder_attentions", "decoder_attentions", "cross_attentions"] if family == "marian" else ["attentions"]
    output = model(**inputs, output_attentions=True)
    for name in names:
        weights = output[name]
        assert len(weights) == 2 and weights[0].min() == 0
        assert (weights[0].sum(-1) - 1).abs().max() > 0.01, "rows that sum to one are softmax's"
    assert not model(**inputs).get(names[0])


def call(mask, **keywords):
    module = build("llama").model.layers[0].self_attn
    query, key = torch.ones(2, 4, 3, 4), torch.ones(2, 2, keywords.pop("keys", 3), 4)
    return relu_attention_forward(module, query, key, key, mask, **keywords)[0]


@pytest.mark.parametrize(
    ("mask", "keywords", "message"),
    [
        (torch.zeros(2, 1, 3, 3), {}, "needs a boolean mask.*float32"),
        (
            torch.ones(2, 1, 3, 5, dtype=torch.bool),
            {},
            r"broadcasts to .*\(2, 4, 3, 3\); got torch.bool \(2, 1, 3, 5\)",
        ),
        (None, {"keys": 5}, "causal and gives no mask for 3 queries and 5 keys"),
    ],
)
def test_masks_that_say_too_little_are_refused(mask, keywords, message):
    with pytest.raises(ValueError, match=message):
        call(mask, **keywords)


def test_without_a_mask_the_module_says_whether_it_is_causal():
    assert torch.equal(call(None), call(torch.ones(3, 3).tril().bool()[None, None]))
    assert torch.equal(call(None, is_causal=False), call(torch.ones(1, 1, 1, 3, dtype=torch.bool)))
    assert not torch.equal(call(None), call(None, is_causal=False))


def test_other_objects_are_refused():
    with pytest.raises(ValueError, match='"reluformer"` is not supported by attention_activation'):
        tiny_model(attn_implementation="reluformer")
    with pytest.raises(ValueError, match="has ReLU attention already"):
        use_relu_attention(tiny_model())
    with pytest.raises(TypeError, match=r"\(a PreTrainedModel\); got torch\.nn\.modules\.linear\.Linear\."):
        use_relu_attention(torch.nn.Linear(2, 2))


def test_nothing_else_is_registered_or_computed(monkeypatch):
    """Every other entry of the library's registries is the library's, and a model that asks for nothing calls none of
    ours."""
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        registered = dict(registry._global_mapping)
        assert registered.pop("reluformer").__module__.startswith("reluformer.")
        assert all(function.__module__.startswith("transformers.") for function in registered.values()), registered
    monkeypatch.setattr(attention_foreign, "_settings_of", None)
    model = transformers.AutoModelForSeq2SeqLM.from_config(build("marian").config, attn_implementation="sdpa")
    model(input_ids=tokens(2, 5), decoder_input_ids=tokens(2, 4))
    assert transformers.AutoModel.from_config(bert_config()).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "window"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_a_compact_mask_stands_for_a_whole_one(kind, side):
    keywords = {"batch_size": 3, "q_length": 3, "kv_length": 7, "q_offset": 4, "attention_mask": padding(side)}
    if keywords["attention_mask"] is not None:
        keywords["attention_mask"] = keywords["attention_mask"].bool()
    if kind == "bidirectional":
        keywords["mask_function"] = bidirectional_mask_function
    elif kind == "window":
        keywords |= {"mask_function": sliding_window(3), "local_size": 3}
    mask = relu_attention_mask(**keywords)
    whole = sdpa_mask(**keywords, allow_is_causal_skip=False)
    assert isinstance(mask, VisibilityMask) and mask.shape == whole.shape and mask.dtype == torch.bool
    assert torch.equal(mask.dense(), whole)
    assert torch.equal(mask.visible_keys, whole[:, 0].sum(-1).clamp_min(1).float())
    for moved in (mask.detach(), mask.to("meta"), mask.contiguous()):
        assert isinstance(moved, VisibilityMask) and moved.shape == whole.shape
    assert mask.to("meta").visible_keys.device.type == "meta"
    assert torch.equal(mask[:, :, :2, 1:], whole[:, :, :2, 1:]) and type(mask[:, :, :2]) is torch.Tensor
    assert torch.equal(mask & whole, whole)
    assert torch.equal(mask.float(), whole.float()) and mask.float().dtype == torch.float32
    with pytest.raises(RuntimeError, match="no elements"):
        mask.fill_(True)


@pytest.mark.parametrize("seen", [3, 4, 5])
def test_keys_beyond_the_padding_mask_are_hidden(seen):
    sizes = {"batch_size": 2, "q_length": 3, "kv_length": 5, "q_offset": 2, "mask_function": causal_mask_function}
    found = relu_attention_mask(**sizes, attention_mask=torch.ones(2, seen, dtype=torch.bool))
    padded = torch.arange(5).expand(2, 5) < seen
    assert torch.equal(found.dense(), sdpa_mask(**sizes, attention_mask=padded, allow_is_causal_skip=False))


def test_a_window_that_hides_keys_from_later_queries_is_kept():
    """All keys fit into the window, but the last queries are further away from the first of them."""
    for queries, window in ((6, 4), (7, 6)):
        found = relu_attention_mask(1, queries, 3, mask_function=sliding_window(window), local_size=window)
        assert not found[0, 0, queries - 1, 0] and found[0, 0, window - 1, 0]


@pytest.mark.parametrize(
    "other",
    [
        chunked_causal_mask_function(3, torch.tensor([0])),
        and_masks(sliding_window(3), causal_mask_function),
        and_masks(causal_mask_function, sliding_window(3)),
        or_masks(sliding_window_overlay(3), causal_mask_function),
    ],
)
def test_what_only_looks_like_a_sliding_window_stays_whole(other):
    sizes = {"batch_size": 1, "q_length": 7, "kv_length": 7, "mask_function": other}
    found = relu_attention_mask(**sizes, local_size=3)
    assert type(found) is torch.Tensor and torch.equal(found, sdpa_mask(**sizes, allow_is_causal_skip=False))


def test_traced_masks_are_ordinary_tensors(monkeypatch):
    """`torch.compile` could not look into another kind."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mask = relu_attention_mask(batch_size=2, q_length=3, kv_length=3)
    assert type(mask) is torch.Tensor and torch.equal(mask, torch.ones(3, 3).tril().bool().expand(2, 1, 3, 3))


# Which models are refused, and that those that are not compute it.

TEXT = {**SMALL, **STABLE, "max_position_embeddings": 40}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4}
T5_SHAPE = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 16, "num_layers": 1}
STACKS = {f"{part}_{name}": value for part in ("encoder", "decoder")
          for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()}  # fmt: skip
PAIRS = {"vocab_size": VOCABULARY, "d_model": 16, **STACKS, "pad_token_id": 0}
SWIN = {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
LAYOUT = {"max_2d_position_embeddings": 40}
# Refused as soon as they are asked for ReLU attention: in all layers, or in some.
AT_ONCE: dict[str, tuple[transformers.PreTrainedConfig, str]] = {
    "bloom": (
        transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=4),
        "BloomModel computes attention in code of its own",
    ),
    "pegasus-x": (
        transformers.PegasusXConfig(**PAIRS),
        r"has 1 layers that .* PegasusXGlobalLocalAttention \((encoder\.)?layers\.0\.self_attn\)",
    ),
}
# Refused by `use_relu_attention`, which tries a forward pass; where they are loaded with ReLU attention, by the first
# one.
IN_A_CALL: dict[str, tuple[transformers.PreTrainedConfig, str]] = {
    "t5": (transformers.T5Config(**T5_SHAPE, pad_token_id=0), "T5Attention gives its attention 'position_bias', which"),
    "gemma2": (transformers.Gemma2Config(**GROUPED), "Gemma2Attention gives its attention 'softcap'"),
    "gpt-oss": (
        transformers.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1),
        "GptOssAttention gives .*'s_aux'",
    ),
    "swin": (
        transformers.SwinConfig(**SWIN),
        "needs a boolean mask.* got torch.float32 .*load it with 'eager' or 'sdpa'",
    ),
    "layoutlm": (transformers.LayoutLMConfig(**TEXT, **LAYOUT), "needs a boolean mask.* got torch.float32"),
    "conformer": (
        transformers.Wav2Vec2ConformerConfig(
            **SMALL,
            conv_dim=(8, 8),
            conv_stride=(4, 4),
            conv_kernel=(4, 4),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
        "Wav2Vec2ConformerSelfAttention gives its attention 'position_bias'",
    ),
}
COMPUTED: dict[str, transformers.PreTrainedConfig] = {
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    "bart": transformers.BartConfig(**PAIRS),
    "mixtral, whose router takes a softmax": transformers.MixtralConfig(**GROUPED, num_local_experts=2),
    "gemma2 without a soft cap": transformers.Gemma2Config(**GROUPED, attn_logit_softcapping=None),
    "whisper": transformers.WhisperConfig(
        **{**PAIRS, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20},
        **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
}
ASKED = ["loading", "use_relu_attention"]


def model_of(config: transformers.PreTrainedConfig, asked_by: str | None) -> transformers.PreTrainedModel:
    """A model with ReLU attention; with softmax where nobody asked."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    if asked_by == "loading":
        config.reluformer = {"gamma": 2.0}
    name = "reluformer" if asked_by == "loading" else "eager"
    model = transformers.AutoModel.from_config(config, attn_implementation=name).eval()
    return use_relu_attention(model, gamma=2.0) if asked_by == "use_relu_attention" else model


def computed(model: transformers.PreTrainedModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {model.main_input_name: tokens(2, 7)}
    if model.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    if model.main_input_name == "input_values":
        inputs = {"input_values": torch.randn(2, 200, generator=generator)}
    if model.main_input_name == "input_features":
        inputs = {"input_features": torch.randn(2, 8, 40, generator=generator)}
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
def test_what_a_call_shows_is_refused_by_a_trial_or_by_the_first(family):
    config, message = IN_A_CALL[family]
    model, state = model_of(config, None), torch.get_rng_state()
    before = computed(model)
    for settings in ({}, {"gamma": 2.0}):
        with pytest.raises(ValueError, match=f"{type(model).__name__} cannot compute ReLU attention: .*{message}"):
            use_relu_attention(model, **settings)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config._attn_implementation == "eager" and not hasattr(model.config, "reluformer")
    assert torch.equal(computed(model), before)
    with pytest.raises(ValueError, match=message):
        computed(model_of(config, "loading"))


def test_an_encoder_alone_is_tried_without_a_target():
    with pytest.raises(ValueError, match="T5EncoderModel cannot compute ReLU attention"):
        use_relu_attention(transformers.T5EncoderModel(copy.deepcopy(IN_A_CALL["t5"][0])))


def test_a_model_without_attention_is_refused():
    model = transformers.MambaModel(
        transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(ValueError, match="MambaModel has no attention that Transformers' attention interface computes"):
        use_relu_attention(model)


def test_attention_of_a_class_typed_in_by_a_user_is_not_looked_for_in_a_source(monkeypatch):
    """It has none that Python could read."""
    model = transformers.T5Model(copy.deepcopy(IN_A_CALL["t5"][0]))
    monkeypatch.setattr(use, "_sources", lambda kind: [])
    with pytest.raises(ValueError, match="T5Model has no attention"):
        use._refuse_without_attention(model)
    monkeypatch.setattr(type(model.encoder.block[0].layer[0]), "__module__", "__main__")
    use._refuse_without_attention(model)


def test_a_model_that_cannot_be_tried_is_refused_by_its_first_pass(caplog):
    """Its class is built from more than a config. The log says so to who looks for it."""

    class WithMore(transformers.T5Model):
        def __init__(self, config, more):
            super().__init__(config)

    config = copy.deepcopy(IN_A_CALL["t5"][0])
    model = WithMore(config, "more").eval()
    caplog.set_level(logging.INFO, trial.logger.name)
    assert use_relu_attention(model) is model
    assert "WithMore was not tried with ReLU attention before its first forward pass: TypeError" in caplog.text
    with pytest.raises(ValueError, match="T5Attention gives its attention 'position_bias'"):
        computed(model)


def test_it_may_be_called_again(caplog):
    """The second call changes the settings, and the trial says nothing of the first one's."""
    model = model_of(COMPUTED["gpt2"], None)
    results = [computed(use_relu_attention(model, gamma=gamma)) for gamma in (2.0, 4.0, 2.0)]
    assert torch.equal(results[0], results[2]) and not torch.equal(results[0], results[1])
    assert not caplog.text


def test_it_may_be_called_again_on_a_model_of_several_parts(caplog):
    """Each part has a config of its own, which holds the settings of the first call."""
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=SMALL, vision_config=vision)).eval()
    for gamma in (2.0, 4.0):
        use_relu_attention(model, gamma=gamma)
        assert model.config.text_config.reluformer["gamma"] == model.config.vision_config.reluformer["gamma"] == gamma
    assert not caplog.text


@pytest.mark.parametrize("family", COMPUTED)
def test_other_families_are_computed_without_a_warning(family, caplog):
    config = COMPUTED[family]
    found = computed(model_of(config, "loading"))
    assert found.isfinite().all() and (found - computed(model_of(config, None))).abs().max() > 1e-5
    assert torch.equal(computed(model_of(config, "use_relu_attention")), found)
    assert "softmax" not in caplog.text


@pytest.mark.parametrize("asked_by", ASKED)
def test_a_head_that_stays_softmax_is_warned_of(asked_by, caplog):
    config = transformers.SiglipVisionConfig(**SMALL, image_size=32, patch_size=8)
    found = computed(model_of(config, asked_by))
    assert "stay softmax: MultiheadAttention (head.attention)." in caplog.text
    assert (found - computed(model_of(config, None))).abs().max() > 1e-5


def test_numbers_of_numpy_can_be_saved(tmp_path):
    model = use_relu_attention(transformers.LlamaForCausalLM(llama_config()), gamma=np.float32(3))
    model.save_pretrained(tmp_path)
    assert transformers.AutoConfig.from_pretrained(tmp_path).reluformer["gamma"] == 3.0


def test_another_model_is_one_graph():
    model = use_relu_attention(transformers.LlamaForCausalLM(llama_config()).eval(), gamma=2.0)
    ids = tokens(2, 7)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")(input_ids=ids).logits
    torch.testing.assert_close(compiled, expected)
