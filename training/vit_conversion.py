"""Transformers' Vision Transformer → a ReLUFormer for pictures with the same weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError
from reluformer.training.foreign_weights import config_of_preset, load_foreign
from reluformer.training.run.initialization import changed_config, model_with_weights

# Fields that mean the same in both configurations.
_SAME_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
    "image_size",
    "patch_size",
    "num_channels",
    "qkv_bias",
    "id2label",
    "label2id",
    "problem_type",
)
# Names of ViT's weights → ours; the first three as older versions of Transformers have them, too.
_RENAMINGS = (
    (r"encoder\.layer\.", "layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda found: f".self_attn.{found[1][0]}_proj."),
    (r"\.attention\.output\.dense\.", ".self_attn.out_proj."),
    (r"\.intermediate\.dense\.", ".fc1."),
    (r"\.output\.dense\.", ".fc2."),
    (r"\.attention\.o_proj\.", ".self_attn.out_proj."),
    (r"\.attention\.([qkv]_proj)\.", r".self_attn.\1."),
    (r"\.mlp\.(fc[12])\.", r".\1."),
    (r"^vit\.", "model."),
)


def vit_config(config: ViTConfig) -> ReLUFormerVisionConfig:
    """The softmax model that is this ViT: a token of the whole, no norm of queries and keys, ViT's start.

    Raises:
        UserError: a value that ReLUFormer refuses.
    """
    fields = {name: getattr(config, name) for name in _SAME_FIELDS}
    start = {"pooling": "cls", "attention_qk_norm": False, "initialization": "normal"}
    return config_of_preset(ReLUFormerVisionConfig, "ViT", "softmax_vit", **start, **fields)


def vit_weights(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `ViTForImageClassification` under the names of `ReLUFormerForImageClassification`."""
    renamed = {}
    for name, tensor in state_dict.items():
        for pattern, replacement in _RENAMINGS:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def convert_vit_model(
    vit: ViTForImageClassification, changes: Mapping[str, object] | None = None
) -> tuple[ReLUFormerForImageClassification, list[str]]:
    """A ViT in memory → a ReLUFormer in evaluation mode with its weights and dtype. The two may share memory.

    Args:
        vit: any `ViTForImageClassification`.
        changes: fields of the configuration that are to differ, and `preset`; see `changed_config`.

    Returns:
        The model, and the names of its parameters that are new and untrained.

    Raises:
        UserError: what `vit_config` and `changed_config` raise.
    """
    config = vit_config(vit.config)
    if changes:
        config = changed_config(config, changes)
    return model_with_weights(config, vit_weights(vit.state_dict()), dtype=vit.dtype)


def load_vit(source: str | Path, config: ViTConfig) -> tuple[ViTForImageClassification, list[str]]:
    """The checkpoint in ViT's own class, in the dtype it was saved in, and notes on what does not carry over.

    Raises:
        UserError: weights that are pickled, damaged, or not those of a ViT with a classifier.
    """
    vit, info = load_foreign(ViTForImageClassification, source, config)
    notes = []
    missing = sorted(info["missing_keys"])
    if missing and all(name.startswith("classifier.") for name in missing):
        notes.append("the checkpoint has no classifier: it is new and untrained")
    elif missing:
        raise UserError(f"{source}: the weights lack {len(missing)} tensors of a ViT, first {missing[0]}")
    dropped = sorted(info["unexpected_keys"])
    if other := [name for name in dropped if "pooler." not in name]:
        raise UserError(f"{source}: {len(other)} tensors are not those of a ViT for classification, first {other[0]}")
    if dropped:
        notes.append("the pooler is dropped: ViT's classifier does not use it")
    return vit, notes
