"""Finds what would stay softmax in another model. Transformers asks its class, and one module with the interface satisfies it.

A model may have several kinds of attention, or none. They are told apart by the source of the modules that the model is made of.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache

from torch import nn
from transformers.utils import logging

from .support import ATTENTION_CALL, tree_of

logger = logging.get_logger(__name__)

SOFTMAX = {"softmax", "Softmax", "_softmax"}
FUSED = "scaled_dot_product_attention"
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
INTERFACE = {"ALL_ATTENTION_FUNCTIONS", ATTENTION_CALL}


def refuse_without_attention(model: nn.Module) -> None:
    """Refuses a whole model in which nothing calls Transformers' attention interface: nothing in it would change.

    Raises:
        ValueError: see above.
    """
    if not any(INTERFACE & _used(kind) for kind in {type(module) for module in model.modules()}):
        raise ValueError(
            f"{type(model).__name__} has no module that calls Transformers' attention interface: it has no attention that could "
            "become ReLU attention, or computes it in code of its own. Such a model cannot be given another attention."
        )


def refuse_softmax_layers(model: nn.Module, owner: str, path: str = "") -> None:
    """Refuses layers that compute softmax attention themselves, and warns of such modules elsewhere (heads that pool or project).

    A layer stands in an `nn.ModuleList` and weighs products of queries and keys.

    Args:
        model: a model or a finished part of one. owner, path: the name of the model's class, and of the part in it.

    Raises:
        ValueError: layers that would stay softmax, by name.
    """
    lists = tuple(
        f"{name}." if name else "" for name, part in model.named_modules(prefix=path) if isinstance(part, nn.ModuleList)
    )
    layers, others = [], []
    for name, module in model.named_modules(prefix=path):
        if _is_softmax_attention(module):
            is_layer = name.startswith(lists) and _multiplies(module)
            (layers if is_layer else others).append(f"{type(module).__name__} ({name})")
    if layers:
        raise ValueError(
            f"{owner} has layers that compute softmax attention in code of their own, beside those that could become ReLU "
            f"attention: {_some(layers)}. Such a model cannot be given another attention; load it with 'eager' or 'sdpa'."
        )
    if others:
        logger.warning(
            f"{owner}: these modules compute softmax attention in code of their own and stay softmax: {_some(others)}."
        )


def _is_softmax_attention(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    used = _used(type(module))
    if used & INTERFACE:  # softmax there is a special path of 'eager'
        return False
    return FUSED in used or ("Attention" in type(module).__name__ and bool(used & SOFTMAX))  # routers use softmax too


def _multiplies(module: nn.Module) -> bool:
    """Whether there are products of queries and keys; deformable attention has none: it learns the weights of sampled points."""
    return isinstance(module, nn.MultiheadAttention) or bool(_used(type(module)) & {FUSED, "@", *PRODUCTS})


@cache
def _used(kind: type[nn.Module]) -> frozenset[str]:
    """The names that the methods of a class use, "@" for a product. Empty for torch's classes and where there is no source."""
    names: set[str] = set()
    seen = {"__init__"}
    for base in kind.__mro__:
        if base is object or base.__module__.startswith(
            ("torch.", "transformers.modeling_utils", "transformers.generation")
        ):
            continue
        for name, method in vars(base).items():
            function = method.__func__ if isinstance(method, staticmethod | classmethod) else method
            if name not in seen and inspect.isfunction(function):
                names |= _names(function)
            seen.add(name)
    return frozenset(names)


def _names(function: Callable[..., object]) -> set[str]:
    nodes = list(ast.walk(tree_of(function)))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {"@" for node in nodes if isinstance(node, ast.MatMult)}


def _some(names: list[str], shown: int = 4) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest
