"""Tiny float64 models, what they are given, and the same through `paper_formulas`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import reluformer.modeling_reluformer.fused.attention as fused
import reluformer.modeling_reluformer.fused.blockwise as blockwise
from reluformer import ReLUFormerForConditionalGeneration
from reluformer.modeling_reluformer.configuration_reluformer import valid_attention_implementations

from ..conftest import random_tokens, tiny_model
from .paper_formulas import Batch, PaperModel

# Sums of some dozen terms through a dozen layers.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
# Of the tests' few keys, the default gamma would leave so little of the attention that a fault in it is hard to see.
LOUD = {"attention_gamma": 1.5}


def exact_model(**fields: Any) -> ReLUFormerForConditionalGeneration:
    """Made in float64, not only converted: the table of positions and the logarithm of gamma then have all their
    digits."""
    torch.set_default_dtype(torch.float64)
    try:
        return tiny_model(**{**NO_DROPOUT, **LOUD, **fields})
    finally:
        torch.set_default_dtype(torch.float32)


def use_path(monkeypatch, path: str) -> str:
    """The implementation of a path. `fused` has two: plain products, and blocks, here of a few queries."""
    if path in ("plain", "blocks"):
        monkeypatch.setattr(fused, "_is_small", lambda *call: path == "plain")
        monkeypatch.setattr(blockwise, "BYTES_PER_BLOCK", 0)
        monkeypatch.setattr(blockwise, "SMALLEST_BLOCK", 3)
        return "fused"
    return path


def paths(attention_activation: str) -> list[str]:
    """All ways to compute an activation here."""
    names = valid_attention_implementations(attention_activation)
    own = [path for name in names for path in (("plain", "blocks") if name == "fused" else (name,))]
    return [path for path in own if not path.startswith("flash")]


def state_of(module: nn.Module, prefix: str = "") -> dict[str, np.ndarray]:
    return {prefix + name: tensor.detach().numpy() for name, tensor in module.state_dict(keep_vars=True).items()}


def whole_batch() -> dict[str, torch.Tensor]:
    return {"input_ids": random_tokens(2, 6), "labels": random_tokens(2, 5, seed=1)}


def padded_batch(side: str) -> dict[str, torch.Tensor]:
    """Three sentences of unequal lengths, source and target padded on one side."""
    source, target, labels = (random_tokens(3, length, seed=seed) for seed, length in enumerate((7, 6, 6)))
    masks = torch.ones_like(source), torch.ones_like(labels)
    for row, lengths in enumerate(((3, 6), (7, 2), (4, 3))):
        for mask, length in zip(masks, lengths, strict=True):
            if side == "right":
                mask[row, length:] = 0
            else:
                mask[row, : mask.shape[1] - length] = 0
    batch = {
        "input_ids": source * masks[0],
        "attention_mask": masks[0],
        "labels": labels.masked_fill(masks[1] == 0, -100),
    }
    if side == "left":
        batch |= {"decoder_input_ids": target * masks[1], "decoder_attention_mask": masks[1]}
    return batch


def packed_batch() -> dict[str, torch.Tensor]:
    """Two rows of two and three sentences, the second with padding behind them; one target is not trained on."""
    segments = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 2, 2, 2, 3, 0, 0, 0]])
    target_segments = torch.tensor([[1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 2, 3, 3, 0]])
    labels = random_tokens(2, 7, seed=2).masked_fill(target_segments == 0, -100)
    labels[0, 3] = -100
    mask = (segments > 0).long()
    mask[0, 3] = 0  # the last token of a sentence is hidden
    return {
        "input_ids": random_tokens(2, 9) * (segments > 0),
        "attention_mask": mask,
        "decoder_input_ids": random_tokens(2, 7, seed=1),
        "labels": labels,
        "segment_ids": segments,
        "decoder_segment_ids": target_segments,
    }


BATCHES = {
    "whole": whole_batch,
    "right": lambda: padded_batch("right"),
    "left": lambda: padded_batch("left"),
    "packed": packed_batch,
}


def as_arrays(batch: dict[str, torch.Tensor]) -> Batch:
    names = ("input_ids", "labels", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    found = [batch.get(name) for name in (*names, "segment_ids", "decoder_segment_ids")]
    return Batch(*(None if tensor is None else tensor.numpy() for tensor in found))


def paper_model(model: ReLUFormerForConditionalGeneration, **options: Any) -> PaperModel:
    return PaperModel(model.config, state_of(model), **options)


def assert_equals_the_paper(
    model: ReLUFormerForConditionalGeneration, batch: dict[str, torch.Tensor], items: int | None = None, **options: Any
) -> Any:
    """Logits of real rows, and every figure that the model reports; returns the model's output."""
    output = model(**batch, num_items_in_batch=items)
    logits, losses = paper_model(model, **options)(as_arrays(batch), items)
    real = batch["labels"] != -100
    torch.testing.assert_close(output.logits[real].detach(), torch.from_numpy(logits)[real], **TOLERANCE)
    for name, expected in losses._asdict().items():
        found = getattr(output, name)
        if found is not None:
            expected = torch.tensor(float(expected), dtype=torch.float64)
            torch.testing.assert_close(
                found.detach(), expected, **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
            )
    return output
