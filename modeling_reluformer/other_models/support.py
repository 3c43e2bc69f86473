"""Which other models can compute ReLU attention.

Transformers accepts a registered name for every model. Whether a module calls the attention interface, or computes softmax
attention in its own code, shows only in the source of its class.
"""

from __future__ import annotations

import inspect
import re
from functools import cache

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

logger = logging.get_logger(__name__)

ATTENTION_NAME = "reluformer"  # the value of `attn_implementation` for other models
CONFIG_KEY = ATTENTION_NAME

# Arguments of an attention function that need a softmax, a score below which there is weight, or an attention of the library.
REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "cache")
_INTERFACE = re.compile(r"attention_interface|ALL_ATTENTION_FUNCTIONS")
_FUSED_SOFTMAX = "scaled_dot_product_attention"


def refuse_class(model: PreTrainedModel) -> None:
    """Raises a `ValueError` for a model whose class computes attention without Transformers' attention interface."""
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} computes attention in code of its own, not through Transformers' attention interface, so it "
            "would not become ReLU attention. Such a model cannot be given another attention."
        )


def refuse_softmax_layers(model: nn.Module, owner: str, path: str = "") -> None:
    """Refuses layers that compute softmax attention in their own code, and warns of other such modules (pooling heads).

    Args:
        model: a model or a finished part of one; layers are what stands in an `nn.ModuleList`. owner, path: the name of the
            model's class, and of the part in it.

    Raises:
        ValueError: layers that would stay softmax, by name.
    """
    named = dict(model.named_modules(prefix=path))
    lists = tuple(f"{name}." if name else "" for name, part in named.items() if isinstance(part, nn.ModuleList))
    found = [name for name, module in named.items() if _computes_softmax(module)]
    layers = [name for name in found if name.startswith(lists)]
    listed = ", ".join(f"{type(named[name]).__name__} ({name})" for name in (layers or found)[:4])
    if layers:
        raise ValueError(
            f"{owner} has {len(layers)} layers that compute softmax attention in code of their own, such as {listed}. Such a "
            "model cannot be given another attention; load it with 'eager' or 'sdpa'."
        )
    if found:
        logger.warning(f"{owner}: modules that compute softmax attention in code of their own stay softmax: {listed}.")


def refuse_argument(module: nn.Module, name: str) -> None:
    """Raises the `ValueError` for an attention module that passes one of `REFUSED`."""
    raise ValueError(
        f"{type(module).__name__} gives its attention {name!r}, which point-wise attention does not compute; load this model "
        "with 'eager' or 'sdpa'."
    )


def _computes_softmax(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    named_attention = "Attention" in type(module).__name__  # routers and losses use softmax, too
    for source in _sources(type(module)):  # the class first, then its bases: the first that computes attention decides
        if _INTERFACE.search(source):
            return False
        if _FUSED_SOFTMAX in source or (named_attention and "softmax" in source.lower()):
            return True
    return False


@cache
def _sources(kind: type[nn.Module]) -> tuple[str, ...]:
    """The source of a class and of its bases, without those of torch and Transformers' own base classes."""
    skipped = ("builtins", "__main__", "torch.", "transformers.modeling_utils", "transformers.generation")
    return tuple(inspect.getsource(base) for base in kind.__mro__ if not base.__module__.startswith(skipped))
