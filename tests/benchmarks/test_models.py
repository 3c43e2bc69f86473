"""The models that are timed beside each other: the same shape, the same work."""

import pytest
import torch

from benchmarks import decoder, translation
from benchmarks.translation import MARIAN, MARIAN_SMOOTHED, OURS, OURS_UNREGULARIZED, SHAPES, build, padded_batch

SIZES = {**decoder.QUICK_SHAPE, "max_position_embeddings": 16}


def test_contenders_have_the_dropout_and_the_regulariser_they_are_named_for():
    names = (OURS, OURS_UNREGULARIZED, MARIAN, "rela")
    ours, unregularized, marian, rela = (build(name, SHAPES["quick"], 0.1, 0).config for name in names)
    assert {(config.dropout, config.attention_dropout) for config in (ours, unregularized, marian)} == {(0.1, 0.1)}
    assert ours.regularization_weight > 0 == unregularized.regularization_weight
    assert ours.label_smoothing == translation.LABEL_SMOOTHING > 0
    assert ours._attn_implementation == "fused" and marian._attn_implementation == "sdpa"
    assert rela.attention_output_norm == "gated_rms" and rela.attention_scaling == "none"


def test_the_smoothed_marian_computes_the_loss_of_our_config():
    batch = padded_batch(translation.INPUTS["quick"], 60, 64, seed=0)
    plain, smoothed = (build(name, SHAPES["quick"], 0.1, 0).eval() for name in (MARIAN, MARIAN_SMOOTHED))
    with torch.no_grad():
        found, without = smoothed(**batch), plain(**batch)
    torch.testing.assert_close(found.logits, without.logits)
    log_probabilities = found.logits.double().log_softmax(-1)
    real = batch["labels"] != -100
    of_label = log_probabilities.gather(2, batch["labels"].clamp(min=0).unsqueeze(2)).squeeze(2)
    expected = -(0.9 * of_label + 0.1 * log_probabilities.mean(-1))[real].mean()
    torch.testing.assert_close(found.loss.double(), expected)
    assert found.loss != without.loss


@pytest.mark.parametrize("kind", ["multi30k-like", "1,024 tokens"])
def test_batches_are_full_and_padded(kind):
    batch = padded_batch(translation.INPUTS[kind], 100, 2048, seed=0)
    rows, width = batch["input_ids"].shape
    assert 1600 < rows * max(width, batch["labels"].shape[1]) <= 2048
    facts = translation.batch_facts(batch)
    assert facts["target_tokens"] == int((batch["labels"] != -100).sum()) < rows * batch["labels"].shape[1]
    last = batch["attention_mask"].sum(1) - 1
    assert torch.equal(batch["input_ids"].gather(1, last.unsqueeze(1)), torch.full((rows, 1), translation.EOS))
    assert torch.equal(batch["input_ids"] == translation.PAD, batch["attention_mask"] == 0)
    assert width == 1024 or kind == "multi30k-like"


@pytest.mark.parametrize("library", decoder.LIBRARIES)
def test_softmax_has_the_logits_of_the_library_s_model_and_relu_its_weights(library):
    torch.manual_seed(0)
    models = decoder.build(library, SIZES, False, torch.float32)
    ids = torch.randint(3, 60, (2, 16))
    with torch.no_grad():
        logits = {name: model(ids).logits for name, model in models.items()}
    assert list(logits) == [decoder.RELU, decoder.SOFTMAX, library]
    torch.testing.assert_close(logits[decoder.SOFTMAX], logits[library], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(logits[decoder.RELU], logits[library], atol=1e-3)
    relu, softmax = (models[name] for name in (decoder.RELU, decoder.SOFTMAX))
    for one, two in zip(relu.parameters(), softmax.parameters(), strict=True):
        assert torch.equal(one, two) and one.data_ptr() != two.data_ptr()


def test_only_the_first_trains_with_the_regulariser_and_none_of_ours_holds_logits():
    torch.manual_seed(0)
    ids = torch.randint(3, 60, (2, 16))
    models = decoder.build(decoder.GPT2, SIZES, True, torch.float32)
    found = {name: model(input_ids=ids, labels=ids) for name, model in models.items()}
    assert [output.logits is None for output in found.values()] == [True, True, True, False]
    terms = {name: output.regularization for name, output in found.items() if name != decoder.GPT2}
    assert [name for name, term in terms.items() if term is not None] == [decoder.RELU]
    torch.testing.assert_close(found[decoder.SOFTMAX].loss, found[decoder.GPT2].loss)


def test_a_step_of_generation_begins_behind_the_prompt_each_time():
    torch.manual_seed(0)
    prompt = torch.randint(3, 60, (1, 9))
    for model in decoder.build(decoder.LLAMA, SIZES, False, torch.float32).values():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter) if parameter.ndim > 1 else None
        given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 5, "min_new_tokens": 5}
        expected = model.generate(prompt, **given, do_sample=False)
        step, passes = decoder.decoding_step(model, prompt, 5), []
        model.register_forward_hook(lambda *given, passes=passes: passes.append(given[2].logits.shape[1]))
        for _ in range(3):
            assert torch.equal(step(), expected)
        assert passes == [1] * 15, "one token a pass, and no prompt"
