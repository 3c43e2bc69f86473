"""A model that was saved with ReLU attention is loaded with ReLU attention, and is saved with it again.

Transformers reads `attn_implementation` from config.json, refuses a name that is not registered, and never writes the name.
`keep_name` makes one config write it. A loaded config forgets this, and between reading a config and the first forward pass
Transformers calls no code of ours. Without `prepare_construction`, a model that is loaded and saved at once would come back as
softmax without a word.
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from .regularization import watch
from .support import ATTENTION_NAME, CONFIG_KEY, refuse_class, refuse_softmax_layers

logger = logging.get_logger(__name__)

# where Transformers keeps the name, which it never saves, and the key that it reads from config.json
INTERNAL_NAME, SAVED_NAME = "_attn_implementation_internal", "attn_implementation"


def keep_name(config: PreTrainedConfig) -> None:
    """Makes the config of a model with ReLU attention save the name of its attention.

    The attribute map of this one config maps the internal name to the key of config.json. So the key is saved like any other
    attribute, with its value at that time: after `set_attn_implementation("sdpa")`, that is sdpa.
    """
    config.attribute_map = {**type(config).attribute_map, INTERNAL_NAME: SAVED_NAME}
    setattr(config, INTERNAL_NAME, ATTENTION_NAME)


def prepare_construction(parent: nn.Module, name: str, part: nn.Module | None) -> None:
    """Prepares a model that is built with `attn_implementation="reluformer"`; torch calls it for each module that is registered.

    Raises:
        ValueError: a model that asks for ReLU attention and cannot compute it.
    """
    if not isinstance(parent, PreTrainedModel) or part is None:
        return
    config, is_first = parent.config, not parent._modules
    if config._attn_implementation != ATTENTION_NAME:
        if is_first and getattr(config, CONFIG_KEY, None) is not None:
            logger.warning_once(
                f"{config.name_or_path or type(config).__name__}: the config holds settings of ReLU attention ({CONFIG_KEY!r}), "
                f"but the model is built with attn_implementation={config._attn_implementation!r}, so it computes softmax "
                f"attention. If it was trained with ReLU attention, load it with attn_implementation={ATTENTION_NAME!r}."
            )
        return
    if is_first:
        refuse_class(parent)
        keep_name(config)
        watch(parent)
    if not isinstance(part, PreTrainedModel):
        refuse_softmax_layers(part, type(parent).__name__, name)
