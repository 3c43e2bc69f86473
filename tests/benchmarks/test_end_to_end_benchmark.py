"""Training steps and beam search beside MarianMTModel: the same shape, the same work."""

import json

import pytest
import torch


@pytest.fixture
def models(program):
    return program("speed.translation_models")


def test_a_quick_run_times_training_and_generation(program, models, tmp_path):
    pytest.importorskip("entmax", reason="two of the baselines need the optional package entmax")
    output = tmp_path / "steps.json"
    assert program("speed.end_to_end").main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert [cell["task"] for cell in result["cells"]] == ["training", "training", "generation"] * 2
    for cell in result["cells"]:
        assert models.MARIAN in cell["speedups"][models.OURS] and cell["left_out"] == {}
        assert len(set(cell["parameters"].values())) == 1, "all contenders have the same number of weights"
        done = cell["batch"]["target_tokens" if cell["task"] == "training" else "sentences"]
        expected = 1e3 * done / cell["times"][models.MARIAN]["median_ms"]
        assert cell["speeds"][models.MARIAN] == pytest.approx(expected)
    full = next(cell for cell in result["cells"] if cell["task"] == "training" and cell["dtype"] == "float32")
    assert {"vanilla", "sparsemax", "entmax15", models.OURS_UNREGULARIZED} < set(full["speeds"])
    assert models.MARIAN_SMOOTHED in full["speedups"][models.OURS]
    generation = [cell for cell in result["cells"] if cell["task"] == "generation"]
    assert all(models.MARIAN_SMOOTHED not in cell["speeds"] for cell in generation), "it has no loss to smooth"


def test_contenders_have_the_dropout_and_the_regulariser_they_are_named_for(models):
    built = {
        name: models.build(name, models.SHAPES["quick"], 0.1, 0).config
        for name in (models.OURS, models.OURS_UNREGULARIZED, models.MARIAN)
    }
    assert all((config.dropout, config.attention_dropout) == (0.1, 0.1) for config in built.values())
    assert built[models.OURS].regularization_weight > 0 == built[models.OURS_UNREGULARIZED].regularization_weight
    assert built[models.OURS].label_smoothing == models.LABEL_SMOOTHING > 0
    assert built[models.OURS]._attn_implementation == "fused" and built[models.MARIAN]._attn_implementation == "sdpa"


def test_the_smoothed_marian_computes_the_loss_of_our_config(models):
    batch = models.padded_batch(models.INPUTS["quick"], 60, 64, seed=0)
    plain, smoothed, ours = (
        models.build(name, models.SHAPES["quick"], 0.1, 0).eval()
        for name in (models.MARIAN, models.MARIAN_SMOOTHED, models.OURS)
    )
    with torch.no_grad():
        found, without = smoothed(**batch), plain(**batch)
    torch.testing.assert_close(found.logits, without.logits)
    log_probabilities = found.logits.double().log_softmax(-1)
    real = batch["labels"] != -100
    of_label = log_probabilities.gather(2, batch["labels"].clamp(min=0).unsqueeze(2)).squeeze(2)
    smoothing = ours.config.label_smoothing
    expected = -((1 - smoothing) * of_label + smoothing * log_probabilities.mean(-1))[real].mean()
    torch.testing.assert_close(found.loss.double(), expected)
    assert found.loss != without.loss


@pytest.mark.parametrize("kind", ["multi30k-like", "1,024 tokens"])
def test_batches_are_full_and_padded(models, kind):
    batch = models.padded_batch(models.INPUTS[kind], 100, 2048, seed=0)
    rows, width = batch["input_ids"].shape
    assert 1600 < rows * max(width, batch["labels"].shape[1]) <= 2048
    facts = models.batch_facts(batch)
    assert facts["target_tokens"] == int((batch["labels"] != -100).sum()) < rows * batch["labels"].shape[1]
    last = batch["attention_mask"].sum(1) - 1
    assert torch.equal(batch["input_ids"].gather(1, last.unsqueeze(1)), torch.full((rows, 1), models.EOS))
    assert torch.equal(batch["input_ids"] == models.PAD, batch["attention_mask"] == 0)
    assert (batch["attention_mask"].sum(1).float().mean() - models.INPUTS[kind].mean).abs() < 0.1 * width
    assert width == 1024 or kind == "multi30k-like"


def test_sequences_of_another_length_stop_the_comparison(program, models, monkeypatch):
    end_to_end = program("speed.end_to_end")
    model = models.build(models.MARIAN, models.SHAPES["quick"], 0.0, 0)
    batch = models.padded_batch(models.INPUTS["quick"], 60, 32, seed=0)
    del batch["labels"]
    end_to_end.generation_step(model, batch, 4, "float32")()
    monkeypatch.setattr(
        end_to_end, "generation_config", lambda tokens, beams: models.generation_config(tokens + 1, beams)
    )
    with pytest.raises(RuntimeError, match="generated 5 tokens, not 4"):
        end_to_end.generation_step(model, batch, 4, "float32")()


def test_the_plan_has_both_shapes_inputs_and_dtypes(program):
    cells = list(program("speed.end_to_end").all_cells())
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 3 + 2
    shapes = program("speed.translation_models").SHAPES
    large = [cell for cell in cells if shapes[cell.shape]["vocab_size"] >= 32_000]
    assert {(cell.task, cell.dtype) for cell in large} == {("training", "float32"), ("training", "bfloat16")}
