"""What every model of this package shares: the switch of its attention, initial values, saving with its code, statistics."""

import difflib
import functools
import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import TransformersKwargs, is_torchdynamo_compiling, logging

from .attention_reluformer import OWN_IMPLEMENTATIONS, default_implementation
from .configuration_attention import (
    CACHE_NAME,
    NON_NEGATIVE_ACTIVATIONS,
    NORMALIZED_ACTIVATIONS,
    AttentionConfig,
    require_attention_implementation,
    valid_attention_implementations,
)
from .multihead_reluformer import GatedRMSNorm, ReLUFormerAttention
from .outputs_reluformer import LayerFigures

logger = logging.get_logger(__name__)


# What Transformers names like this is part of the input: without it the result is another one.
_INPUTS = re.compile(r"\w+_(ids|mask|embeds|values)|\w*labels|is_causal")


def checked_keywords(*more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator, outside all others, of each forward pass that the library or a user calls.

    The cache may come by either of its names, see `CACHE_NAME`. Keywords that are neither named by the pass nor in `more` go
    through, since the library passes new ones with each version, but for those that must be mistakes: a part of the input, which
    would be ignored, and what differs from a name of ours by a slip of the pen.
    """

    def decorate(forward: Callable[..., Any]) -> Callable[..., Any]:
        known = [*inspect.signature(forward).parameters, *more]
        known += ["past_key_values"] if "cache" in known else []

        @functools.wraps(forward)
        def checked(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
            if "past_key_values" in kwargs and "cache" in known:
                if "cache" in kwargs:
                    raise TypeError("cache and past_key_values are two names of one argument; give one of them.")
                kwargs["cache"] = kwargs.pop("past_key_values")
                if CACHE_NAME == "cache" and not is_torchdynamo_compiling():  # as the library's own models say it
                    warnings.warn(
                        "`past_key_values` is deprecated by Transformers; use `cache`.", FutureWarning, stacklevel=2
                    )
            for name, value in kwargs.items():
                if name not in known and value is not None:
                    _check_unknown(self, name, known)
            return forward(self, *args, **kwargs)

        return checked

    return decorate


def _check_unknown(model: PreTrainedModel, name: str, known: Sequence[str]) -> None:
    if _INPUTS.fullmatch(name):
        raise TypeError(f"{type(model).__name__} takes no {name}; leave it out.")
    if name in TransformersKwargs.__annotations__ or name in ("return_dict", "use_cache"):
        return
    names = [*known, *TransformersKwargs.__annotations__]
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        raise TypeError(f"{type(model).__name__} takes no {name}; did you mean {near[0]}?")
    if not is_torchdynamo_compiling():
        logger.warning_once(
            f"{name} is no argument of reluformer's models; it is left to the attention function, which may ignore it."
        )


class AttentionPreTrainedModel(PreTrainedModel):
    """The base of all models. A subclass names its configuration and, in `auto_map`, the classes that a checkpoint serves."""

    config: AttentionConfig
    # The library names only the class that is saved, but a checkpoint of a base model or of a whole one serves both.
    auto_map: ClassVar[dict[str, str]] = {}
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GatedRMSNorm):
            init.ones_(module.gate)
        elif isinstance(module, ReLUFormerAttention) and self.config.attention_gamma_learnable:
            init.constant_(module.log_gamma, math.log(self.config.attention_gamma))

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """As in Transformers. A class that is registered for the Auto classes is saved with its code and the place of it."""
        if self._auto_class is not None:
            self.config.auto_map = dict(self.auto_map)
        super().save_pretrained(save_directory, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        activation = self.config.attention_activation
        requested = requested_attention or default_implementation(valid_attention_implementations(activation)[0])
        require_attention_implementation(activation, requested)
        if requested in OWN_IMPLEMENTATIONS:
            return requested
        return super().get_correct_attn_implementation(requested, is_init_check)

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, is_init_check: bool = False, allow_all_kernels: bool = False
    ) -> str:
        # Checked before the library does, which would accept any name registered globally and any kernel of the Hub.
        checked = self.get_correct_attn_implementation(attn_implementation, is_init_check)
        if checked in OWN_IMPLEMENTATIONS:
            return checked
        return super()._check_and_adjust_attn_implementation(checked, is_init_check, allow_all_kernels)

    def _refuse_output_attentions(self, kwargs: Mapping[str, Any]) -> None:
        if kwargs.get("output_attentions") and self.config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions=True needs attn_implementation='eager'; {self.config._attn_implementation!r} never holds "
                "the weights. Call model.set_attn_implementation('eager') first."
            )

    # What a schedule of training puts in the place of `config.ffn_l1_weight`; never saved.
    scheduled_ffn_l1_weight: float | None = None

    @property
    def ffn_l1_weight(self) -> float:
        """The weight of the L1 term of the loss, as `config.ffn_l1_weight` says it or a schedule of training."""
        scheduled = self.scheduled_ffn_l1_weight
        weight = self.config.ffn_l1_weight if scheduled is None else scheduled
        if weight > 0 and (getattr(self, "_tp_size", None) or 1) > 1:
            raise ValueError(
                "The L1 norm is a sum over all neurons, of which this process holds some: a tensor-parallel model computes no "
                f"loss with ffn_l1_weight={weight}. Leave labels out, or load it with tp_size=1."
            )
        return weight

    def _loss_terms(self, outputs: LayerFigures, statistics: str) -> dict[str, Any]:
        """The keyword arguments of `regularized_loss` that follow from the configuration and from what the layers returned."""
        # What a schedule sets changes with the updates, and would make losses of evaluation incomparable.
        counts = self.training or self.scheduled_ffn_l1_weight is None
        return {
            "figures": outputs.attention_figures,
            "statistics": statistics,
            "regularization_weight": self.config.regularization_weight,
            "ffn_norms": outputs.ffn_norms,
            "ffn_l1_weight": self.ffn_l1_weight if counts else 0.0,
        }

    def _statistics(self) -> str:
        """Which row statistics a pass with labels needs: those of the loss, and in evaluation all that can be reported."""
        config = self.config
        if (getattr(self, "_tp_size", None) or 1) > 1:
            if config.regularization_weight > 0:
                raise ValueError(
                    "L_reg is a mean over all heads, of which this process holds some: a tensor-parallel model computes no loss "
                    f"with regularization_weight={config.regularization_weight}. Leave labels out, or load it with tp_size=1."
                )
            return "none"
        if config.attention_activation in NON_NEGATIVE_ACTIVATIONS:
            return "sum+entropy" if config.regularization_weight > 0 or not self.training else "sum"
        in_memory = config.attention_activation in NORMALIZED_ACTIVATIONS and config._attn_implementation == "eager"
        return "sum+entropy" if in_memory and not self.training else "none"

    def _warn_about_missing_labels(self) -> None:
        if self.config.regularization_weight > 0 and not is_torchdynamo_compiling():
            logger.warning_once(
                "A training pass without labels: the model's own loss, and with it the regulariser "
                f"(regularization_weight={self.config.regularization_weight}), is not computed. The Trainer's "
                f"label_smoothing_factor does that: leave it at 0{self._instead_of_smoothing}."
            )
        if self.ffn_l1_weight > 0 and not is_torchdynamo_compiling():
            logger.warning_once(
                "A training pass without labels: the model's own loss, and with it the L1 norm of the activations "
                f"(ffn_l1_weight={self.ffn_l1_weight}), is not computed. The Trainer's label_smoothing_factor does that: "
                "leave it at 0."
            )

    # What a message may name beside `label_smoothing_factor=0`.
    _instead_of_smoothing: ClassVar[str] = ""
