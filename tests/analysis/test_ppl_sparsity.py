"""PPL-p%: thresholds of a CETT as in the authors' code and by a slow float64 oracle, and where the perplexity has
risen."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.analysis.ppl_sparsity import SparsitySearch, TailTruncation, _drop, ppl_sparsity

from .test_feed_forward import batch_for, make

FIXTURE = Path(__file__).parent / "authors_thresholds"
CARRIED_OVER = json.loads((FIXTURE / "thresholds.json").read_text())
AUTHORS, LARGEST = CARRIED_OVER["thresholds"], CARRIED_OVER["largest_candidates"]


def formula(rows, columns, salt):
    """Numbers in [-1, 1) that any machine makes alike."""
    numbers = (torch.arange(rows * columns, dtype=torch.int64) * 2654435761 + salt) % 2**31
    return (numbers.double() / 2**30 - 1).float().view(rows, columns)


def activations(name):
    if name == "formula":  # more than 65,536 products: the quantile is of a sample
        return formula(400, 512, 12345) * formula(400, 512, 999).abs(), formula(16, 512, 777)
    held = load_file(FIXTURE / "activations.safetensors")
    return held[f"{name}.activations"], held[f"{name}.value_slots"]


@pytest.mark.parametrize("name", AUTHORS)
def test_thresholds_are_those_of_the_authors_code(name):
    truncation = TailTruncation(*activations(name))
    step = float(truncation.candidates[1] - truncation.candidates[0])
    # torch before 2.14 rounds the rank of a quantile to float32, which moves it by 2^-13 of the way to its neighbour
    assert float(truncation.candidates[-1]) == pytest.approx(LARGEST[name], abs=step)
    for cett, threshold in AUTHORS[name].items():
        # the sums of another machine may turn one comparison with a candidate
        assert truncation.threshold(float(cett)) == pytest.approx(threshold, abs=1.5 * step)


def test_where_no_candidate_is_small_enough_nothing_is_dropped():
    # one neuron: its smallest product is the whole output of a token, so that any candidate loses half on the mean
    truncation = TailTruncation(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]]))
    assert truncation.threshold(0.1) == 0
    activations = torch.tensor([0.0, 0.5, 1.0, 1.5])
    assert torch.equal(_drop(0.0, torch.tensor([2.0, 3.0, 0.0, 2.0]), None, (activations,)), activations)
    # what lies at the threshold itself stays
    assert _drop(2.0, torch.full((4,), 2.0), None, (activations,)).tolist() == [0.0, 0.0, 1.0, 1.5]


def truncated_cross_entropy(model, name, ids, thresholds):
    """The model patched as the README of the authors' code says it, and the share that it keeps."""
    kept = []
    projections = [module for path, module in model.named_modules() if path.endswith(f".{name}")]
    limits = {
        each: threshold / each.weight.norm(dim=0) for each, threshold in zip(projections, thresholds, strict=True)
    }

    def drop(module, inputs):
        kept.append(inputs[0].masked_fill(inputs[0].abs() < limits[module], 0))
        return kept[-1]

    handles = [module.register_forward_pre_hook(drop) for module in projections]
    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss
    for handle in handles:
        handle.remove()
    return float(loss), sum(int(each.count_nonzero()) for each in kept) / sum(each.numel() for each in kept)


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_ppl_p_is_where_the_perplexity_has_risen_by_p(kind):
    model, name = make(kind)
    batch = batch_for(model)
    ids = batch.inputs["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(40):  # what is learned by heart is lost by truncation
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        dense = float(model(input_ids=ids, labels=ids).loss)
    search = SparsitySearch(model, batch)
    assert search.dense_cross_entropy == pytest.approx(dense)
    for p_percent in (1.0, 10.0):
        found = search.at_increase(p_percent)
        loss, active = truncated_cross_entropy(model, name, ids, found.thresholds)
        assert found.cross_entropy == pytest.approx(loss, abs=1e-5)
        size = sum(each.activations.numel() for each in search.truncations)
        assert sum(found.active) / size == pytest.approx(active)
        rises = [search.at_cett(found.cett + off).cross_entropy - dense for off in (-1e-6, 1e-6)]
        assert rises[0] < math.log1p(p_percent / 100) <= rises[1]
        assert 0 < found.cett < 1 and active < 1
    assert not any(block.values._forward_pre_hooks for block in feed_forward_blocks(model))


@pytest.mark.parametrize("kind", ["t5_gated", "reluformer"])
def test_ppl_1_of_pairs(kind):
    model, _ = make(kind)
    batch = batch_for(model)
    taken = ppl_sparsity(Subject(model, batches=lambda: iter([batch])))
    whole, *layers = taken.table
    assert whole["module"] == whole["layer"] == "all" and len(layers) == 4
    assert whole["perplexity"] / whole["dense_perplexity"] < 1.01
    assert 0 < whole["active_fraction"] < whole["nonzero_fraction"] <= 1
    tokens = [int(batch.real[row["module"].removesuffix("_ffn")].sum()) for row in layers]
    mean = sum(row["active_fraction"] * size for row, size in zip(layers, tokens, strict=True)) / sum(tokens)
    assert whole["active_fraction"] == pytest.approx(mean)
    ends = "with the largest thresholds that are searched, the perplexity is not 1 % higher"
    assert any(ends in note for note in taken.notes) == (whole["cett"] > 1 - 2e-6)
