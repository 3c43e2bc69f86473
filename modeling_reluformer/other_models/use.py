"""`use_relu_attention`: which models can compute ReLU attention, and how one that was saved with it comes back with it.

Transformers accepts a registered name for every model. Whether a module calls the attention interface, or computes
softmax attention in its own code, shows only in the source of its class.

Transformers reads `attn_implementation` from config.json, refuses a name that is not registered, and never writes the
name. `_keep_name` makes one config write it. A loaded config forgets this, and between reading a config and the first
forward pass Transformers calls no code of ours. Without `prepare_construction`, a model that is loaded and saved at
once would come back as softmax without a word.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..configuration_reluformer import AttentionConfig
from ..fused.module import AttentionSettings
from . import ATTENTION_NAME
from .regularization import watch
from .trial import try_attention

logger = logging.get_logger(__name__)

# where Transformers keeps the name, which it never saves, and the key that it reads from config.json
INTERNAL_NAME, SAVED_NAME = "_attn_implementation_internal", "attn_implementation"
_INTERFACE = re.compile(r"attention_interface|ALL_ATTENTION_FUNCTIONS")
_FUSED_SOFTMAX = "scaled_dot_product_attention"


def use_relu_attention(model: PreTrainedModel, **settings: Any) -> PreTrainedModel:
    """Gives a model ReLU attention: checks and writes the settings into its config, and sets `attn_implementation`.

    Unlike `config.reluformer = {...}` with `model.set_attn_implementation("reluformer")`, it finds mistakes at once
    and saves the name: after `import reluformer`, `from_pretrained` restores ReLU attention; without it,
    `from_pretrained` raises an error.

    Args:
        model: any Transformers model except a ReLUFormer. Its weights stay as they are, so it has to be trained
            further.
        settings: `activation`, `scaling`, `gamma`, `alpha`, `regularization_weight`, `entropy_margin`, see
            `AttentionSettings`. They are written to the config of the model and of all its parts, with the defaults of
            those that are left out.

    Returns:
        The model itself.

    Raises:
        TypeError: not a Transformers model, or an unknown setting.
        ValueError: a bad setting, a ReLUFormer, or a model that cannot compute ReLU attention; it is left as it was.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"use_relu_attention takes a Transformers model (a PreTrainedModel); got {type(model).__module__}."
            f"{type(model).__qualname__}. Of a PEFT model, give get_base_model(); one of torch's can hold "
            "ReLUAttention."
        )
    if isinstance(model.config, AttentionConfig):
        raise ValueError(
            "A ReLUFormer has ReLU attention already: set attention_activation, attention_scaling, … in its config."
        )
    if "entropy_margin" in settings and not settings.get("regularization_weight"):
        raise ValueError(
            "entropy_margin belongs to a regularization_weight above 0: give both, or leave entropy_margin out."
        )
    checked = {name: value for name, value in vars(AttentionSettings.of(settings)).items() if value is not None}
    # numbers of NumPy, too, become those of Python, with which a configuration can be saved
    checked = {name: value if isinstance(value, str) else float(value) for name, value in checked.items()}
    with_config = [part for part in model.modules() if isinstance(getattr(part, "config", None), PreTrainedConfig)]
    models = [part for part in with_config if isinstance(part, PreTrainedModel)]
    for part in models:
        _refuse_class(part)
    _refuse_without_attention(model)
    _refuse_softmax_layers(model, type(model).__name__)
    try_attention(model, checked)
    for part in with_config:
        setattr(part.config, ATTENTION_NAME, dict(checked))
    model.set_attn_implementation(ATTENTION_NAME)
    for part in with_config:
        _keep_name(part.config)
    for part in models:
        watch(part)
    return model


def prepare_construction(parent: nn.Module, name: str, part: nn.Module | None) -> None:
    """Prepares a model that is built with `attn_implementation="reluformer"`; torch calls it for each module that is
    registered.

    Raises:
        ValueError: a model that asks for ReLU attention and cannot compute it.
    """
    if not isinstance(parent, PreTrainedModel) or part is None:
        return
    config, is_first = parent.config, not parent._modules
    if config._attn_implementation != ATTENTION_NAME:
        if is_first and getattr(config, ATTENTION_NAME, None) is not None:
            logger.warning_once(
                f"{config.name_or_path or type(config).__name__}: the config holds settings of ReLU attention, but "
                f"the model is built with attn_implementation={config._attn_implementation!r}, so it computes softmax "
                f"attention. If it was trained with ReLU attention, load it with "
                f"attn_implementation={ATTENTION_NAME!r}."
            )
        return
    if is_first:
        _refuse_class(parent)
        _keep_name(config)
        watch(parent)
    if not isinstance(part, PreTrainedModel):
        _refuse_softmax_layers(part, type(parent).__name__, name)


def _keep_name(config: PreTrainedConfig) -> None:
    """Makes the config of a model with ReLU attention save the name of its attention.

    The attribute map of this one config maps the internal name to the key of config.json. So the key is saved like any
    other attribute, with its value at that time: after `set_attn_implementation("sdpa")`, that is sdpa.
    """
    config.attribute_map = {**type(config).attribute_map, INTERNAL_NAME: SAVED_NAME}
    setattr(config, INTERNAL_NAME, ATTENTION_NAME)


def _refuse_class(model: PreTrainedModel) -> None:
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} computes attention in code of its own, not through Transformers' attention "
            "interface, so it would not become ReLU attention. Such a model cannot be given another attention."
        )


def _refuse_without_attention(model: PreTrainedModel) -> None:
    kinds = {type(module) for module in model.modules()}
    if not any(kind.__module__ == "__main__" or any(map(_INTERFACE.search, _sources(kind))) for kind in kinds):
        raise ValueError(
            f"{type(model).__name__} has no attention that Transformers' attention interface computes, so nothing in "
            "it would become ReLU attention; load it as it is."
        )


def _refuse_softmax_layers(model: nn.Module, owner: str, path: str = "") -> None:
    """Refuses layers that compute softmax attention in their own code, and warns of other such modules (pooling heads).

    model: a model or a finished part of one; layers are what stands in an `nn.ModuleList`. owner, path: the name of the
    model's class, and of the part in it.
    """
    named = dict(model.named_modules(prefix=path))
    lists = tuple(f"{name}." if name else "" for name, part in named.items() if isinstance(part, nn.ModuleList))
    softmax_modules = [name for name, module in named.items() if _computes_softmax(module)]
    layers = [name for name in softmax_modules if name.startswith(lists)]
    listed = ", ".join(f"{type(named[name]).__name__} ({name})" for name in (layers or softmax_modules)[:4])
    if layers:
        raise ValueError(
            f"{owner} has {len(layers)} layers that compute softmax attention in code of their own, such as {listed}. "
            "Such a model cannot be given another attention; load it with 'eager' or 'sdpa'."
        )
    if softmax_modules:
        logger.warning(f"{owner}: modules that compute softmax attention in code of their own stay softmax: {listed}.")


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
