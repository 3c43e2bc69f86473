"""Makes the models and the attention of this package known to Transformers: for `import reluformer`, and for a verb's
run."""

from __future__ import annotations

import functools

from torch.nn.modules.module import register_module_module_registration_hook
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .configuration_decoder import ReLUFormerDecoderConfig
from .modeling_decoder import ReLUFormerDecoderModel, ReLUFormerForCausalLM
from .modeling_reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel
from .modeling_vision import ReLUFormerForImageClassification, ReLUFormerVisionModel
from .other_models import ATTENTION_NAME
from .other_models.attention import relu_attention_forward, relu_attention_mask
from .other_models.use import prepare_construction

# Each Auto class, and the models that it builds from their configurations.
AUTO_CLASSES = {
    AutoModel: (ReLUFormerModel, ReLUFormerDecoderModel, ReLUFormerVisionModel),
    AutoModelForSeq2SeqLM: (ReLUFormerForConditionalGeneration,),
    AutoModelForCausalLM: (ReLUFormerForCausalLM,),
    AutoModelForImageClassification: (ReLUFormerForImageClassification,),
}


@functools.cache
def register() -> None:
    """Registers the models with the Auto classes, and the attention of other models; once in a process."""
    for auto_class, models in AUTO_CLASSES.items():
        for model in models:
            AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
            auto_class.register(model.config_class, model, exist_ok=True)
    # The Trainer's label_smoothing_factor shifts the labels of the classes that are named here, and of no others.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ReLUFormerDecoderConfig.model_type] = ReLUFormerForCausalLM.__name__
    AttentionInterface.register(ATTENTION_NAME, relu_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, relu_attention_mask)
    register_module_module_registration_hook(prepare_construction)  # see `other_models.use`
