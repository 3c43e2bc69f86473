"""How a mean over one forward pass has to be weighed beside the loss of that pass, where the Trainer cuts an update into several.

The Trainer of Transformers gives models that take it `num_items_in_batch`, the number of labels of the whole update, and does not
divide by the accumulation steps then. A model divides the sum of its loss by that number, or ignores it and returns a mean.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

from .support import tree_of

IGNORED_LABEL = -100


def call_inputs(model: PreTrainedModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model by their names."""
    if not args:
        return dict(kwargs)
    return {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}


def loss_share(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor | float:
    """The share of this pass in the update: its labels by `num_items_in_batch`; 1 where the model's own loss is a mean.

    The labels are counted as the Trainer counts them: without the first of each row where the loss shifts them.

    Raises:
        ValueError: `num_items_in_batch` without labels.
    """
    items = inputs.get("num_items_in_batch")
    if items is None or not divides_by_items(type(model)):
        return 1.0
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs.get("labels")
        if labels is None:
            raise ValueError(
                f"{type(model).__name__} got num_items_in_batch={items} and no labels, so the share of this forward pass in the "
                "update is not known: give labels, or leave num_items_in_batch out."
            )
        shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
        if shifts and not model.config.is_encoder_decoder:
            labels = labels[..., 1:]
    found = labels.ne(IGNORED_LABEL).sum()
    return found / (items.to(found.device) if isinstance(items, Tensor) else items)


@cache
def divides_by_items(kind: type[PreTrainedModel]) -> bool:
    """Whether the forward of a class hands `num_items_in_batch`, by name or with all other arguments, to a loss function."""
    calls = [node for node in ast.walk(tree_of(kind.forward)) if isinstance(node, ast.Call)]
    for call in calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if "loss" in name and any(keyword.arg in (None, "num_items_in_batch") for keyword in call.keywords):
            return True
    return False
