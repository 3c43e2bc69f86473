"""`attn_implementation="reluformer"` in models of other families: the formula, masks, caches, gradients, training."""

from itertools import product

import pytest
import torch
from transformers import DynamicCache, StaticCache

from reluformer.modeling_reluformer.fused import module as fused_module
from reluformer.modeling_reluformer.other_models.attention import VisibilityMask

from .foreign_cases import build, oracle, padding, real, tokens

SIDES = ["none", "left", "right"]


def assert_same(found, expected, **tolerance) -> None:
    assert expected.abs().max() > 0.1, "a comparison of zeros says nothing"
    torch.testing.assert_close(found, expected, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})


def compare(model, reference, inputs: dict, mask=None) -> None:
    """Outputs of real tokens, and the gradients of all parameters."""
    results = []
    for each in (model, reference):
        output = each(**inputs)[0]
        rows = real(output, mask)
        each.zero_grad()
        rows.square().mean().backward()
        results.append((rows.detach(), {name: p.grad for name, p in each.named_parameters() if p.grad is not None}))
    (found, gradients), (expected, expected_gradients) = results
    assert_same(found, expected)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(
            gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.fixture
def compact(monkeypatch):
    """Fails where weights of queries × keys, or a mask of that size, are made."""

    def refuse(*arguments, **keywords):
        raise AssertionError("a queries × keys tensor was asked for")

    monkeypatch.setattr(fused_module, "reference_attention", refuse)
    monkeypatch.setattr(VisibilityMask, "dense", refuse)


@pytest.mark.parametrize(("family", "side"), [*product(("bert", "llama"), SIDES), ("vit", "none")])
def test_is_the_formula(family, side, monkeypatch, compact):
    mask = padding(side)
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    if family == "vit":
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()}
    compare(build(family), oracle(family, monkeypatch), inputs, mask)


@pytest.mark.parametrize("side", SIDES)
def test_is_the_formula_in_encoder_decoder_and_between(side, monkeypatch, compact):
    target_mask = padding("right", length=5)
    inputs = {
        "input_ids": tokens(3, 7),
        "attention_mask": padding(side),
        "decoder_input_ids": tokens(3, 5, seed=1),
        "decoder_attention_mask": target_mask,
    }
    compare(build("marian"), oracle("marian", monkeypatch), inputs, target_mask)


@pytest.mark.parametrize(
    "settings",
    [{"scaling": "length", "alpha": 0.5}, {"scaling": "none"}, {"activation": "gelu", "gamma": 0.6}],
    ids=str,
)
def test_other_settings(settings, monkeypatch):
    mask = padding("left")
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    compare(build("llama", reluformer=settings), oracle("llama", monkeypatch, reluformer=settings), inputs, mask)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("side", SIDES)
def test_sliding_windows_need_no_whole_mask(family, side, monkeypatch, compact):
    mask = padding(side)
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    compare(build(family), oracle(family, monkeypatch), inputs, mask)


@pytest.mark.parametrize("side", ["none", "left"])
def test_windows_on_both_sides_go_to_the_reference(side, monkeypatch):
    mask = padding(side)
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    compare(build("modernbert"), oracle("modernbert", monkeypatch), inputs, mask)


@pytest.mark.parametrize("family", ["mistral", "modernbert"])
def test_a_window_longer_than_the_text_needs_no_whole_mask(family, monkeypatch, compact):
    window = {"mistral": {"sliding_window": 7}, "modernbert": {"local_attention": 14}}[family]
    mask = padding("right")
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    compare(build(family, **window), oracle(family, monkeypatch, **window), inputs, mask)


def test_is_exported_for_all_lengths():
    model, dims = build("bert").eval(), {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=30)}
    first, other = (
        {"input_ids": tokens(*shape), "attention_mask": torch.ones(shape).long()} for shape in ((2, 9), (3, 20))
    )
    exported = torch.export.export(model, (), first, dynamic_shapes=dict.fromkeys(first, dims), strict=False)
    assert_same(exported.module()(**other).last_hidden_state, model(**other).last_hidden_state)


def test_packed_sequences_do_not_see_each_other():
    model, sequences = build("llama"), [tokens(1, length, seed=length) for length in (3, 5, 2)]
    packed = model(
        input_ids=torch.cat(sequences, 1),
        position_ids=torch.cat([torch.arange(each.shape[1]) for each in sequences]).unsqueeze(0),
        use_cache=False,
    ).logits
    assert_same(packed, torch.cat([model(each).logits for each in sequences], 1))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_cached_steps_equal_the_whole(family, kind):
    """Four tokens, then three at once, then one by one."""
    model, source, mask = build(family), tokens(3, 9), padding("left", length=9)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, max_cache_len=12)
    parts = []
    for start, end in ((0, 4), (4, 7), (7, 8), (8, 9)):
        step = {"attention_mask": mask[:, :end], "position_ids": positions[:, start:end], "past_key_values": cache}
        parts.append(model(source[:, start:end], **step).logits)
    whole = model(source, attention_mask=mask, position_ids=positions, use_cache=False).logits
    assert_same(real(torch.cat(parts, 1), mask), real(whole, mask))


@pytest.mark.parametrize(("cache", "beams"), [("dynamic", 3), ("static", 1), (None, 1)])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "marian"])
def test_generates_what_the_formula_generates(family, cache, beams, monkeypatch, compact):
    source, mask = tokens(3, 7), padding("right" if family == "marian" else "left")
    options = {"attention_mask": mask, "max_new_tokens": 6, "min_new_tokens": 6, "num_beams": beams, "do_sample": False}
    how = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    found = build(family).generate(source, **options, **how)
    expected = oracle(family, monkeypatch).generate(source, **options)
    assert found.tolist() == expected.tolist()
    assert len({tuple(row) for row in expected.tolist()}) == 3
