"""The model against the papers' formulas: small cases by hand, and a whole model written a second time."""

import math

import numpy as np
import pytest
import torch

from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.attention_reluformer import NON_NEGATIVE
from reluformer.modeling_reluformer.layers_reluformer import GatedRMSNorm, ReLUFormerAttention, attention_context
from reluformer.modeling_reluformer.loss_reluformer import Measured, module_sums

from ..conftest import tiny_config
from .exact_models import (
    BATCHES,
    LOUD,
    NO_DROPOUT,
    TOLERANCE,
    as_arrays,
    assert_equals_the_paper,
    exact_model,
    packed_batch,
    padded_batch,
    paper_model,
    paths,
    state_of,
    use_path,
)
from .paper_formulas import PaperModel, row_penalty

PATHS = ("eager", "plain", "blocks")


def one_head(path: str, monkeypatch, **fields) -> tuple[ReLUFormerAttention, torch.Tensor, torch.Tensor]:
    """Cross-attention of one query to eight keys, one head of four features; every projection is the identity."""
    config = tiny_config(d_model=4, encoder_attention_heads=1, decoder_attention_heads=1, attention_gamma=2, **fields)
    config._attn_implementation = use_path(monkeypatch, path)
    module = ReLUFormerAttention(config, 1).double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "_proj" in name:
                parameter.copy_(torch.eye(4) if parameter.ndim == 2 else torch.zeros(4))
    query = torch.tensor([[[2.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    keys = torch.zeros(1, 8, 4, dtype=torch.float64)
    keys[0, 0] = torch.tensor([4.0, 1.0, 0.0, 0.0])
    keys[0, 1] = torch.tensor([8.0, 0.0, 1.0, 0.0])
    keys[0, 2] = torch.tensor([-3.0, 0.0, 0.0, 1.0])
    return module, query, keys


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({}, 1 / 4),  # gamma 2, n = 8: 1 / (2 · sqrt(8/2))
        ({"attention_gamma_learnable": True}, 1 / 4),
        ({"attention_scaling": "length"}, 1 / 8),  # alpha 1: 1/n
        ({"attention_scaling": "length", "attention_alpha": 1 / 3}, 1 / 2),  # 8 ** (-1/3)
        ({"attention_scaling": "none"}, 1),
    ],
    ids=str,
)
def test_equation_6(path, fields, factor, monkeypatch):
    """d = 4, so x = q·k / 2: the scores are 4, 8, -3 and five zeros, ReLU leaves 4 and 8, and
    h = factor · [4 · (4, 1, 0, 0) + 8 · (8, 0, 1, 0)] = factor · (80, 4, 8, 0)."""
    module, query, keys = one_head(path, monkeypatch, **fields)
    row_weight = torch.full((1, 1), 3.0)
    measured = Measured(row_weight, "sum+entropy", ffn_norms=False)
    context = attention_context(module.config, query, None, keys=8, measured=measured)
    output, _, sums = module(query, context, keys)
    margin = module.config.entropy_margin
    figures = module_sums(*sums, context.visible_keys, row_weight, entropy_margin=margin)
    expected = factor * torch.tensor([80.0, 4.0, 8.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(output[0, 0].detach(), expected, rtol=1e-7, atol=1e-12)
    # S = 12 factor; p = 1/3 and 2/3, so H = log 3 - 2/3 log 2 = 0.636514, below C = 0.7 log 8 = 1.455609
    total, entropy = 12 * factor, 0.6365141682948128
    assert math.isclose(entropy, math.log(3) - 2 / 3 * math.log(2))
    expected = torch.tensor([3 * abs(math.log(total)), total, entropy, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(figures.detach(), expected, rtol=1e-7, atol=1e-12)


def test_gated_norm_of_rela():
    """z = (1, 7): its root mean square is sqrt((1 + 49) / 2) = 5, RMSNorm(z) = (0.2, 1.4). With w = (log 3, -log(3) /
    7), w ∘ z = (log 3, -log 3) and sigmoid gives (3/4, 1/4). With g = (10, 20): (0.2 · 10 · 3/4, 1.4 · 20 · 1/4) =
    (1.5, 7)."""
    norm = GatedRMSNorm(2, eps=0.0).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([10.0, 20.0]))
        norm.gate.copy_(torch.tensor([math.log(3), -math.log(3) / 7]))
    found = norm(torch.tensor([1.0, 7.0], dtype=torch.float64))
    torch.testing.assert_close(found.detach(), torch.tensor([1.5, 7.0], dtype=torch.float64), rtol=1e-6, atol=0)


def constant_model(path: str, monkeypatch) -> ReLUFormerForConditionalGeneration:
    """All scores are 2 and all logits log 2 · (2, 1, 0, 0), whatever the tokens are: weights of zero leave the
    biases."""
    config = tiny_config(
        **NO_DROPOUT,
        vocab_size=4,
        d_model=4,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        attention_gamma=4,
        regularization_weight=0.5,
    )
    config._attn_implementation = use_path(monkeypatch, path)
    model = ReLUFormerForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_()
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                parameter.fill_(1.0)  # q·k / sqrt(4) = 4 / 2
        model.final_logits_bias.copy_(math.log(2) * torch.tensor([[2.0, 1.0, 0.0, 0.0]]))
    return model


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("path", PATHS)
def test_equation_7_and_the_loss(path, side, monkeypatch):
    """gamma 4 and n keys of score 2: s = 2 / (4 sqrt(n/2)), S = n s = sqrt(n/2), H = log n, C = 0.7 log n. In units of
    log 2:

        n = 1: |log S| = 1/2, H = 0: 0.5        n = 2: S = 1, 0 + 0.3 = 0.3        n = 8: S = 2, 1 + 0.3 · 3 = 1.9

    Sentence A: 2 source tokens, 2 targets: encoder 0.3, decoder (0.5 + 0.3) / 2 = 0.4, cross 0.3; mean 1/3.
    Sentence B: 8 source tokens, 1 target: encoder 1.9, decoder 0.5, cross 1.9; mean 4.3 / 3.
    Sum over sentences of L_reg · targets: 2 · 1/3 + 1 · 4.3 / 3 = 2.1; over 3 targets 0.7.

    Probabilities 1/2, 1/4, 1/8, 1/8, so -log p = (1, 2, 3, 3), mean 9/4. With smoothing 0.1 a target costs
    0.9 · (-log p) + 0.1 · 9/4. Targets A: 3, 2 (3 each), B: 1 (2): 0.9 · 8 + 3 · 0.225 = 7.875; over 3 targets 2.625.
    loss = 2.625 + 0.5 · 0.7 = 2.975.

    S: encoder 2 · 1 + 8 · 2, decoder (sqrt(1/2) + 1) + sqrt(1/2), cross 1 + 1 + 2: 23 + sqrt(2) over 16 rows.
    H: encoder 2 · 1 + 8 · 3, decoder (0 + 1) + 0, cross 1 + 1 + 3: 32 over 16 rows = 2.
    """
    labels = torch.tensor([[3, 2], [1, -100]])
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0], [1] * 8])
    batch = {"input_ids": torch.full((2, 8), 3), "attention_mask": mask, "labels": labels}
    if side == "left":
        batch["attention_mask"], batch["labels"] = mask.flip(1), labels.flip(1)
        decoder_mask = (batch["labels"] != -100).long()
        batch |= {"decoder_input_ids": torch.full((2, 2), 3), "decoder_attention_mask": decoder_mask}
    output = constant_model(path, monkeypatch)(**batch)
    expected = {
        "cross_entropy": 2.625 * math.log(2),
        "regularization": 0.7 * math.log(2),
        "loss": 2.975 * math.log(2),
        "attention_sum": (23 + math.sqrt(2)) / 16,
        "attention_entropy": 2 * math.log(2),
        "dead_row_fraction": 0.0,
    }
    for name, value in expected.items():
        assert getattr(output, name).item() == pytest.approx(value, rel=1e-9), name
    assert constant_model(path, monkeypatch)(**batch, num_items_in_batch=12).loss.item() == pytest.approx(
        expected["loss"] / 4, rel=1e-9
    )


def with_regulariser(fields: dict) -> dict:
    """Where there is one."""
    weight = 0.5 if tiny_config(**fields).attention_activation in NON_NEGATIVE else 0.0
    return {**fields, "regularization_weight": weight}


@pytest.mark.parametrize("name", BATCHES)
def test_whole_model(variant, name, monkeypatch):
    """Which keys are seen is one rule for all activations: the model of the paper alone is given every batch."""
    if name not in ("left", "packed") and variant["preset"] != "reluformer":
        pytest.skip("of the other presets, padding on the left and packed sequences show as much")
    fields = with_regulariser(variant)
    for path in paths(tiny_config(**fields).attention_activation):
        model = exact_model(attn_implementation=use_path(monkeypatch, path), **fields)
        output = assert_equals_the_paper(model, BATCHES[name](), None if name in ("right", "packed") else 29)
        assert (output.regularization is None) == (tiny_config(**fields).attention_activation not in NON_NEGATIVE)


@pytest.mark.parametrize("path", ["eager", "plain", "blocks"])
def test_whole_model_in_training(path, monkeypatch):
    """Without the regulariser, no entropy is computed there."""
    for fields in ({"regularization_weight": 0.5}, {"regularization_weight": 0.0}, {"preset": "rela"}):
        model = exact_model(attn_implementation=use_path(monkeypatch, path), **fields).train()
        output = assert_equals_the_paper(model, padded_batch("right"), 31)
        assert output.attention_sum is not None and (output.regularization is None) == (
            fields != {"regularization_weight": 0.5}
        )


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "cross"])
def test_whole_module(variant, causal, monkeypatch):
    """Output and the figures of its rows, padding on the left."""
    fields = {**LOUD, **variant}
    config = tiny_config(**fields)
    torch.manual_seed(0)
    queries = torch.randn(2, 7, 16, dtype=torch.float64)
    keys = None if causal else torch.randn(2, 9, 16, dtype=torch.float64)
    mask = torch.ones(2, 7 if causal else 9, dtype=torch.long)
    mask[1, :3] = 0
    row_weight = torch.rand(2, 7, dtype=torch.float64) * (mask if causal else torch.ones(2, 7))

    def visible(b: int, i: int, j: int) -> bool:
        return bool(mask[b, j]) and (j <= i or not causal)

    for path in paths(config.attention_activation):
        config._attn_implementation = use_path(monkeypatch, path)
        torch.manual_seed(1)
        module = ReLUFormerAttention(config, 4, is_causal=causal).double()
        statistics = "sum+entropy" if config.attention_activation in NON_NEGATIVE else "none"
        measured = Measured(row_weight, statistics, ffn_norms=False)
        context = attention_context(config, queries, mask, keys=mask.shape[1], causal=causal, measured=measured)
        found, _, sums = module(queries, context, keys)
        paper = PaperModel(config, state_of(module, "attention."))
        arrays = queries.numpy(), (queries if keys is None else keys).numpy()
        expected, rows = paper.attention("attention", 4, *arrays, visible)
        seen = row_weight > 0
        torch.testing.assert_close(found.detach()[seen], torch.from_numpy(expected)[seen], **TOLERANCE)
        if statistics == "none":
            assert sums == (None, None)
        else:
            figures = module_sums(*sums, context.visible_keys, row_weight, entropy_margin=config.entropy_margin)
            expected = figures_of(rows, row_weight.numpy(), config.entropy_margin)
            torch.testing.assert_close(figures.detach(), torch.tensor(expected, dtype=torch.float64), **TOLERANCE)


