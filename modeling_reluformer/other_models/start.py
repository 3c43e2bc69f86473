"""A warning for new models whose weights are too small for the scaling by length; see `small_start_warning`."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from ..configuration_vision import small_start_warning

logger = logging.get_logger(__name__)


def warn_of_small_start(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Tells where it applies: length scaling of a model with new weights, and without norm of queries and keys.

    New is a model that `from_pretrained` has not made. What a pretrained model needs was not measured.

    Args:
        model: as its class initialises it, by `initializer_range`.
        settings: of its attention, as its config holds them.
    """
    config = model.config
    std, width = getattr(config, "initializer_range", None), getattr(config, "hidden_size", None)
    if config.name_or_path or settings["scaling"] != "length" or not std or not width or _norms_queries(model):
        return
    if (found := small_start_warning(std, width, settings["alpha"])) is not None:
        logger.warning_once(
            f"use_relu_attention: {found}Initialise the projections by Xavier before training (docs/vision.md shows it), or use "
            "alpha=0.5 or less."
        )


def _norms_queries(model: PreTrainedModel) -> bool:
    """Whether a module is named as a norm of queries or keys: q_norm, k_layernorm, query_norm, …"""
    names = {name.rpartition(".")[2].lower() for name, _ in model.named_modules()}
    return any(name.startswith(("q_", "k_", "query_", "key_", "qk_")) and "norm" in name for name in names)
