"""Every field of the configuration does something: a field that this file does not name fails."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration

from ..conftest import random_tokens, tiny_config, tiny_model
from .exact_models import (
    NO_DROPOUT,
    assert_equals_the_paper,
    exact_model,
    padded_batch,
    use_path,
)

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
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
# field: why no forward pass shows it, and the test of what it does
ELSEWHERE = {
    "ffn_top_k": ("not the paper's", "test_feed_forward_zeros.py::test_top_k_keeps_the_largest"),
    "activation_sparsity_pattern": ("not the paper's", "test_feed_forward_zeros.py::test_patterns_are_by_layer"),
    "ffn_threshold": ("not the paper's", "test_feed_forward_zeros.py::test_threshold_is_fatrelu"),
    "ffn_l1_weight": ("not the paper's", "test_feed_forward_zeros.py::test_l1_is_its_definition"),
    "max_position_embeddings": ("a limit", "test_model.py::test_wrong_calls_say_what_is_wrong"),
    "is_encoder_decoder": (
        "only True is possible",
        "test_configuration.py::test_bad_value_is_refused_with_field_value_and_choices",
    ),
    "init_std": ("initial weights", "test_configuration_fields.py::test_init_std_is_the_deviation_of_initial_weights"),
    "skip_logits": ("the same loss", "test_vocabulary.py::test_the_config_skips_logits_in_training_alone"),
    "use_cache": ("caches", "test_configuration_fields.py::test_use_cache_decides_whether_a_cache_comes_back"),
    "eos_token_id": ("generation", "test_configuration_fields.py::test_generation_ends_with_eos"),
    "bos_token_id": ("generation", "test_configuration_fields.py::test_generation_starts_with_bos_for_want_of_another"),
    "dtype": ("loading", "test_configuration_fields.py::test_dtype_is_the_one_to_load_with"),
    "output_hidden_states": ("more outputs", "test_model.py::test_form_of_the_outputs"),
    "return_dict": ("the form of the outputs", "test_model.py::test_form_of_the_outputs"),
}
# Fields that the library gives every model and this one does not use: a value, and why it may have no effect.
NOWHERE = {
    "transformers_version": ("4.0.0", "a record of what has saved the file"),
    "architectures": (["ReLUFormerModel"], "a record of the class that was saved"),
    "id2label": ({0: "a", 1: "b"}, "for classification, which this model does not do"),
    "label2id": ({"a": 0, "b": 1}, "for classification"),
    "problem_type": ("regression", "for classification"),
    "chunk_size_feed_forward": (3, "saves memory in some models; by definition it changes no result"),
}


def test_every_field_is_named_once():
    named = [*CHANGES, *DROPOUTS, *ELSEWHERE, *NOWHERE]
    assert len(named) == len(set(named))
    assert sorted(named) == sorted(field.name for field in fields(ReLUFormerConfig))


@pytest.mark.parametrize("field", ELSEWHERE)
def test_the_test_named_for_a_field_exists(field):
    file, name = ELSEWHERE[field][1].split("::")
    assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")


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


def numbers(model: ReLUFormerForConditionalGeneration) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model(**padded_batch("right"))
    return [output.logits, output.loss]


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_the_field_changes_the_result_as_the_paper_says(field):
    base, value = CHANGES[field]
    model, changed = twins(base, {field: value})
    before, after = numbers(model), numbers(changed)
    differences = [
        math.inf if one.shape != two.shape else (one - two).abs().max() for one, two in zip(before, after, strict=True)
    ]
    assert max(differences) > 1e-3
    assert_equals_the_paper(changed, padded_batch("right"))


@pytest.mark.parametrize("field", NOWHERE)
def test_a_field_that_acts_nowhere_changes_no_bit(field):
    model, changed = twins({}, {field: NOWHERE[field][0]})
    assert all(torch.equal(one, two) for one, two in zip(numbers(model), numbers(changed), strict=True))


@pytest.mark.parametrize("path", ["eager", "plain", "blocks"])
@pytest.mark.parametrize("field", DROPOUTS)
def test_dropout_changes_the_result_in_training_alone(field, path, monkeypatch):
    model, changed = twins({"attn_implementation": use_path(monkeypatch, path)}, {field: 0.3})
    assert all(torch.equal(one, two) for one, two in zip(numbers(model), numbers(changed), strict=True))
    results = []
    for one in (model, changed, changed):
        torch.manual_seed(0)
        results.append(numbers(one.train())[0])
    assert (results[0] - results[1]).abs().max() > 1e-3
    assert torch.equal(results[1], results[2])


@pytest.mark.parametrize("path", ["eager", "plain"])
def test_dropout_falls_where_the_paper_has_it(path, monkeypatch):
    """Embeddings, residuals, attention weights and FFN: with the same masks, the whole model is the paper's; each at its rate."""
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


