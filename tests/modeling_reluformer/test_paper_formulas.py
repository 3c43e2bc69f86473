"""Whole attention modules and whole models against Eq. 6, Eq. 7 and the loss written out from the paper."""

import math

import numpy as np
import pytest
import torch

from reluformer.modeling_reluformer.attention_reluformer import NON_NEGATIVE
from reluformer.modeling_reluformer.layers_reluformer import ReLUFormerAttention, _sums_of_context, attention_context

from ..conftest import tiny_config
from .exact_models import (
    BATCHES,
    LOUD,
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


def with_regulariser(fields: dict) -> dict:
    """Where there is one."""
    weight = 0.5 if tiny_config(**fields).attention_activation in NON_NEGATIVE else 0.0
    return {**fields, "regularization_weight": weight}


@pytest.mark.parametrize("name", BATCHES)
def test_whole_model(variant, name, monkeypatch):
    fields = with_regulariser(variant)
    for path in paths(tiny_config(**fields).attention_activation):
        model = exact_model(attn_implementation=use_path(monkeypatch, path), **fields)
        output = assert_equals_the_paper(model, BATCHES[name](), None if name in ("right", "packed") else 29)
        assert (output.regularization is None) == (
            path == "sdpa" or fields.get("attention_activation", "relu") not in NON_NEGATIVE
        )


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
        module = ReLUFormerAttention(config, 4, is_decoder=True, is_causal=causal).double()
        statistics = "sum+entropy" if config.attention_activation in NON_NEGATIVE else "none"
        context = attention_context(
            config,
            queries,
            mask,
            keys=mask.shape[1],
            causal=causal,
            encoder_hidden_states=keys,
            row_weight=row_weight,
            statistics=statistics,
        )
        found, _, sums = module(queries, context, keys)
        figures = (
            _sums_of_context(context, *(part if part is None else part.unsqueeze(0) for part in sums)) if sums else None
        )
        paper = PaperModel(config, state_of(module, "attention."))
        arrays = queries.numpy(), (queries if keys is None else keys).numpy()
        expected, rows = paper.attention("attention", 4, *arrays, visible)
        seen = row_weight > 0
        torch.testing.assert_close(found.detach()[seen], torch.from_numpy(expected)[seen], **TOLERANCE)
        assert (figures is None) == (statistics == "none")
        if figures is not None:
            expected = figures_of(rows, row_weight.numpy(), config.entropy_margin)
            torch.testing.assert_close(figures[0].detach(), torch.tensor(expected, dtype=torch.float64), **TOLERANCE)


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
    """Dead and alive, sums above and below one, entropies above and below the margin: else a term could be missing unseen."""
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
