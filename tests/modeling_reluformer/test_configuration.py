"""What a configuration takes and refuses, and that its fields do what they say."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, PreTrainedModel, ViTConfig

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerDecoderModel,
    ReLUFormerForConditionalGeneration,
    ReLUFormerModel,
    ReLUFormerVisionConfig,
    ReLUFormerVisionModel,
)
from reluformer.modeling_reluformer.attention_reluformer import RULES, require
from reluformer.modeling_reluformer.configuration_reluformer import require_tensor_parallel

from ..conftest import tiny_config
from .exact_models import assert_equals_the_paper, exact_model, padded_batch, use_path, whole_batch

BAD_FIELDS = [
    ({"attention_activation": "swish"}, ["attention_activation", "swish", "relu", "softmax", "entmax15"]),
    ({"attention_scaling": "sqrt"}, ["attention_scaling", "sqrt", "variance", "length", "none"]),
    ({"attention_output_norm": "rms"}, ["attention_output_norm", "rms", "gated_rms"]),
    ({"ffn_output_norm": "rms"}, ["ffn_output_norm", "rms", "layer_norm"]),
    ({"activation_function": "rleu"}, ["activation_function", "rleu", "relu", "softmax"]),
    (
        {"attention_activation": "softmax", "attention_scaling": "variance"},
        ["attention_scaling", "variance", "softmax"],
    ),
    ({"attention_activation": "gelu", "regularization_weight": 0.1}, ["regularization_weight", "0.1", "gelu"]),
    ({"attention_scaling": "length", "attention_gamma_learnable": True}, ["attention_gamma_learnable", "length"]),
    ({"ffn_temperature": 2}, ["ffn_temperature", "2", "softmax"]),
    ({"init_std": 0.0}, ["init_std=0.0 must be a finite number above 0"]),
    ({"d_model": 30, "encoder_attention_heads": 4}, ["d_model", "30", "encoder_attention_heads", "4"]),
    ({"decoder_vocab_size": 7}, ["decoder_vocab_size", "7", "share_encoder_decoder_embeddings"]),
    ({"dropout": 1.0}, ["dropout", "1.0", "[0, 1)"]),
    ({"attention_gamma": float("nan")}, ["attention_gamma", "nan"]),
    ({"attention_alpha": 2.5}, ["attention_alpha", "2.5"]),
    ({"entropy_margin": -1}, ["entropy_margin", "-1"]),
    ({"encoder_layers": 0}, ["encoder_layers", "0"]),
    ({"d_model": "wide"}, ["d_model"]),
    ({"attention_gate": "yes"}, ["attention_gate"]),
    ({"dmodel": 100}, ["'dmodel' is not a field of ReLUFormerConfig; did you mean d_model?"]),
    ({"gamma": 16.0}, ["'gamma'", "did you mean attention_gamma?"]),
    ({"preset": "vanilla"}, ["preset='vanilla'", "use ReLUFormerConfig.from_preset('vanilla', …)"]),
]


@pytest.mark.parametrize(("fields", "words"), BAD_FIELDS, ids=lambda item: ",".join(item))
def test_bad_value_is_refused_with_field_value_and_choices(fields, words):
    with pytest.raises(Exception) as caught:  # strict type checks have an exception class of their own
        ReLUFormerConfig(**fields)
    for word in words:
        assert word in str(caught.value)


def test_the_ends_of_a_range_that_belong_to_it_are_taken():
    for fields in (
        {"dropout": 0.0, "attention_dropout": 0, "label_smoothing": 0.0},
        {"entropy_margin": 0.0},
        {"entropy_margin": 1},
        {"attention_scaling": "length", "attention_alpha": 0},
        {"attention_scaling": "length", "attention_alpha": 2.0},
        {"regularization_weight": 0.0, "ffn_threshold": 0.0},
        {"encoder_layers": 1, "vocab_size": 1},
    ):
        config = ReLUFormerConfig(**fields)
        assert all(getattr(config, name) == value for name, value in fields.items())


def test_an_alpha_that_nothing_reads_is_told(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.configuration_reluformer.logger.warning_once", messages.append)
    ReLUFormerConfig(attention_scaling="length", attention_alpha=0.5), ReLUFormerConfig(attention_alpha=1)
    assert not messages
    ReLUFormerConfig(attention_alpha=0.5)
    assert messages == [
        "attention_alpha=0.5 has no effect: it belongs to attention_scaling='length', and attention_scaling is "
        "'variance'."
    ]


def test_a_name_that_nothing_reads_is_told(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.configuration_reluformer.logger.warning", messages.append)
    known = {"attn_implementation": "eager", "torch_dtype": "float32", "num_attention_heads": 4, "id2label": {0: "a"}}
    ReLUFormerConfig(**known)
    assert ReLUFormerConfig.from_preset("vanilla", attn_implementation="eager")._attn_implementation == "eager"
    saved = ReLUFormerConfig().to_dict() | {"of_another_version": 1}
    assert ReLUFormerConfig.from_dict(saved).of_another_version == 1
    assert not messages
    ReLUFormerConfig(margin=0.5, num_layers=3, foo=1)
    beginnings = ("foo=1", "margin=0.5", "num_layers=3")
    said = "is not a field of ReLUFormerConfig: nothing in the model depends on it."
    guesses = ("", " Did you mean entropy_margin?", " Did you mean num_hidden_layers?")
    assert messages == [f"{name} {said}{guess}" for name, guess in zip(beginnings, guesses, strict=True)]


def test_only_relu_with_variance_scaling_is_regularised_by_default():
    assert ReLUFormerConfig(attention_scaling="length").regularization_weight == 0
    assert ReLUFormerConfig(attention_activation="relu2").regularization_weight == 0
    assert ReLUFormerConfig(attention_activation="softmax").attention_scaling == "none"


def test_tensor_parallelism_is_refused_where_parts_of_it_would_compute_another_model():
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    require_tensor_parallel(tiny_config(**heads, attention_gate=True, attention_qk_norm=True), 4)
    for field, value in {
        "decoder_attention_heads": 2,
        "encoder_attention_heads": 2,
        "attention_output_norm": "gated_rms",
        "attention_gamma_learnable": True,
        "activation_function": "softmax",
        "ffn_top_k": 4,
        "activation_sparsity_pattern": 0.5,
    }.items():
        with pytest.raises(ValueError, match=f"{field}='?{value}'? does not go with tp_size=4"):
            require_tensor_parallel(tiny_config(**{**heads, field: value}), 4)


@pytest.mark.parametrize("processes", [None, 1, 2])
def test_only_several_processes_refuse_what_they_cannot_share(processes, monkeypatch):
    model = ReLUFormerForConditionalGeneration(tiny_config(attention_output_norm="gated_rms"))
    monkeypatch.setattr(PreTrainedModel, "maybe_distribute_model", classmethod(lambda cls, model, *others: model))
    distributed = None if processes is None else SimpleNamespace(tp_size=processes)
    if processes == 2:
        with pytest.raises(ValueError, match="attention_output_norm='gated_rms' does not go with tp_size=2"):
            type(model).maybe_distribute_model(model, distributed)
    else:
        assert type(model).maybe_distribute_model(model, distributed) is model


# field: what the model has beside, and a value that changes its logits or its loss, with the same weights
CHANGES = {
    "vocab_size": ({}, 41),
    "decoder_vocab_size": ({"share_encoder_decoder_embeddings": False}, 50),
    "d_model": ({}, 24),
    "encoder_layers": ({}, 1),
    "encoder_attention_heads": ({}, 2),
    "encoder_ffn_dim": ({}, 16),
    "decoder_layers": ({}, 1),
    "decoder_attention_heads": ({}, 4),
    "decoder_ffn_dim": ({}, 16),
    "attention_activation": ({}, "sigmoid"),
    "attention_scaling": ({}, "length"),
    "attention_gamma": ({}, 1.0),
    "attention_gamma_learnable": ({}, True),
    "attention_alpha": ({"attention_scaling": "length"}, 0.4),
    "attention_output_norm": ({}, "gated_rms"),
    "attention_qk_norm": ({}, True),
    "attention_gate": ({}, True),
    "activation_function": ({}, "gelu"),
    "ffn_output_norm": ({}, "layer_norm"),
    "ffn_temperature": ({"activation_function": "softmax"}, 0.5),
    "label_smoothing": ({}, 0.3),
    "regularization_weight": ({}, 0.25),
    "entropy_margin": ({}, 0.2),
    "scale_embedding": ({}, False),
    "share_encoder_decoder_embeddings": ({}, False),
    "tie_word_embeddings": ({}, False),
    "pad_token_id": ({}, 3),
    "decoder_start_token_id": ({}, 3),
}


def twins(base: dict, changes: dict) -> tuple[ReLUFormerForConditionalGeneration, ReLUFormerForConditionalGeneration]:
    """Two models whose weights are the same wherever they have the same."""
    base = {"regularization_weight": 0.5, **base}
    first, second = exact_model(**base), exact_model(**{**base, **changes})
    weights = dict(first.named_parameters())
    with torch.no_grad():
        for name, parameter in second.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
    return first, second


def numbers(model: ReLUFormerForConditionalGeneration, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model(**batch)
    return [output.logits, output.loss]


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_the_field_changes_the_result_as_the_paper_says(field):
    base, value = CHANGES[field]
    batch = padded_batch("right") if field == "pad_token_id" else whole_batch()
    model, changed = twins(base, {field: value})
    before, after = numbers(model, batch), numbers(changed, batch)
    differences = [
        math.inf if one.shape != two.shape else (one - two).abs().max() for one, two in zip(before, after, strict=True)
    ]
    assert max(differences) > 1e-3
    assert_equals_the_paper(changed, batch)


@pytest.mark.parametrize("path", ["eager", "plain"])
def test_dropout_falls_where_the_paper_has_it(path, monkeypatch):
    """Embeddings, residuals, attention weights and FFN: with the same masks, the whole model is the paper's; each at
    its rate."""
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    fields = {"attn_implementation": use_path(monkeypatch, path), "regularization_weight": 0.5, **rates}
    model = exact_model(**fields).train()
    draw, drawn = torch.nn.functional.dropout, []

    def recorded(values, p=0.5, training=True, inplace=False):
        mask = draw(torch.ones_like(values), p, training)
        drawn.append((p, mask))
        return values * mask

    def drawn_again(field, *shape):
        rate, mask = drawn.pop(0)
        assert rate == rates[field] and mask.shape == shape
        kept[field].append(mask.flatten())
        return mask.numpy()

    kept = {field: [] for field in rates}
    monkeypatch.setattr(torch.nn.functional, "dropout", recorded)
    assert_equals_the_paper(model, padded_batch("right"), dropout=drawn_again)
    assert not drawn
    for field, rate in rates.items():
        masks = torch.cat(kept[field])
        assert set(masks.unique().tolist()) == {0.0, 1 / (1 - rate)}
        deviation = math.sqrt(rate * (1 - rate) / len(masks))
        assert abs((masks == 0).double().mean().item() - rate) < 4 * deviation


def test_init_std_is_the_deviation_of_initial_weights():
    torch.manual_seed(0)
    for std, expected in ((0.5, 0.5), (None, 64**-0.5)):
        model = ReLUFormerForConditionalGeneration(tiny_config(vocab_size=500, d_model=64, init_std=std))
        assert model.model.shared.weight[1:].std().item() == pytest.approx(expected, rel=0.03)
        # of 64 × 64 features, Xavier's uniform numbers lie within sqrt(6 / 128) and deviate by sqrt(2 / 128)
        weight = model.model.encoder.layers[0].self_attn.q_proj.weight
        assert weight.std().item() == pytest.approx(math.sqrt(2 / 128) if std is None else std, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "config", "weight", "deviation"),
    [
        (ReLUFormerModel, ReLUFormerConfig(vocab_size=500, d_model=64, encoder_ffn_dim=8), "shared.weight", 1 / 8),
        (ReLUFormerDecoderModel, ReLUFormerDecoderConfig(vocab_size=500, hidden_size=60), "embed_tokens.weight", 0.02),
        (ReLUFormerVisionModel, ReLUFormerVisionConfig(hidden_size=48), "embeddings.position_embeddings", 48**-0.5),
    ],
    ids=["translation", "decoder", "vision"],
)
def test_a_model_without_its_head_begins_with_weights_of_its_own(kind, config, weight, deviation):
    """Not with torch's, or with the zeros of a parameter that was only made."""
    assert kind(config).get_parameter(weight).std().item() == pytest.approx(deviation, rel=0.1)


