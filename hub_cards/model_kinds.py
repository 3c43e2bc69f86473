"""The types of model that a card is made for. What the card says of each is in `card_template.md`, by its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError


@dataclass(frozen=True)
class ModelKind:
    """One type of model, as config.json names it.

    config_class: of its config.json. task, task_title: the Hub's name of what it does, and the same for a reader.
    auto_class, preprocessor: Transformers' classes that load the model and what makes its inputs; examples call the latter
        `variable`.
    material: what it is trained on. map_caption: of the picture of its attention. papers: tags.
    """

    config_class: type[PreTrainedConfig]
    task: str
    task_title: str
    auto_class: str
    map_caption: str
    preprocessor: str = "AutoTokenizer"
    variable: str = "tokenizer"
    material: str = "text"
    papers: Sequence[str] = ("arxiv:2302.06461",)


_KINDS = (
    ModelKind(
        ReLUFormerConfig,
        "translation",
        "Translation",
        "AutoModelForSeq2SeqLM",
        map_caption="Cross-attention weights of one sentence",
    ),
    ModelKind(
        ReLUFormerDecoderConfig,
        "text-generation",
        "Text generation",
        "AutoModelForCausalLM",
        map_caption="Attention weights of each head over one text",
    ),
    ModelKind(
        ReLUFormerVisionConfig,
        "image-classification",
        "Image classification",
        "AutoModelForImageClassification",
        map_caption="Attention of each head over the patches of one picture",
        preprocessor="AutoImageProcessor",
        variable="processor",
        material="pictures",
        papers=("arxiv:2302.06461", "arxiv:2309.08586"),
    ),
)
MODEL_KINDS = {kind.config_class.model_type: kind for kind in _KINDS}


def kind_of(model_type: Any, where: Any) -> ModelKind:
    """The kind of a model.

    Args:
        model_type: as config.json names it.
        where: what holds the model, for the message.

    Raises:
        UserError: a type of which no card can be made here.
    """
    if model_type not in MODEL_KINDS:
        raise UserError(
            f"{where}: holds a model of type {model_type!r}, expected {' or '.join(map(repr, MODEL_KINDS))}; for any other "
            "model, use `create_model_card` and `push_to_hub` of its Trainer"
        )
    return MODEL_KINDS[model_type]
