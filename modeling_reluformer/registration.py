"""Makes Transformers know this package's classes and names, without importing Transformers.

`import reluformer` calls `watch_imports`. Each registry of Transformers is a module of it (`_REGISTRIES`). A registry that is
loaded already is prepared at once, any other one as soon as it is loaded: a finder on `sys.meta_path` lets the real loader
work, and prepares the module behind it. So the order of `import reluformer` and `import transformers` does not matter, and who
wants `relu_attention` alone does not wait for Transformers.

Preparing imports nothing. At that moment, the modules that import the registry are half loaded (`modeling_layers` imports the
Auto classes, and our layers import `modeling_layers`), and other threads wait for import locks. So the registries
get functions that import what they call, and dictionaries that import the classes when one of them is asked for.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# model_type → its configuration, and the class that each Auto class builds for it; names of the package
AUTO_CLASSES = {
    "reluformer": (
        "ReLUFormerConfig",
        {"AutoModel": "ReLUFormerModel", "AutoModelForSeq2SeqLM": "ReLUFormerForConditionalGeneration"},
    ),
    "reluformer_decoder": (
        "ReLUFormerDecoderConfig",
        {"AutoModel": "ReLUFormerDecoderModel", "AutoModelForCausalLM": "ReLUFormerForCausalLM"},
    ),
    "reluformer_vision": (
        "ReLUFormerVisionConfig",
        {"AutoModel": "ReLUFormerVisionModel", "AutoModelForImageClassification": "ReLUFormerForImageClassification"},
    ),
}
# the value of `attn_implementation` for other models
ATTENTION_NAME = "reluformer"


@functools.cache
def watch_imports() -> None:
    """From now on, every registry knows this package once it is loaded."""
    sys.meta_path.insert(0, _RegistryFinder())
    for name, prepare in _REGISTRIES.items():
        if name in sys.modules:
            prepare(importlib.import_module(name))  # waits for another thread that is loading it


def register_classes() -> None:
    """Imports the classes of `AUTO_CLASSES` and registers them, as `AutoModel.register` is documented."""
    package, auto = importlib.import_module("reluformer"), importlib.import_module("transformers.models.auto")
    for model_type, (config_name, models) in AUTO_CLASSES.items():
        config = getattr(package, config_name)
        auto.AutoConfig.register(model_type, config)
        for auto_class, model_name in models.items():
            getattr(auto, auto_class).register(config, getattr(package, model_name))


class _Registered(dict):
    """What was registered in a mapping of the Auto classes: ours too, registered when it is asked for one of them, or for all.

    Transformers keeps in one dictionary what it imports by name, and in another, this one, what users have registered.
    """

    _complete = False

    def _ask(self, key: object = None) -> None:
        if not self._complete and (key is None or _is_ours(key)):
            register_classes()
            self._complete = True

    def __contains__(self, key: object) -> bool:
        self._ask(key)
        return super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        self._ask(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._ask(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator:
        self._ask()
        return super().__iter__()

    def __len__(self) -> int:
        self._ask()
        return super().__len__()

    def keys(self) -> Any:
        self._ask()
        return super().keys()

    def values(self) -> Any:
        self._ask()
        return super().values()

    def items(self) -> Any:
        self._ask()
        return super().items()


def _is_ours(key: object) -> bool:
    if isinstance(key, str):
        return key in AUTO_CLASSES
    return str(getattr(key, "__module__", "")).partition(".")[0] == "reluformer"


def _prepare_mapping(mapping: Any) -> None:
    known = getattr(mapping, "_extra_content", None)  # not a documented name
    if not isinstance(known, dict):
        warnings.warn(
            "This version of Transformers keeps its registered models in another place than reluformer expects. Call "
            "reluformer.modeling_reluformer.registration.register_classes() after both imports.",
            stacklevel=2,
        )
    elif not isinstance(known, _Registered):
        mapping._extra_content = _Registered(known)


def _prepare_auto_config(module: ModuleType) -> None:
    _prepare_mapping(module.CONFIG_MAPPING)


def _prepare_auto_models(module: ModuleType) -> None:
    for _, models in AUTO_CLASSES.values():
        for auto_class in models:
            _prepare_mapping(getattr(module, auto_class)._model_mapping)


def _prepare_attention(module: ModuleType) -> None:
    module.AttentionInterface.register(ATTENTION_NAME, _attention)
    _watch_construction()


def _prepare_masks(module: ModuleType) -> None:
    module.AttentionMaskInterface.register(ATTENTION_NAME, _attention_mask)


def _prepare_attention_operator(module: ModuleType) -> None:
    # the one import while preparing: it does not lead back to `module`
    loop = importlib.import_module(".compiled.loop", __package__)
    module.register_compiled_attention(loop.compiled_attention)


def _attention(*args: Any, **kwargs: Any) -> Any:
    from .other_models.attention import relu_attention_forward

    return relu_attention_forward(*args, **kwargs)


def _attention_mask(*args: Any, **kwargs: Any) -> Any:
    from .other_models.masks import relu_attention_mask

    return relu_attention_mask(*args, **kwargs)


def _meet(parent: Any, name: str, part: Any) -> None:
    from .other_models.saving import meet

    meet(parent, name, part)


@functools.cache
def _watch_construction() -> None:
    """Has torch call us whenever a module of this process becomes part of another, see `other_models.saving`."""
    from torch.nn.modules.module import register_module_module_registration_hook

    register_module_module_registration_hook(_meet)


# The modules that hold a registry → what makes them know this package.
_REGISTRIES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _prepare_auto_config,
    "transformers.models.auto.modeling_auto": _prepare_auto_models,
    "transformers.modeling_utils": _prepare_attention,
    "transformers.masking_utils": _prepare_masks,
    # its copies on the Hub have another name, and nothing compiled
    f"{__package__}.attention_operator": _prepare_attention_operator,
}


class _RegistryFinder:
    """Finds the registries as the other finders do, and has them prepared behind the end of their own code."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _REGISTRIES:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _with_preparation(spec.loader, _REGISTRIES[name])
        return spec


def _with_preparation(loader: Any, prepare: Callable[[ModuleType], None]) -> Any:
    """A copy of the loader, which others may share, that prepares what it has loaded."""
    loader = copy.copy(loader)
    execute = loader.exec_module

    def execute_and_prepare(module: ModuleType) -> None:
        execute(module)
        prepare(module)

    loader.exec_module = execute_and_prepare
    return loader