def test_the_defaults_are_the_published_architectures():
    """Vaswani et al.'s base model, which the paper takes; GPT-2's and ViT-B/16's sizes as the library has them."""
    base = ReLUFormerConfig()
    for part in ("encoder", "decoder"):
        sizes = [getattr(base, f"{part}_{name}") for name in ("layers", "attention_heads", "ffn_dim")]
        assert sizes == [6, 8, 2048]
    assert (base.d_model, base.dropout, base.attention_dropout, base.label_smoothing) == (512, 0.1, 0.1, 0.1)
    assert (base.activation_function, base.attention_activation, base.attention_scaling) == ("relu", "relu", "variance")
    for ours, theirs, names in (
        (
            ReLUFormerDecoderConfig(),
            GPT2Config(),
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        ),
        (
            ReLUFormerVisionConfig(),
            ViTConfig(),
            (
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "image_size",
                "patch_size",
            ),
        ),
    ):
        assert {name: getattr(ours, name) for name in names} == {name: getattr(theirs, name) for name in names}


# Of each rule: numbers at the ends of its range, and those behind them.
ENDS = {
    "lie in [0, 1)": ((0, 0.999), (-0.001, 1)),
    "lie in (0, 1]": ((0.001, 1), (0, 1.001)),
    "lie in [0, 1]": ((0, 1), (-0.001, 1.001)),
    "be a finite number above 0": ((0.001, 1e9), (0, math.inf, math.nan)),
    "be a finite number of at least 0": ((0, 1e9), (-0.001, math.inf, math.nan)),
    "be at least 1": ((1, 2), (0,)),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_number_is_held_to_its_rule_up_to_the_ends_of_the_range(rule):
    allowed, refused = ENDS[rule]
    for number in allowed:
        require(SimpleNamespace(field=number), rule, "field")
    for number in refused:
        with pytest.raises(ValueError, match=re.escape(f"field={number} must {rule}.")):
            require(SimpleNamespace(field=number), rule, "field")
