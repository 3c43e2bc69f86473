"""`regularization_share`: in the mean over the draws the loss and its gradients are those of all attention modules."""

import pytest
import torch

from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
)
from reluformer.modeling_reluformer.layers_reluformer import ReLUFormerAttention
from reluformer.modeling_reluformer.loss_reluformer import ModuleSample, module_sums, row_entropy

from ..conftest import random_tokens, tiny_model
from .test_loss import NO_DROPOUT, unequal_batch

WEIGHT = {"regularization_weight": 1.0}
RELU = {"attention_activation": "relu", "attention_scaling": "variance", **WEIGHT}


def translation(share: float, **fields):
    """Two layers of encoder and decoder: six modules."""
    return tiny_model(**NO_DROPOUT, **WEIGHT, regularization_share=share, **fields), unequal_batch()


def language(share: float, **fields):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2}
    config = ReLUFormerDecoderConfig(**{**sizes, **fields}, **RELU, regularization_share=share)
    tokens = random_tokens(2, 9)
    return ReLUFormerForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def vision(share: float, **fields):
    sizes = {"hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 16}
    images = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 3}
    config = ReLUFormerVisionConfig(**{**sizes, **fields}, **images, **RELU, regularization_share=share)
    pixels = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return ReLUFormerForImageClassification(config), {"pixel_values": pixels, "labels": torch.tensor([0, 2])}


def made(make, share: float, **fields):
    torch.manual_seed(0)
    model, batch = make(share, **fields)
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    return model.double().train(), batch


def losses_and_gradients(model, batch) -> list[torch.Tensor]:
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    return [
        output.loss.detach(),
        output.regularization.detach(),
        *(weight.grad.clone() for weight in model.parameters()),
    ]


def drawing(monkeypatch, offset: float) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.tensor(offset))


@pytest.mark.parametrize("make", [translation, language, vision])
@pytest.mark.parametrize(("share", "draws"), [(1 / 4, 4), (0.5, 2), (0.3, 10)])
def test_the_mean_over_all_draws_is_the_whole(make, share, draws, monkeypatch):
    """What is taken changes with the offset at multiples of 1 / draws alone: one offset between each two stands for
    all."""
    whole = losses_and_gradients(*made(make, 1.0))
    model, batch = made(make, share)
    each = []
    for draw in range(draws):
        with monkeypatch.context() as patched:
            drawing(patched, (draw + 0.5) / draws)
            each.append(losses_and_gradients(model, batch))
    assert len({float(values[0]) for values in each}) > 1
    for expected, *found in zip(whole, *each, strict=True):
        torch.testing.assert_close(torch.stack(found).mean(0), expected)


def test_each_module_is_drawn_as_often_as_the_share_says():
    torch.manual_seed(0)
    draws, share, modules = 4_000, 0.3, 9
    taken = torch.tensor([ModuleSample.draw(share, modules).taken for _ in range(draws)]).double()
    assert set(taken.sum(1).tolist()) == {2.0, 3.0}  # of 2.7
    deviation = (share * (1 - share) / draws) ** 0.5
    assert (taken.mean(0) - share).abs().max() < 4.5 * deviation  # 7e-6 each


@pytest.mark.parametrize("implementation", ["eager", "fused"])
def test_only_the_modules_drawn_compute_statistics(implementation, monkeypatch):
    model, batch = made(translation, 0.5, attn_implementation=implementation)
    asked = []
    forward = ReLUFormerAttention.forward

    def watched(module, hidden_states, context, *args, **kwargs):
        output = forward(module, hidden_states, context, *args, **kwargs)
        asked.append((context.measured.statistics, output[2][0] is not None))
        return output

    monkeypatch.setattr(ReLUFormerAttention, "forward", watched)
    drawing(monkeypatch, 0.5)  # the first of every two
    training = model(**batch)
    # encoder self; then self and cross of each decoder layer, whose modules are numbered self first
    wanted = [True, False, True, True, False, False]
    assert asked == [("sum+entropy" if each else "none", each) for each in wanted]
    asked.clear()
    evaluation = model.eval()(**batch)
    assert asked == [("sum+entropy", True)] * 6
    assert training.regularization != evaluation.regularization
    whole = made(translation, 1.0, attn_implementation=implementation)[0].eval()(**batch)
    for name in ("loss", "regularization", "attention_sum", "attention_entropy", "dead_row_fraction"):
        torch.testing.assert_close(evaluation[name], whole[name], rtol=0, atol=0)


