"""The regulariser L_reg (Eq. 7) of other models, without weight matrices: collected in their attention, added to their
loss.

A hook before the forward pass of a model opens a `Collection`, each attention adds the penalties of its rows, and a
hook after the pass adds their mean to the loss that the model returns. So accumulation, scaling and averages over
processes apply to the regulariser, too. Where a model consists of several `PreTrainedModel`s, the outermost collects.

What an attention computes depends on its settings and its mode alone, not on an open collection. So a checkpoint that
computes a layer again in the backward pass finds the same operations, and nothing collects its result a second time.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.utils import is_torchdynamo_compiling, logging

from ..loss_reluformer import IGNORED_LABEL
from . import ATTENTION_NAME

logger = logging.get_logger(__name__)

HOW = "use_relu_attention(model, regularization_weight=0.01)"


@dataclass
class Collection:
    """What the attentions of one forward pass have added so far.

    owner: the model whose pass it is. calls: the module, Eq. 7 of its rows, (batch, heads, queries), and which of them
    are real, (batch or 1, queries), or None: all are.
    """

    owner: PreTrainedModel
    calls: list[tuple[nn.Module, Tensor, Tensor | None]] = field(default_factory=list)


class _OfThread(threading.local):
    collection: Collection | None = None


_open = _OfThread()
# L_reg of the last pass in training of a model, and the attentions of which a collection has had rows.
_latest: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()
_collected: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def attention_regularization(model: nn.Module) -> Tensor:
    """L_reg (Eq. 7) of the last forward pass of a model in training, for the logs or for a loss of one's own.

    The mean over the attention modules of the mean over their heads and real rows; padding does not count. Where that
    pass returned a loss, `regularization_weight` · L_reg is in it already: do not add it again.

    Args:
        model: one that `use_relu_attention(model, regularization_weight=…)` was called for, or a wrapper around it
            (`DistributedDataParallel`, PEFT).

    Returns:
        A scalar of the autograd graph, float32 (float64 for a model in float64).

    Raises:
        ValueError: no forward pass with gradients in training mode, of a model that computes it.
    """
    for part in model.modules():
        if part in _latest:
            return _latest[part]
    raise ValueError(
        f"{type(model).__name__} has no L_reg: it is computed by a forward pass with gradients in training mode, after "
        f"{HOW}."
    )


def watch(model: PreTrainedModel) -> None:
    """Hooks the collection to the forward pass of a model whose config has a `regularization_weight`; once."""
    if regularization_weight(model) and _begin not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_begin, with_kwargs=True)
        model.register_forward_hook(_end, with_kwargs=True, always_call=True)


def regularization_weight(model: PreTrainedModel) -> float:
    """λ as the config of a model with ReLU attention has it; 0 for others. Settings are checked where attention reads
    them."""
    settings = getattr(model.config, ATTENTION_NAME, None) or {}
    return settings.get("regularization_weight", 0.0) if model.config._attn_implementation == ATTENTION_NAME else 0.0


def collects(module: nn.Module, weight: float) -> bool:
    """Whether an attention has to compute the statistics of its rows: in training, with gradients, where λ is above 0.

    Raises:
        ValueError: no model collects them, or they would be computed without gradients within a pass that has them.
    """
    if not weight or not module.training:
        return False
    if not torch.is_grad_enabled():
        if _open.collection is None:
            return False
        raise ValueError(
            f"{type(module).__name__} computes without gradients in a pass of {type(_open.collection.owner).__name__} "
            "that has them, so its part of the regulariser would be lost. Checkpoints of activations: "
            "gradient_checkpointing_kwargs={'use_reentrant': False}. A frozen part under torch.no_grad(): call its "
            "eval()."
        )
    if _open.collection is None and not is_torchdynamo_compiling() and module not in _collected:
        raise ValueError(
            f"{type(module).__name__} has regularization_weight={weight} in its config, but no model adds it to a "
            f"loss. Call {HOW} instead of writing it into the config of a model that is built already, and call the "
            "model, not its layers."
        )
    return True


def collect(module: nn.Module, penalty: Tensor, real_rows: Tensor | None) -> None:
    """Adds the rows of one call to the open collection, see there; in a checkpoint's second computation there is
    none."""
    if _open.collection is not None:
        _open.collection.calls.append((module, penalty, real_rows))
        if not is_torchdynamo_compiling():
            _collected.add(module)


@torch.compiler.disable
def _begin(model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _open.collection is None and model.training and torch.is_grad_enabled() and regularization_weight(model):
        _open.collection = Collection(model)


@torch.compiler.disable
def _end(model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    collection = _open.collection
    if collection is None or collection.owner is not model:
        return None
    _open.collection = None
    if output is None:  # the pass raised an error
        return None
    inputs = {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}
    regularization = _latest[model] = _mean(collection, inputs)
    loss = output.get("loss") if isinstance(output, Mapping) else output[0]
    if loss is None or loss.ndim:
        logger.warning_once(
            f"{type(model).__name__} returned no loss in training, so the regulariser of ReLU attention is in none. "
            "Give it its labels (the Trainer keeps them back for label_smoothing_factor and compute_loss_func), or add "
            "regularization_weight * reluformer.attention_regularization(model) to your loss."
        )
        return None
    addition = regularization_weight(model) * _share(model, inputs) * regularization
    loss = loss + addition.to(loss.device)
    if not isinstance(output, Mapping):
        return loss, *output[1:]
    output["loss"] = loss
    return output


def _mean(collection: Collection, inputs: Mapping[str, Any]) -> Tensor:
    """L_reg, of the calls of attention whose rows were collected."""
    model = collection.owner
    if not collection.calls:
        raise ValueError(
            f"{type(model).__name__} has regularization_weight={regularization_weight(model)}, and no attention in "
            "training mode computed ReLU attention in this forward pass. Set regularization_weight to 0, or train the "
            "parts with attention."
        )
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    in_decoder = set() if decoder is model else set(decoder.modules())  # an encoder alone is its own decoder
    device = collection.calls[-1][1].device
    means = []
    for module, penalty, real in collection.calls:
        if module in in_decoder:  # the keys of some are source tokens, so that their masks say nothing of rows
            real = _decoder_rows(inputs, penalty)
        if real is None:
            means.append(penalty.mean().to(device))
            continue
        counted = real.to(penalty.device)[:, None].expand_as(penalty)
        # `where`, not a product: what padding holds may be anything
        means.append((torch.where(counted, penalty, 0.0).sum() / counted.sum().clamp_min(1)).to(device))
    return torch.stack(means).mean()


def _decoder_rows(inputs: Mapping[str, Any], penalty: Tensor) -> Tensor | None:
    """(batch, queries): the tokens of `decoder_attention_mask`; else tokens with a label; None: all rows."""
    real, labels = inputs.get("decoder_attention_mask"), inputs.get("labels")
    if real is None and getattr(labels, "ndim", 0) == 2:  # else not of tokens
        real = labels.ne(IGNORED_LABEL)
    return None if real is None else real.bool()[:, -penalty.shape[-1] :]


def _share(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor | float:
    """The share of this pass in the update: its labels over `num_items_in_batch`, which the Trainer gives; 1 without
    it.

    The labels are counted as the Trainer counts them: without the first of each row where the loss shifts them.
    """
    items = inputs.get("num_items_in_batch")
    if items is None:
        return 1.0
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs["labels"]
        shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
        if shifts and not model.config.is_encoder_decoder:
            labels = labels[..., 1:]
    labelled = labels.ne(IGNORED_LABEL).sum()
    return labelled / (items.to(labelled.device) if isinstance(items, Tensor) else items)
