"""ReLUFormer (arXiv 2302.06461) as a Hugging Face Transformers model.

Importing this package registers the model with `AutoConfig`, `AutoModel` and `AutoModelForSeq2SeqLM`, and makes
`save_pretrained` and `push_to_hub` write the model's code beside its weights, so that it loads with Transformers alone, by
`trust_remote_code=True`. It also makes `attn_implementation="reluformer"` known to other models, see `use_relu_attention`.
"""

import sys

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .attention_fused import relu_attention
from .compiled import register_compiled_loop
from .configuration_reluformer import ReLUFormerConfig
from .modeling_reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, ReLUFormerPreTrainedModel
from .other_models import settings
from .other_models.attention import register_relu_attention
from .other_models.settings import use_relu_attention

AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig)
AutoModel.register(ReLUFormerConfig, ReLUFormerModel)
AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration)

ReLUFormerConfig.register_for_auto_class()
ReLUFormerModel.register_for_auto_class("AutoModel")
ReLUFormerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

register_relu_attention()
register_compiled_loop()

# The documentation of 0.1 calls `reluformer.other_models.settings` by this name.
sys.modules[f"{__name__}.settings_foreign"] = settings

__version__ = "0.1.0"

__all__ = [
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "ReLUFormerPreTrainedModel",
    "relu_attention",
    "use_relu_attention",
]