def test_the_sums_of_a_module_stand_at_its_number(monkeypatch):
    model, batch = made(translation, 0.5)
    seen = []
    model.model.register_forward_hook(lambda module, inputs, output: seen.append(output.attention_sums))
    drawing(monkeypatch, 0.0)  # the second of every two
    model(**batch)
    rows = seen[0][:, 4]
    assert (rows > 0).tolist() == [False, True] * 3


def test_the_figures_of_a_pass_are_means_over_the_modules_drawn(monkeypatch):
    model, batch = made(language, 0.5)
    for layer in model.model.layers[::2]:  # a head of every second module is dead
        layer.self_attn.k_proj.weight.data[:8], layer.self_attn.k_proj.bias.data[:8] = 0, 0
    seen = []

    def watched(row_sum, row_sum_log, *args, **options):
        seen.append((row_sum.detach(), row_sum_log.detach()))
        return module_sums(row_sum, row_sum_log, *args, **options)

    monkeypatch.setattr("reluformer.modeling_reluformer.layers_reluformer.module_sums", watched)
    output = model(**batch)
    row_sum, row_sum_log = (each[:, :, :, :-1] for each in seen[0])  # the last position predicts nothing
    assert len(row_sum) == 3
    torch.testing.assert_close(output.attention_sum, row_sum.mean())
    torch.testing.assert_close(output.attention_entropy, row_entropy(row_sum, row_sum_log).mean())
    dead = (row_sum == 0).to(row_sum.dtype).mean()
    assert 0 < dead < 1
    torch.testing.assert_close(output.dead_row_fraction, dead)
    assert not any(output[name].requires_grad for name in ("attention_sum", "attention_entropy", "dead_row_fraction"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_computes_the_same_modules_again(reentrant):
    gradients = []
    for checkpointing in (False, True):
        model, batch = made(translation, 0.5)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(7)
        gradients.append(losses_and_gradients(model, batch))
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)


def test_the_draw_is_of_the_generator_that_a_training_saves():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = [ModuleSample.draw(0.3, 9) for _ in range(5)]
    torch.set_rng_state(state)
    assert [ModuleSample.draw(0.3, 9) for _ in range(5)] == first


@pytest.mark.parametrize(
    "fields", [{"regularization_share": 1.0}, {"regularization_share": 0.5, "regularization_weight": 0.0}]
)
def test_nothing_is_drawn_where_nothing_is_to_be_chosen(fields):
    model = tiny_model(**NO_DROPOUT, **fields).train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model(**unequal_batch())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match=r"regularization_share=.* must lie in \(0, 1\]"):
        ReLUFormerConfig(regularization_share=share)


def test_a_share_of_less_than_a_module_is_refused():
    with pytest.raises(
        ValueError, match=r"regularization_share=0.1 is less than one of the 9 attention modules; .* 0\.1112"
    ):
        ReLUFormerConfig(regularization_share=0.1, encoder_layers=3, decoder_layers=3)
    for config in (ReLUFormerDecoderConfig, ReLUFormerVisionConfig):
        with pytest.raises(ValueError, match="less than one of the 2 attention modules"):
            config(regularization_share=0.4, num_hidden_layers=2)
    ReLUFormerDecoderConfig(**RELU, regularization_share=1 / 49, num_hidden_layers=49)  # whose product is below 1


@pytest.mark.parametrize(
    ("share", "rule"), [(0, r"must lie in \(0, 1\]"), (1.5, r"must lie in"), (0.1, "less than one")]
)
def test_a_share_that_is_set_later_is_checked_when_modules_are_drawn(share, rule):
    model, batch = made(translation, 0.5)
    model.config.regularization_share = share
    with pytest.raises(ValueError, match=f"regularization_share={share} .*{rule}"):
        model(**batch)


def test_a_share_of_no_regulariser_is_told(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.configuration_reluformer.logger.warning_once", messages.append)
    ReLUFormerConfig(regularization_share=0.5), ReLUFormerConfig(regularization_weight=0.0)
    assert not messages
    ReLUFormerConfig(regularization_share=0.5, regularization_weight=0.0)
    assert messages == [
        "regularization_share=0.5 has no effect: it is a share of the regulariser, and regularization_weight is 0."
    ]
