"""The rules by which masks are kept compact, and by which the source of a model is read."""

import ast

import pytest
import torch
from torch import nn
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

from reluformer.modeling_reluformer.other_models.masks import relu_attention_mask
from reluformer.modeling_reluformer.other_models.softmax import refuse_softmax_layers
from reluformer.modeling_reluformer.other_models.support import _additive_mask, _always_given


@pytest.mark.parametrize("seen", [3, 4, 5])
def test_keys_beyond_the_mask_are_hidden(seen):
    """One is missing, two, or none."""
    sizes = {"batch_size": 2, "q_length": 3, "kv_length": 5, "q_offset": 2, "kv_offset": 0}
    arguments = {
        **sizes,
        "mask_function": causal_mask_function,
        "attention_mask": torch.ones(2, seen, dtype=torch.bool),
    }
    found = relu_attention_mask(**arguments, device="cpu")
    arguments |= {"attention_mask": torch.arange(5).expand(2, 5) < seen, "allow_is_causal_skip": False}
    assert torch.equal(found.visibility.dense(3, 5, torch.device("cpu")).expand(2, 1, 3, 5), sdpa_mask(**arguments))


def test_a_window_that_hides_keys_from_later_queries_is_kept():
    """All keys fit into the window, but the last queries are further away from the first of them."""
    sizes = {"batch_size": 1, "q_length": 6, "kv_length": 3, "q_offset": 0, "kv_offset": 0}
    arguments = {**sizes, "mask_function": sliding_window_causal_mask_function(4), "local_size": 4}
    found = relu_attention_mask(**arguments, allow_is_causal_skip=True, device="cpu")
    assert isinstance(found, torch.Tensor)
    assert not found[0, 0, 5, 0] and found[0, 0, 3, 0]


class PooledAttention(nn.Module):
    """Weighs its inputs by softmax, without any product of queries and keys."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return (states.softmax(1) * states).sum(1)


class Layers(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.layers = nn.ModuleList(PooledAttention() for _ in range(count))


def test_layers_without_products_are_warned_of_and_counted(monkeypatch):
    warned = []
    monkeypatch.setattr("reluformer.modeling_reluformer.other_models.softmax.logger.warning", warned.append)
    refuse_softmax_layers(Layers(6), "Pooling")
    (line,) = warned
    assert "PooledAttention (layers.3) and 2 more." in line and "layers.4" not in line
    refuse_softmax_layers(Layers(4), "Pooling")
    assert "PooledAttention (layers.3)." in warned[1]


class Product(nn.Module):
    def forward(self, attention_mask: torch.Tensor) -> torch.Tensor:
        attention_mask = (1.0 - attention_mask) * torch.finfo(attention_mask.dtype).min
        return attention_mask


class Sum(nn.Module):
    def forward(self, attention_mask: torch.Tensor) -> torch.Tensor:
        attention_mask = attention_mask + torch.finfo(attention_mask.dtype).eps
        return attention_mask


def test_only_a_product_with_the_smallest_number_is_an_additive_mask():
    assert _additive_mask(Product) == "attention_mask"
    assert _additive_mask(Sum) is None


@pytest.mark.parametrize(
    ("value", "decided_by"),
    [("self.bias", "bias"), ("self.config.bias", ""), ("other.bias", ""), ("None", None), ("1", "")],
)
def test_what_decides_whether_a_value_is_given(value, decided_by):
    assert _always_given(ast.parse(""), ast.parse(value, mode="eval").body) == decided_by
