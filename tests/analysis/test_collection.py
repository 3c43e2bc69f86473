"""What statistics get to see: the right rows and keys, whatever the batches and the padding; one batch at a time."""

import pytest
import torch

from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF, Batch, observe, visible_keys
from reluformer.analysis.entropy import RowStatistics
from reluformer.analysis.texts import make_batch
from reluformer.analysis.top_p import TopPSums
from reluformer.configuration.errors import UserError

from .small_models import FFN, HEADS, LAYERS, make_model

KINDS = ["reluformer", "vanilla", "marian", "t5", "bart"]


class Collected:
    """All weights of the real rows, which the program itself never keeps."""

    def __init__(self):
        self.rows = {}

    def update(self, module, layer, weights, visible):
        kept = [row[:, seen] for row, seen in zip(weights.double(), visible, strict=True)]
        self.rows.setdefault((module, layer), []).extend(kept)


def in_batches(encoded, size):
    return [make_batch(encoded[start : start + size], "cpu") for start in range(0, len(encoded), size)]


def measured(model, batches):
    entropy, sums = RowStatistics(0.7), TopPSums((1.5, 20))
    observe(
        model,
        batches,
        attention=[entropy, sums],
        on_scores=lambda stack, layer, scores: sums.update(f"{stack}_ffn", layer, scores.unsqueeze(1)),
    )
    return entropy.table() + sums.table()


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one == {
            name: pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value
            for name, value in other.items()
        }


def test_visible_keys():
    batch = make_batch([([5, 6, 2], [7, 2]), ([5, 2], [7, 8, 2])], "cpu")
    rows, visible = visible_keys(ENCODER_SELF, batch)
    assert rows.tolist() == [[True] * 3, [True, True, False]]
    assert visible.tolist() == [[True] * 3] * 3 + [[True, True, False]] * 2
    rows, visible = visible_keys(CROSS, batch)
    assert rows.tolist() == [[True, True, False], [True] * 3]
    assert visible.tolist() == [[True] * 3] * 2 + [[True, True, False]] * 3
    _, visible = visible_keys(DECODER_SELF, batch)
    causal = [[True, False, False], [True, True, False], [True] * 3]
    assert visible.tolist() == causal[:2] + causal


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_padding_change_nothing(kind, small_tokenizer, encoded):
    model = make_model(kind, len(small_tokenizer))
    alone = measured(model, in_batches(encoded, 1))
    assert_same(measured(model, in_batches(encoded, len(encoded))), alone)
    assert_same(measured(model, in_batches(encoded[::-1], 2)), alone)
    padded, pad = [], torch.nn.functional.pad
    for batch in in_batches(encoded, 3):
        ids, mask = pad(batch.source_ids, (0, 3), value=7), pad(batch.source_mask, (0, 3))
        padded.append(Batch(ids, mask, pad(batch.labels, (0, 3), value=-100)))
    assert_same(measured(model, padded), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keys_and_heads_are_counted_right(kind, small_tokenizer, encoded):
    collected = Collected()
    observe(make_model(kind, len(small_tokenizer)), in_batches(encoded, 2), attention=[collected])
    source = [len(ids) for ids, _ in encoded]
    target = [len(ids) for _, ids in encoded]
    assert set(collected.rows) == {(m, layer) for m in (ENCODER_SELF, DECODER_SELF, CROSS) for layer in range(LAYERS)}
    keys = {module: sorted(row.shape[1] for row in collected.rows[module, 0]) for module, _ in collected.rows}
    assert keys[ENCODER_SELF] == sorted(length for length in source for _ in range(length))
    assert keys[DECODER_SELF] == sorted(n for length in target for n in range(1, length + 1))
    assert keys[CROSS] == sorted(len(ids) for ids, labels in encoded for _ in labels)
    assert all(row.shape[0] == HEADS for rows in collected.rows.values() for row in rows)
    if kind != "reluformer":  # softmax rows over the visible keys alone sum to 1
        for rows in collected.rows.values():
            torch.testing.assert_close(
                torch.stack([row.sum(-1) for row in rows]), torch.ones(len(rows), HEADS).double()
            )


def test_the_streamed_sums_equal_one_computation_over_all_weights(small_tokenizer, encoded):
    model = make_model("reluformer", len(small_tokenizer))
    collected, statistics = Collected(), RowStatistics(0.7)
    observe(model, in_batches(encoded, 2), attention=[collected, statistics])
    table = {(row["module"], row["layer"], row["head"]): row for row in statistics.table()}
    dead = 0
    for (module, layer), rows in collected.rows.items():
        for head in range(HEADS):
            mine = [row[head] for row in rows]
            p = [values[values > 0] / values.sum() for values in mine]
            row = table[module, layer + 1, head + 1]
            assert row["rows"] == len(mine)
            assert row["entropy"] == pytest.approx(-sum(float((q * q.log()).sum()) for q in p) / len(p), abs=1e-12)
            assert row["row_sum"] == pytest.approx(sum(float(values.sum()) for values in mine) / len(mine), abs=1e-12)
            zeros = sum(int((values == 0).sum()) for values in mine) / sum(map(len, mine))
            assert row["zero_fraction"] == pytest.approx(zeros, abs=1e-12)
            assert row["dead_row_fraction"] == sum(not values.any() for values in mine) / len(mine)
            dead += row["dead_row_fraction"] > 0
    assert dead, "the test needs dead rows"


def test_the_whole_model_has_the_figures_that_training_logs(small_tokenizer, encoded):
    model = make_model("reluformer", len(small_tokenizer))
    batch = make_batch(encoded, "cpu")
    with torch.inference_mode():
        logged = model(input_ids=batch.source_ids, attention_mask=batch.source_mask.long(), labels=batch.labels)
    statistics = RowStatistics(0.7)
    observe(model, in_batches(encoded, 2), attention=[statistics])
    row = statistics.table()[0]
    assert row["entropy"] == pytest.approx(float(logged.attention_entropy), rel=1e-4)
    assert row["row_sum"] == pytest.approx(float(logged.attention_sum), rel=1e-4)
    assert row["dead_row_fraction"] == pytest.approx(float(logged.dead_row_fraction), rel=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_given_back_as_it_was(training, small_tokenizer, encoded):
    model = make_model("reluformer", len(small_tokenizer))
    model.train(training)
    measured(model, in_batches(encoded, 2))
    assert model.training is training
    assert model.config._attn_implementation == "fused"
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        assert not (layer.fc1._forward_pre_hooks or layer.fc2._forward_pre_hooks or layer.fc2._forward_hooks)


def test_weight_on_keys_that_should_be_hidden_is_refused(small_tokenizer, encoded, monkeypatch):
    model = make_model("marian", len(small_tokenizer))
    forward = model.forward

    def forgetting_the_padding(attention_mask=None, **inputs):
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", forgetting_the_padding)
    with pytest.raises(UserError, match="marian: encoder_self attention has weight on padding"):
        measured(model, in_batches(encoded, 5))


def test_memory_scores_are_those_of_real_tokens(small_tokenizer, encoded):
    model, seen = make_model("memory", len(small_tokenizer)), []
    observe(model, in_batches(encoded, 2), on_scores=lambda *found: seen.append(found))
    source, target = (sum(len(pair[side]) for pair in encoded) for side in (0, 1))
    for stack, tokens in (("encoder", source), ("decoder", target)):
        scores = torch.cat([scores for name, layer, scores in seen if (name, layer) == (stack, 1)])
        assert scores.shape == (tokens, FFN)
        torch.testing.assert_close(scores.sum(-1), torch.ones(tokens))  # Eq. 2
