"""The weights of another library's model, in its own class, with errors for a user; what every conversion starts from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel

from reluformer.configuration.errors import UserError, one_line
from reluformer.modeling_reluformer.configuration_reluformer import AttentionConfig
from reluformer.training.loading import require_safetensors

ForeignModel = TypeVar("ForeignModel", bound=PreTrainedModel)
Config = TypeVar("Config", bound=AttentionConfig)


def load_foreign(
    model_class: type[ForeignModel], source: str | Path, config: PreTrainedConfig
) -> tuple[ForeignModel, dict[str, Any]]:
    """A checkpoint in the dtype it was saved in, and the report of `from_pretrained` on names that do not fit.

    Raises:
        UserError: weights that are pickled or damaged.
    """
    require_safetensors(source)
    try:
        return model_class.from_pretrained(
            str(source),
            config=config,
            dtype="auto",
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(f"{source}: its weights cannot be loaded: {one_line(error)}") from error


def require_all_weights(source: str | Path, info: Mapping[str, Any], model: str) -> None:
    """Raises a `UserError` for weights that are missing or left over; `model` names the class, for the message."""
    for what in ("missing_keys", "unexpected_keys"):
        if names := sorted(info[what]):
            raise UserError(
                f"{source}: {len(names)} {what.replace('_', ' ')} in the weights of a {model} model, first {names[0]}"
            )


def config_of_preset(kind: type[Config], name: str, preset: str, **fields: Any) -> Config:
    """`kind.from_preset(preset, **fields)`.

    Raises:
        UserError: a value that ReLUFormer refuses; `name` says of which model.
    """
    try:
        return kind.from_preset(preset, **fields)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"this {name} cannot become a ReLUFormer: {one_line(error)}") from error
