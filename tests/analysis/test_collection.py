"""One pass: real rows and visible keys of every kind of model, sums that no batch or padding changes, the model left
alone."""

import pytest
import torch

from reluformer.analysis.collection import (
    ALL,
    CROSS,
    DECODER_SELF,
    ENCODER_SELF,
    Batch,
    HeadSums,
    attention_rows,
    pair_batch,
)
from reluformer.analysis.entropy import entropy_table
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.inputs import Subject
from reluformer.analysis.top_p import top_p
from reluformer.configuration.errors import UserError

from .small_models import HEADS, LAYERS, make_model

KINDS = ["reluformer", "vanilla", "marian", "t5"]


def in_batches(model, encoded, size):
    return [pair_batch(model, encoded[start : start + size]) for start in range(0, len(encoded), size)]


def measured(model, batches):
    """All numbers of two tables."""
    table = entropy_table(attention_rows(model, batches)) + top_p(Subject(model, batches=lambda: iter(batches))).table
    return [value for row in table for value in row.values() if isinstance(value, (int, float))]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_padding_change_nothing(kind, small_tokenizer, encoded):
    model = make_model(kind, len(small_tokenizer))
    alone = pytest.approx(measured(model, in_batches(model, encoded, 1)), rel=1e-5, abs=1e-6)
    assert measured(model, in_batches(model, encoded[::-1], 2)) == alone
    padded, pad = [], torch.nn.functional.pad
    for batch in in_batches(model, encoded, 3):
        values = {"input_ids": 7, "attention_mask": 0, "decoder_input_ids": 7}
        inputs = {name: pad(batch.inputs[name], (0, 3), value=value) for name, value in values.items()}
        real = {stack: pad(mask, (0, 3)) for stack, mask in batch.real.items()}
        padded.append(Batch(inputs | {"use_cache": False}, pad(batch.labels, (0, 3), value=-100), real))
    assert measured(model, padded) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keys_and_heads_are_counted_right(kind, small_tokenizer, encoded):
    model, collected = make_model(kind, len(small_tokenizer)), {}
    for module, layer, weights, visible in attention_rows(model, in_batches(model, encoded, 2)):
        kept = [row[:, seen] for row, seen in zip(weights.double(), visible, strict=True)]
        collected.setdefault((module, layer), []).extend(kept)
    source, target = ([len(pair[side]) for pair in encoded] for side in (0, 1))
    assert set(collected) == {(m, layer) for m in (ENCODER_SELF, DECODER_SELF, CROSS) for layer in range(LAYERS)}
    keys = {module: sorted(row.shape[1] for row in collected[module, 0]) for module, _ in collected}
    assert keys[ENCODER_SELF] == sorted(length for length in source for _ in range(length))
    assert keys[DECODER_SELF] == sorted(n for length in target for n in range(1, length + 1))
    assert keys[CROSS] == sorted(len(ids) for ids, labels in encoded for _ in labels)
    assert all(row.shape[0] == HEADS for rows in collected.values() for row in rows)
    if kind != "reluformer":  # softmax rows over the visible keys alone sum to 1
        sums = torch.stack([row.sum(-1) for rows in collected.values() for row in rows])
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_the_whole_model_has_the_figures_that_training_logs(small_tokenizer, encoded):
    model = make_model("reluformer", len(small_tokenizer))
    batch = pair_batch(model, encoded)
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        logged = model(**inputs, labels=batch.labels)
    row = entropy_table(attention_rows(model, in_batches(model, encoded, 2)))[0]
    assert 0 < row["dead_row_fraction"] == pytest.approx(float(logged.dead_row_fraction), rel=1e-4)
    assert row["entropy"] == pytest.approx(float(logged.attention_entropy), rel=1e-4)
    assert row["row_sum"] == pytest.approx(float(logged.attention_sum), rel=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training, small_tokenizer, encoded):
    model = make_model("reluformer", len(small_tokenizer))
    model.train(training)
    measured(model, in_batches(model, encoded, 2))
    assert model.training is training and model.config._attn_implementation == "fused"
    for block in feed_forward_blocks(model):
        assert not (block.keys._forward_pre_hooks or block.values._forward_pre_hooks or block.values._forward_hooks)


def test_weight_on_keys_that_should_be_hidden_is_refused(small_tokenizer, encoded, monkeypatch):
    model = make_model("marian", len(small_tokenizer))
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda attention_mask, **inputs: forward(**inputs))
    with pytest.raises(UserError, match="marian: encoder_self attention has weight on padding"):
        measured(model, in_batches(model, encoded, 5))


def test_groups_come_in_the_order_of_modules_and_layers():
    sums = HeadSums()
    for module, layer in (("decoder_ffn", 0), (CROSS, 0), (DECODER_SELF, 1), (ENCODER_SELF, 0), (DECODER_SELF, 0)):
        sums.add(module, layer, {"rows": torch.ones(3, 2)})
    found = [(group["module"], group["layer"]) for group, _ in sums.groups() if group["head"] == ALL]
    modules = [(ENCODER_SELF, 1), (DECODER_SELF, 2), (CROSS, 1), ("decoder_ffn", 1)]
    assert found == [(ALL, ALL), *((name, at) for name, layers in modules for at in (ALL, *range(1, layers + 1)))]
