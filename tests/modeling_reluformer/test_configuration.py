import json

import pytest
from transformers import AutoConfig

from reluformer import ReLUFormerConfig

from ..conftest import tiny_config

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
    (
        {"attention_activation": "gelu", "regularization_weight": 0.1},
        ["regularization_weight", "0.1", "gelu", "softplus"],
    ),
    ({"attention_activation": "softmax", "regularization_weight": 0.1}, ["regularization_weight", "softmax"]),
    (
        {"attention_scaling": "length", "attention_gamma_learnable": True},
        ["attention_gamma_learnable", "variance", "length"],
    ),
    ({"ffn_temperature": 2}, ["ffn_temperature", "2", "softmax"]),
    ({"d_model": 30, "encoder_attention_heads": 4}, ["d_model", "30", "encoder_attention_heads", "4"]),
    ({"decoder_vocab_size": 7}, ["decoder_vocab_size", "7", "share_encoder_decoder_embeddings"]),
    ({"dropout": 1.0}, ["dropout", "1.0", "[0, 1)"]),
    ({"attention_dropout": -0.1}, ["attention_dropout", "-0.1"]),
    ({"label_smoothing": 1.5}, ["label_smoothing", "1.5"]),
    ({"attention_gamma": 0}, ["attention_gamma", "0"]),
    ({"attention_gamma": float("nan")}, ["attention_gamma", "nan"]),
    ({"attention_alpha": 2.5}, ["attention_alpha", "2.5"]),
    ({"entropy_margin": -1}, ["entropy_margin", "-1"]),
    ({"regularization_weight": -1}, ["regularization_weight", "-1"]),
    ({"encoder_layers": 0}, ["encoder_layers", "0"]),
    ({"d_model": "wide"}, ["d_model"]),
    ({"hidden_size": 30, "num_attention_heads": 7}, ["30", "7"]),
    ({"attention_gate": "yes"}, ["attention_gate"]),
    ({"is_encoder_decoder": False}, ["is_encoder_decoder", "False", "True"]),
    ({"dmodel": 100}, ["'dmodel' is not a field of ReLUFormerConfig; did you mean d_model?"]),
    ({"gamma": 16.0}, ["'gamma'", "did you mean attention_gamma?"]),
]


@pytest.mark.parametrize(("fields", "words"), BAD_FIELDS, ids=lambda item: ",".join(item))
def test_bad_value_is_refused_with_field_value_and_choices(fields, words):
    with pytest.raises(Exception) as caught:  # strict type checks have an exception class of their own
        ReLUFormerConfig(**fields)
    for word in words:
        assert word in str(caught.value)


def test_an_alpha_that_nothing_reads_is_told(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.configuration_reluformer.logger.warning_once", messages.append)
    ReLUFormerConfig(attention_scaling="length", attention_alpha=0.5), ReLUFormerConfig(attention_alpha=1)
    assert not messages
    ReLUFormerConfig(attention_alpha=0.5)
    assert messages == [
        "attention_alpha=0.5 has no effect: it belongs to attention_scaling='length', and attention_scaling is 'variance'."
    ]


def test_unknown_preset_and_unknown_field_are_refused():
    with pytest.raises(ValueError, match=r"'relufromer' is unknown; choose one of reluformer, vanilla, sparsemax"):
        ReLUFormerConfig.from_preset("relufromer")
    with pytest.raises(ValueError, match=r"'attention_gama' is not a field.*did you mean attention_gamma"):
        ReLUFormerConfig.from_preset("reluformer", attention_gama=3)


def test_names_of_other_versions_and_of_users_pass(tmp_path):
    """What is no slip stays an attribute; a saved configuration may have any name, as a later version writes others."""
    assert ReLUFormerConfig(sep_token_id=3, my_note="x").my_note == "x"
    ReLUFormerConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "d_models": 7}))
    assert ReLUFormerConfig.from_pretrained(tmp_path).d_models == 7


def test_defaults_are_the_papers_wmt14_size():
    config = ReLUFormerConfig()
    expected = {
        **{"vocab_size": 32000, "decoder_vocab_size": 32000, "max_position_embeddings": 1024, "d_model": 512},
        **{f"{part}_layers": 6 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 8 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 2048 for part in ("encoder", "decoder")},
        **{
            "attention_activation": "relu",
            "attention_scaling": "variance",
            "attention_gamma": 8.0,
            "attention_alpha": 1.0,
        },
        **{"attention_gamma_learnable": False, "attention_qk_norm": False, "attention_gate": False},
        **{
            "attention_output_norm": "none",
            "ffn_output_norm": "none",
            "activation_function": "relu",
            "ffn_temperature": 1.0,
        },
        **{"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0, "label_smoothing": 0.1},
        **{"regularization_weight": 0.01, "entropy_margin": 0.7, "init_std": None, "scale_embedding": True},
        **{"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "use_cache": True},
        **{
            "is_encoder_decoder": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (512, 6, 8)


SIZES = [
    "vocab_size",
    "max_position_embeddings",
    "encoder_layers",
    "decoder_layers",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
]


@pytest.mark.parametrize(
    ("names", "least", "most"),
    [
        (["dropout", "attention_dropout", "activation_dropout", "label_smoothing"], 0, 0.999),
        (["attention_alpha"], 0, 2),
        (["entropy_margin"], 0, 1),
        (["attention_gamma"], 1e-6, 1e6),
        (["regularization_weight"], 0, 1e6),
        (SIZES, 1, 3),
    ],
)
def test_bounds_are_allowed_and_what_lies_beyond_is_not(names, least, most):
    for name in names:
        shared = {"decoder_vocab_size": None} if name == "vocab_size" else {}
        for value in (least, most):
            assert getattr(ReLUFormerConfig(**{name: value}, **shared), name) == value
        for value in (least - 1, float("inf")):
            with pytest.raises(Exception, match=name):
                ReLUFormerConfig(**{name: value}, **shared)


def test_one_head_of_one_feature_is_allowed_and_no_head_is_not():
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    assert ReLUFormerConfig(d_model=1, **heads).d_model == 1
    with pytest.raises(ValueError, match="decoder_attention_heads=0"):
        ReLUFormerConfig(d_model=1, **{**heads, "decoder_attention_heads": 0})


def test_only_relu_with_variance_scaling_is_regularised_by_default():
    assert ReLUFormerConfig(attention_scaling="length").regularization_weight == 0
    assert ReLUFormerConfig(attention_activation="relu2").regularization_weight == 0
    assert ReLUFormerConfig(attention_activation="softmax").attention_scaling == "none"


def test_every_preset_but_reluformer_has_no_regulariser():
    for preset in ("vanilla", "sparsemax", "entmax15", "rela", "relu_vit"):
        assert ReLUFormerConfig.from_preset(preset).regularization_weight == 0
    config = ReLUFormerConfig.from_preset("reluformer")
    assert (config.regularization_weight, config.attention_gamma, config.attention_scaling) == (0.01, 8.0, "variance")
    assert config.to_dict() == ReLUFormerConfig().to_dict()


def test_round_trip_through_save_pretrained(variant, tmp_path):
    config = tiny_config(**variant, entropy_margin=0.5, attention_gamma=3)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["attention_activation"] == config.attention_activation
    assert "attn_implementation" not in saved and "_attn_implementation" not in saved
