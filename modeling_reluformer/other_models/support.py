"""Which other models can compute ReLU attention. Their classes tell, before anything is computed.

Transformers itself accepts every registered name for every model. Only the source of a class shows what it hands to its
attention; Transformers, too, reads there whether a model uses its attention interface.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache

from torch import nn
from transformers import PreTrainedModel

ATTENTION_NAME = "reluformer"  # the value of `attn_implementation` for other models
CONFIG_KEY = ATTENTION_NAME

# What models hand to an attention function that a point-wise one cannot honour.
REFUSED = {
    "softcap": "a soft cap bends the scores",
    "s_aux": "an attention sink takes its part of a softmax, and there is none here",
    "sinks": "an attention sink takes its part of a softmax, and there is none here",
    "position_bias": "a bias added to the scores has no meaning for weights that are zero below a score of zero",
    "head_mask": "masking of heads is not computed",
    "cache": "a paged cache (continuous batching) needs an attention of the library",
}
_REMEDY = f"attn_implementation={ATTENTION_NAME!r} cannot compute this model; load it with 'eager' or 'sdpa'."
ATTENTION_CALL = "attention_interface"  # the variable to which every model of Transformers binds its attention function
MASK_POSITION = 4  # after the module, query, key and value


def refuse_unsupported(module: nn.Module) -> None:
    """Refuses a model or an attention module whose class shows that it cannot compute ReLU attention.

    What depends on the values of a call is refused by `relu_attention_forward`.

    Raises:
        ValueError: it does not call Transformers' attention interface, or hands it one of `REFUSED` or a bias as the mask,
            or makes an additive mask.
    """
    if isinstance(module, PreTrainedModel):
        if not module._can_set_attn_implementation():
            raise ValueError(
                f"{type(module).__name__} computes attention in code of its own, not through Transformers' attention "
                "interface: it would not become ReLU attention. Such a model cannot be given another attention."
            )
        if (mask := _additive_mask(type(module))) is not None:
            raise ValueError(
                f"{type(module).__name__} makes {mask!r}, an additive mask, by itself: additive masks do not work with "
                f"point-wise activations. {_REMEDY}"
            )
        return
    handed, biased_mask = _handed_on(type(module))
    for name, attribute in handed:
        if attribute is None or getattr(module, attribute, None) is not None:
            raise ValueError(refusal(module, name))
    if biased_mask is not None:
        raise ValueError(
            f"{type(module).__name__} gives its attention {biased_mask!r} as the mask: {REFUSED['position_bias']}. {_REMEDY}"
        )


def refusal(module: nn.Module, name: str) -> str:
    """The message for a module that hands on one of `REFUSED`."""
    return f"{type(module).__name__} gives its attention {name!r}: {REFUSED[name]}. {_REMEDY}"


@cache
def _handed_on(kind: type[nn.Module]) -> tuple[tuple[tuple[str, str | None], ...], str | None]:
    """What the forward of a class hands to the attention interface: (name, its attribute or None) of `REFUSED`, a biased mask."""
    forward = tree_of(kind.forward)
    calls = [
        node
        for node in ast.walk(forward)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == ATTENTION_CALL
    ]
    handed: list[tuple[str, str | None]] = []
    biased_mask = None
    for call in calls:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        for name in REFUSED.keys() & keywords.keys():
            if (found := _always_given(forward, keywords[name])) is not None:
                handed.append((name, found or None))
        masks = [*call.args[MASK_POSITION : MASK_POSITION + 1], keywords.get("attention_mask")]
        biased_mask = next(
            (mask.id for mask in masks if isinstance(mask, ast.Name) and _is_bias(forward, mask.id)), None
        )
    return tuple(handed), biased_mask


@cache
def _additive_mask(kind: type[nn.Module]) -> str | None:
    """The name of an attention mask that the forward of a model makes of zeros and the smallest number; None for none."""
    for node in ast.walk(tree_of(kind.forward)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Mult):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            lowest = any(isinstance(each, ast.Attribute) and each.attr == "finfo" for each in ast.walk(node.value))
            if lowest and names and "attention_mask" in names[0]:
                return names[0]
    return None


def tree_of(function: Callable[..., object]) -> ast.Module:
    """The source of a function or method; empty where there is none (one written in an interpreter)."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ast.Module(body=[], type_ignores=[])
    return ast.parse(f"if True:\n{source}" if source[0].isspace() else source)  # a string in it may be indented less


def _always_given(forward: ast.Module, value: ast.expr) -> str | None:
    """The attribute of the module that decides whether a value is given, "" for always, None for never or by the call."""
    if isinstance(value, ast.Constant):
        return None if value.value is None else ""
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
        return value.attr
    assigned = _assigned(forward, value.id) if isinstance(value, ast.Name) else []
    may_be_none = any(isinstance(each, ast.Constant) and each.value is None for each in assigned)
    return None if may_be_none else ""


def _is_bias(forward: ast.Module, name: str) -> bool:
    """Whether a mask is more than a mask: its name says so, or it is made of a bias or of a product of matrices."""
    made_of = [node for value in _assigned(forward, name) for node in ast.walk(value)]
    names = [name, *(node.id for node in made_of if isinstance(node, ast.Name))]
    return any("bias" in each for each in names) or any(isinstance(node, ast.MatMult) for node in made_of)


def _assigned(forward: ast.Module, name: str) -> list[ast.expr]:
    return [
        node.value
        for node in ast.walk(forward)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
