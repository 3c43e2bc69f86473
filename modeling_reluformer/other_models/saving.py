"""A model that was saved with ReLU attention is loaded with ReLU attention. It never becomes softmax silently.

Transformers reads `attn_implementation` from config.json, refuses a name that is not registered, and leaves the name out when it
saves. `remember` makes a config write it. A loaded model must remember again, but Transformers calls none of our code
while it loads: `register` has torch call `meet` when a module becomes part of a model.
"""

from __future__ import annotations

import weakref

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from .regularization import watch
from .softmax import refuse_softmax_layers
from .support import ATTENTION_NAME, CONFIG_KEY, refuse_unsupported

logger = logging.get_logger(__name__)

# where Transformers keeps the name, which it never saves, and the key that it reads from config.json
INTERNAL_NAME, SAVED_NAME = "_attn_implementation_internal", "attn_implementation"
_warned: weakref.ref[PreTrainedConfig] | None = None


def remember(config: PreTrainedConfig) -> None:
    """Makes a config of a model with ReLU attention save the name of its attention.

    The attribute map of this one config says that the name is kept under the key that config.json has for it. So the key is saved
    as any other attribute is, with the name that holds at that time: `set_attn_implementation("sdpa")` is saved too.
    """
    config.attribute_map = {**type(config).attribute_map, INTERNAL_NAME: SAVED_NAME}
    setattr(config, INTERNAL_NAME, ATTENTION_NAME)


def meet(parent: nn.Module, name: str, part: nn.Module | None) -> None:
    """Looks at models whose config names ReLU attention or holds its settings; leaves all others alone.

    Raises:
        ValueError: a model under construction that asks for ReLU attention and cannot compute it.
    """
    if isinstance(parent, PreTrainedModel) and not parent._modules:  # its first part: its config is settled
        _meet_model(parent)
    if not isinstance(part, nn.Module) or isinstance(part, PreTrainedModel):
        return
    if _asks(part.__dict__.get("config")):
        refuse_unsupported(part)
    if isinstance(parent, PreTrainedModel) and _asks(parent.config):  # the part is finished: all its layers are there
        refuse_softmax_layers(part, type(parent).__name__, name)


def _meet_model(model: PreTrainedModel) -> None:
    config = model.config
    if _asks(config):
        refuse_unsupported(model)
        remember(config)
        watch(model)
    elif getattr(config, CONFIG_KEY, None) is not None:
        _warn(config)


def _asks(config: object) -> bool:
    return isinstance(config, PreTrainedConfig) and config._attn_implementation == ATTENTION_NAME


def _warn(config: PreTrainedConfig) -> None:
    """Says once for a config, which the parts of a model share, that it is not computed with ReLU attention."""
    global _warned
    if _warned is not None and _warned() is config:
        return
    _warned = weakref.ref(config)
    logger.warning(
        f"{config.name_or_path or type(config).__name__}: the config holds settings of ReLU attention ({CONFIG_KEY!r}), "
        f"but the model is built with attn_implementation={config._attn_implementation!r}, so it computes softmax attention. "
        f"If it was trained with ReLU attention, load it with attn_implementation={ATTENTION_NAME!r} and save it again: the name "
        f"is then saved too. If not, remove {CONFIG_KEY!r} from its config.json."
    )