def figures_of(rows: list, row_weight: np.ndarray, margin: float) -> list[float]:
    """Sums over the real rows, means over the heads: weighted penalty, S, H, dead rows; and the number of rows."""
    sums = np.zeros(5)
    for b, i in np.argwhere(row_weight > 0):
        for head in rows[b]:
            row = head[i]
            penalty = row_weight[b, i] * row_penalty(row, margin)
            sums += np.array([penalty, row.total, row.entropy, row.total == 0, 1]) / len(rows[b])
    return sums.tolist()


def test_the_cases_have_rows_of_every_kind():
    """Dead and alive, sums above and below one, entropies above and below the margin: else a term could be missing
    unseen."""
    model = exact_model(attention_activation="relu")
    rows = []
    for batch in (padded_batch("right"), packed_batch()):
        paper = paper_model(model)
        paper(as_arrays(batch))
        rows += [row for _, sentences in paper.modules for heads in sentences for head in heads for row in head]
    alive = [row for row in rows if row.total > 0]
    excess = [
        row.entropy - model.config.entropy_margin * math.log(row.visible_keys) for row in alive if row.visible_keys > 1
    ]
    assert len(alive) < len(rows) and min(row.total for row in alive) < 1 < max(row.total for row in alive)
    assert min(excess) < 0 < max(excess)
