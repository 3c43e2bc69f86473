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

# Arguments of an attention function that point-wise attention cannot honour.
REFUSED = {
    "softcap": "a soft cap bends the scores",
    "s_aux": "an attention sink takes its part of a softmax, and there is none here",
    "sinks": "an attention sink takes its part of a softmax, and there is none here",
    "position_bias": "a bias added to the scores has no meaning for weights that are zero below a score of zero",
    "head_mask": "masking of heads is not computed",
    "cache": "a paged cache (continuous batching) needs an attention of the library",
}
_INTERFACE = re.compile(r"attention_interface|ALL_ATTENTION_FUNCTIONS")
_FUSED_SOFTMAX = "scaled_dot_product_attention"
_PRODUCT = re.compile(rf"\w\)? @ |matmul|bmm|einsum|{_FUSED_SOFTMAX}")


def refuse_class(model: PreTrainedModel) -> None:
    """Raises a `ValueError` for a model whose class computes attention without Transformers' attention interface."""
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} computes attention in code of its own, not through Transformers' attention interface, so it "
            "would not become ReLU attention. Such a model cannot be given another attention."
        )


def refuse_without_attention(model: nn.Module) -> None:
    """Raises a `ValueError` for a whole model in which no module calls the attention interface."""
    if not any(_INTERFACE.search("".join(_sources(type(module)))) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has no module that calls Transformers' attention interface: it has no attention that could "
            "become ReLU attention. Such a model cannot be given another attention."
        )


def refuse_softmax_layers(model: nn.Module, owner: str, path: str = "") -> None:
    """Refuses layers that compute softmax attention in their own code, and warns of other such modules (pooling heads).

    A layer stands in an `nn.ModuleList` and multiplies queries and keys; deformable attention has no such product.

    Args:
        model: a model or a finished part of one. owner, path: the name of the model's class, and of the part in it.

    Raises:
        ValueError: layers that would stay softmax, by name.
    """
    named = dict(model.named_modules(prefix=path))
    lists = tuple(f"{name}." if name else "" for name, part in named.items() if isinstance(part, nn.ModuleList))
    found = {name: module for name, module in named.items() if _computes_softmax(module)}
    layers = [name for name, module in found.items() if name.startswith(lists) and _multiplies(module)]
    if layers:
        raise ValueError(
            f"{owner} has layers that compute softmax attention in code of their own: {_listed(found, layers)}. Such a model "
            "cannot be given another attention; load it with 'eager' or 'sdpa'."
        )
    if found:
        logger.warning(
            f"{owner}: modules that compute softmax attention in code of their own stay softmax: {_listed(found, list(found))}."
        )


def refuse_argument(module: nn.Module, name: str) -> None:
    """Raises the `ValueError` for an attention module that passes one of `REFUSED`."""
    raise ValueError(
        f"{type(module).__name__} gives its attention {name!r}: {REFUSED[name]}. attn_implementation={ATTENTION_NAME!r} cannot "
        "compute this model; load it with 'eager' or 'sdpa'."
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


def _multiplies(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) or any(map(_PRODUCT.search, _sources(type(module))))


@cache
def _sources(kind: type[nn.Module]) -> tuple[str, ...]:
    """The source of a class and of its bases, without those of torch and Transformers' own base classes."""
    skipped = ("builtins", "torch.", "transformers.modeling_utils", "transformers.generation")
    return tuple(map(_source, (base for base in kind.__mro__ if not base.__module__.startswith(skipped))))


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # written in an interpreter
        return ""


def _listed(modules: dict[str, nn.Module], names: list[str], shown: int = 4) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(f"{type(modules[name]).__name__} ({name})" for name in names[:shown]) + rest
