"""Whether exported graphs compute what the model does, before anyone relies on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reluformer.export.running import OnnxTranslationModel
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME

# Lengths of the sources of a batch, so that there is padding, and how many targets each has; the steps in which they are given.
_BATCHES, _STEPS = (((7, 1, 4), 1), ((7, 1, 4), 3), ((1,), 1)), (3, 1, 1, 2)
# Two orders of the same float32 operations leave errors of one size. A wrong mask or position changes logits by far more.
_ROUNDINGS = 16


class Difference(NamedTuple):
    """largest: of a logit from that of PyTorch in float64. allowed: the most that rounding explains. scale: largest logit."""

    largest: float
    allowed: float
    scale: float


class _Case(NamedTuple):
    input_ids: Tensor
    attention_mask: Tensor
    decoder_input_ids: Tensor
    targets_per_source: int


@torch.no_grad()
def difference(model: PreTrainedModel, exported: OnnxTranslationModel) -> Difference:
    """How far the graphs are from the model, which is in float32 and evaluation mode.

    Random tokens; sources with padding, with one target each and with several; a single token; targets in steps of several
    lengths behind a cache that grows from nothing. PyTorch computes each target at once without a cache. `allowed` is 16 times
    the error of PyTorch itself in float32, and at least 16 roundings of the largest logit.
    """
    exact = copy.deepcopy(model).double()
    largest, rounding, scale = 0.0, 0.0, 0.0
    for case in _cases(model):
        wanted = _at_once(exact, case)
        rounding = max(rounding, _distance(_at_once(model, case), wanted))
        largest = max(largest, _distance(_in_steps(exported, case), wanted))
        scale = max(scale, float(wanted.abs().max()))
    return Difference(largest, _ROUNDINGS * max(rounding, torch.finfo(torch.float32).eps * scale), scale)


def _cases(model: PreTrainedModel) -> Iterator[_Case]:
    generator = torch.Generator().manual_seed(0)
    config = model.config
    longest = config.max_position_embeddings
    for lengths, count in _BATCHES:
        sources = torch.tensor(lengths).clamp_max(longest)
        mask = (torch.arange(int(sources.max())) < sources.unsqueeze(1)).long()
        ids = torch.randint(config.vocab_size, mask.shape, generator=generator)
        size = (count * len(lengths), min(sum(_STEPS), longest))
        yield _Case(ids, mask, torch.randint(config.decoder_vocab_size, size, generator=generator), count)


def _at_once(model: PreTrainedModel, case: _Case) -> Tensor:
    """Logits (targets, length, vocabulary) of PyTorch, without a cache and with a source for each target."""
    return model(
        input_ids=case.input_ids.repeat_interleave(case.targets_per_source, dim=0),
        attention_mask=case.attention_mask.repeat_interleave(case.targets_per_source, dim=0),
        decoder_input_ids=case.decoder_input_ids,
        use_cache=False,
    ).logits


def _in_steps(exported: OnnxTranslationModel, case: _Case) -> Tensor:
    """The same of the graphs, with a cache and sources that targets share."""
    encoded = exported.encoder(case.input_ids, case.attention_mask)
    logits, cache = [], None
    for tokens in case.decoder_input_ids.split(_split(case.decoder_input_ids.shape[1]), dim=1):
        output = exported(
            attention_mask=case.attention_mask,
            decoder_input_ids=tokens,
            encoder_outputs=encoded,
            cache=cache,
            targets_per_source=case.targets_per_source,
        )
        cache = getattr(output, CACHE_NAME)
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _split(length: int) -> list[int]:
    """Steps that give so many tokens: those of the plan, or one by one where the model has too few positions for it."""
    return list(_STEPS) if length == sum(_STEPS) else [1] * length


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max().nan_to_num(nan=torch.inf))