@pytest.mark.parametrize("path", ["eager", "plain", "blocks"])
def test_attention_dropout_falls_on_single_weights(path, monkeypatch):
    """With the identity for values the output of a module is its weights: zero, or 1 / (1 - p) of what they were."""
    rate, keys = 0.3, 16
    fields = {"attention_activation": "sigmoid", "d_model": 2 * keys, **NO_DROPOUT, "attention_dropout": rate}
    model = exact_model(attn_implementation=use_path(monkeypatch, path), **fields)
    layer = model.model.decoder.layers[0]
    with torch.no_grad():
        for projection in (layer.encoder_attn.v_proj, layer.encoder_attn.out_proj):
            projection.weight.copy_(torch.eye(2 * keys))
            projection.bias.zero_()
    states = torch.eye(keys, dtype=torch.float64).repeat(1, 2).expand(4, -1, -1)
    caught = []
    layer.encoder_attn.register_forward_hook(lambda module, inputs, output: caught.append(output[0]))
    for training in (False, True):
        model.train(training)
        with torch.no_grad():
            layer.self_attn.eval()  # its dropout would change the queries
            model.model.decoder(random_tokens(4, 40), encoder_hidden_states=states, use_cache=False)
    whole, dropped = (item.unflatten(-1, (2, keys)) for item in caught)
    ratio = dropped / whole
    kept = ratio > 0.5
    torch.testing.assert_close(ratio, kept.double() / (1 - rate), rtol=1e-9, atol=1e-12)
    assert abs(kept.double().mean().item() - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / kept.numel())
    alike = rate**2 + (1 - rate) ** 2
    for axis in range(4):  # sentences, queries, heads, keys: neighbours are drawn apart
        length = kept.shape[axis] - 1
        same = kept.narrow(axis, 0, length) == kept.narrow(axis, 1, length)
        assert abs(same.double().mean().item() - alike) < 4 * math.sqrt(alike * (1 - alike) / same.numel())


def test_init_std_is_the_deviation_of_initial_weights():
    torch.manual_seed(0)
    for std, expected in ((0.5, 0.5), (None, 64**-0.5)):
        model = ReLUFormerForConditionalGeneration(tiny_config(vocab_size=500, d_model=64, init_std=std))
        assert model.model.shared.weight[1:].std().item() == pytest.approx(expected, rel=0.03)
        # of 64 × 64 features, Xavier's uniform numbers lie within sqrt(6 / 128) and deviate by sqrt(2 / 128)
        weight = model.model.encoder.layers[0].self_attn.q_proj.weight
        assert weight.std().item() == pytest.approx(math.sqrt(2 / 128) if std is None else std, rel=0.05)


@pytest.mark.parametrize("use_cache", [True, False])
def test_use_cache_decides_whether_a_cache_comes_back(use_cache):
    model = tiny_model(use_cache=use_cache)
    output = model(input_ids=random_tokens(2, 7), decoder_input_ids=random_tokens(2, 5))
    assert (output.past_key_values is not None) == use_cache


def says_seven(**fields) -> ReLUFormerForConditionalGeneration:
    """A model that finds token 7 the likeliest of all, always."""
    model = tiny_model(**fields)
    model.final_logits_bias[0, 7] = 1e4
    return model


def test_generation_ends_with_eos():
    for end, length in ((7, 2), (6, 6)):
        found = says_seven(eos_token_id=end).generate(random_tokens(1, 4), do_sample=False, max_new_tokens=5)
        assert found.shape == (1, length)


def test_generation_starts_with_bos_for_want_of_another():
    for start, expected in ((None, 5), (3, 3)):
        model = says_seven(bos_token_id=5, decoder_start_token_id=start)
        assert model.generate(random_tokens(1, 4), do_sample=False, max_new_tokens=2)[0, 0] == expected


def test_dtype_is_the_one_to_load_with(tmp_path):
    tiny_model().to(torch.bfloat16).save_pretrained(tmp_path)
    assert ReLUFormerConfig.from_pretrained(tmp_path).dtype == torch.bfloat16
    assert ReLUFormerForConditionalGeneration.from_pretrained(tmp_path).dtype == torch.bfloat16
