"""What a layer costs before a card has computed anything: kernels and Python calls, beside MarianMTModel's, counted on
a CPU.

Small models wait for Python on a GPU. The counts are those of one more layer: four layers less two, over two.
"""

import sys
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, EncoderDecoderCache, MarianConfig, MarianMTModel

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer import layers_reluformer
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.modeling_reluformer.loss_reluformer import module_sums

from ..conftest import random_tokens

SIZES = {"vocab_size": 40, "d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.1, "attention_dropout": 0.1}
SIZES |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "activation_function": "relu"}


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Attention is one kernel by the compiled library, as on a GPU, and several without."""
    if library(large=True) is None:
        pytest.skip("the compiled library cannot be built here")


class Kernels(TorchDispatchMode):
    """Counts the operators that compute or copy; one that returns a view of its argument launches nothing on a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not (function.is_view or str(function) in ("aten.detach.default", "aten._unsafe_view.default"))
        return function(*args, **(kwargs or {}))


def counts(step: Callable[[], object]) -> tuple[int, int]:
    """Kernels and calls of Python functions in one call of `step`."""
    step()
    with Kernels() as kernels:
        step()
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(before)
    return kernels.count, calls


def a_layer(make: Callable, begin: Callable) -> tuple[float, float]:
    """`counts` of one layer (one of the encoder and one of the decoder in training)."""
    few, many = (counts(begin(make(layers))) for layers in (2, 4))
    return tuple((more - less) / 2 for less, more in zip(few, many, strict=True))


def ours(layers: int):
    return ReLUFormerForConditionalGeneration(ReLUFormerConfig(**SIZES, encoder_layers=layers, decoder_layers=layers))


def marian(layers: int):
    return MarianMTModel(MarianConfig(**SIZES, encoder_layers=layers, decoder_layers=layers))


def padded_source() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 7:] = 0
    return {"input_ids": random_tokens(2, 9), "attention_mask": mask}


def decoding(model) -> Callable[[], object]:
    """One token behind a growing cache."""
    model.eval()
    with torch.no_grad():
        encoded = model.get_encoder()(**padded_source())
    given = {"encoder_outputs": encoded, "attention_mask": padded_source()["attention_mask"], "use_cache": True}
    given["past_key_values"] = EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))
    token = random_tokens(2, 1)
    return torch.no_grad()(lambda: model(decoder_input_ids=token, **given))


def training(model) -> Callable[[], object]:
    """Forward and backward, with the regulariser."""
    model.train()
    batch = {**padded_source(), "labels": random_tokens(2, 7, seed=1)}
    weights = tuple(weight for weight in model.parameters() if weight.requires_grad)  # Marian's positions need none
    return lambda: torch.autograd.grad(model(**batch).loss, weights, allow_unused=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("begin", "most"), [(decoding, 1.0), (training, 1.1)])
def test_a_layer_launches_no_more_kernels_than_marians_and_calls_hardly_more_of_python(begin, most):
    """In training the calls beyond Marian's are those that choose and pass on the statistics of each attention."""
    (kernels, calls), (of_marian, calls_of_marian) = a_layer(ours, begin), a_layer(marian, begin)
    assert kernels <= of_marian
    assert calls <= most * calls_of_marian


def test_a_layer_that_decodes_a_token_launches_only_what_it_computes():
    """Linear layers, attentions, norms, sums with the residual, ReLU, and keys and values into the cache."""
    assert a_layer(ours, decoding)[0] == 8 + 2 + 3 + 3 + 1 + 2


def test_the_rows_of_all_attentions_of_a_stack_are_summed_at_once(monkeypatch):
    """Those of the decoder's self- and cross-attentions together: 60 kernels fewer in a step of training."""
    shapes = []

    def counted(row_sum, *args, **options):
        shapes.append(tuple(row_sum.shape))
        return module_sums(row_sum, *args, **options)

    monkeypatch.setattr(layers_reluformer, "module_sums", counted)
    training(ours(3))()
    assert shapes == [(3, 2, 2, 9), (6, 2, 2, 7)]
