"""The loss without logits against the plain one: value, gradients, what is never computed, and the model around it."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import reluformer.modeling_reluformer.fused.vocabulary_loss as module
from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.fused.vocabulary_loss import vocabulary_loss

from ...conftest import random_tokens, tiny_model

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def problem(positions: int, width: int, vocabulary: int, dtype=torch.float64) -> dict[str, torch.Tensor]:
    """Two sentences of so many positions; about every third has no label."""
    generator = torch.Generator().manual_seed(positions * vocabulary)
    labels = torch.randint(0, vocabulary, (2, positions), generator=generator)
    labels[torch.rand(2, positions, generator=generator) < 0.3] = -100
    labels[0, 0] = vocabulary - 1
    numbers = {"hidden_states": (2, positions, width), "weight": (vocabulary, width), "bias": (1, vocabulary)}
    drawn = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in numbers.items()
    }
    return {**{name: tensor.requires_grad_() for name, tensor in drawn.items()}, "labels": labels}


def plain(hidden_states, weight, labels, bias, label_smoothing):
    logits = nn.functional.linear(hidden_states, weight) + bias
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing, reduction="sum"
    )


def with_gradients(function, given, label_smoothing=0.1, dtype=None) -> list[torch.Tensor]:
    """The loss, and three times its gradients to hidden states, matrix and bias, in another dtype where one is
    given."""
    if dtype is not None:
        numbers = {name: tensor for name, tensor in given.items() if name != "labels"}
        given = given | {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in numbers.items()}
    loss = function(**given, label_smoothing=label_smoothing)
    return [loss.detach(), *torch.autograd.grad(3 * loss, [given["hidden_states"], given["weight"], given["bias"]])]


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request, monkeypatch) -> None:
    if (
        request.param == "many chunks"
    ):  # of three positions in float64, of six in float32; one row of the softmax at a time
        monkeypatch.setattr(module, "CHUNK_BYTES", {"cpu": 1})
        monkeypatch.setattr(module, "LEAST_COLUMN_BYTES", 24)
        monkeypatch.setattr(module, "CACHED_LOGITS", 1)


SIZES = [(1, 1, 1), (1, 3, 7), (10, 13, 101), (37, 16, 64)]


@pytest.mark.parametrize("label_smoothing", [0, 0.1])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_loss_and_gradients_are_those_of_the_plain_loss(chunks, dtype, size, label_smoothing):
    given = problem(*size, dtype)
    expected = with_gradients(plain, given, label_smoothing, torch.float64)
    found = with_gradients(vocabulary_loss, given, label_smoothing)
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one - two).abs().max() <= tolerance * max(1, two.abs().max())


def test_a_batch_without_labels_costs_nothing():
    given = problem(5, 4, 9)
    given["labels"].fill_(-100)
    assert all((tensor == 0).all() for tensor in with_gradients(vocabulary_loss, given))
    model, batch = tiny_model().train(), batch_of_three()
    output = model(**{**batch, "labels": torch.full_like(batch["labels"], -100)}, skip_logits=True)
    output.loss.backward()
    assert output.loss == 0
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_under_autocast_the_error_is_that_of_bfloat16_products(chunks):
    """The sums over chunks are float32: many chunks are no less exact than the plain loss."""
    given = problem(60, 32, 200, torch.float32)
    expected = with_gradients(plain, given, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        products = torch.mm(given["weight"], given["weight"].t()).dtype
        results = [with_gradients(function, given) for function in (vocabulary_loss, plain)]
    assert products == torch.bfloat16
    for ours, theirs, reference in zip(*results, expected, strict=True):
        assert ours.dtype == torch.float32
        errors = [(result - reference).norm() / reference.norm() for result in (ours, theirs)]
        assert 0 < errors[0] < max(1.2 * errors[1], 1e-5)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that an operator returns."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.numel())
        return result


@pytest.mark.parametrize("room", [2**16, 2**22])
def test_the_logits_are_never_there(room, monkeypatch):
    """The room holds 256 positions, the fewest, or some 500 of the 1,000 that have a label."""
    monkeypatch.setattr(module, "CHUNK_BYTES", {"cpu": room})
    given = problem(700, 4, 2000, torch.float32)
    seen = {}
    for function in (vocabulary_loss, plain):
        with LargestTensor() as largest:
            function(**given, label_smoothing=0.1).backward()
        seen[function] = largest.numbers
    assert seen[plain] == 1400 * 2000
    assert seen[vocabulary_loss] <= max(256 * 2000, room // 4)


def batch_of_three() -> dict[str, torch.Tensor]:
    source, labels = random_tokens(3, 7), random_tokens(3, 6, seed=1)
    mask = torch.ones_like(source)
    mask[1, 4:] = 0
    labels[0, 2:] = labels[2, 5:] = -100
    return {"input_ids": source * mask, "attention_mask": mask, "labels": labels}


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


VOCABULARIES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "two": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31},
}


@pytest.mark.parametrize("label", [-1, 40])
def test_a_label_outside_the_vocabulary_is_an_index_error(label):
    model, batch = tiny_model(vocab_size=40), batch_of_three()
    batch["labels"][0, -1] = label  # which is no input of the decoder
    for skip_logits in (False, True):
        with pytest.raises(IndexError, match=f"Target {label} is out|labels holds ids from .*{label}.*has 0 to 39"):
            model(**batch, skip_logits=skip_logits)


@pytest.mark.parametrize("fields", VOCABULARIES.values(), ids=VOCABULARIES)
def test_a_model_has_the_same_loss_and_gradients_without_logits(fields):
    batch = batch_of_three()
    batch["labels"] = batch["labels"].clamp(max=30)
    results = []
    for skip_logits in (False, True):
        model = tiny_model(**NO_DROPOUT, **fields).double().train()
        model.final_logits_bias += torch.linspace(-1, 1, model.config.decoder_vocab_size)
        output = model(**batch, skip_logits=skip_logits)
        assert (output.logits is None) == skip_logits
        output.loss.backward()
        results.append((output.loss.detach(), output.cross_entropy.detach(), gradients(model)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-13)


def test_the_config_skips_logits_in_training_alone(tmp_path):
    tiny_model(skip_logits=True).save_pretrained(tmp_path)
    model, batch = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path).train(), batch_of_three()
    assert model(**batch).logits is None
    assert model(**batch, skip_logits=False).logits is not None
    assert model(input_ids=batch["input_ids"], decoder_input_ids=batch["labels"].clamp(min=0)).logits is not None
    assert model.eval()(**batch).logits is not None
    assert model(**batch, skip_logits=True).logits is None
    assert tiny_model().train()(**batch).logits is not None


class Doubled(nn.Linear):
    """A head of another class, which computes something else."""

    def forward(self, hidden_states):
        return 2 * super().forward(hidden_states)


def test_a_head_that_computes_other_logits_is_called_for_them(caplog):
    model, batch = tiny_model(**NO_DROPOUT, tie_word_embeddings=False), batch_of_three()
    before, weight = model(**batch).loss, model.lm_head.weight
    model.lm_head = Doubled(16, 40, bias=False)
    model.lm_head.weight = weight
    losses = [model(**batch, skip_logits=skip_logits).loss for skip_logits in (False, True)]
    assert losses[0] == losses[1] != before
    model.lm_head = nn.Linear(16, 40, bias=False)
    # as offloading does
    model.lm_head.register_forward_pre_hook(lambda head, inputs: head.load_state_dict({"weight": weight}) and None)
    assert model(**batch, skip_logits=True).loss == before
    assert "skip_logits saves no memory here" in caplog.text and "Doubled" in caplog.text
