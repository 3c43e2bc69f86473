"""ReLUFormer (arXiv 2302.06461) as a Hugging Face Transformers model.

Importing this package registers the model with `AutoConfig`, `AutoModel` and `AutoModelForSeq2SeqLM`, and makes
`save_pretrained` and `push_to_hub` write the model's code beside its weights, so that who has only Transformers can load
it with `trust_remote_code=True`. It also makes `attn_implementation="reluformer"` known to other models, see
`use_relu_attention`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .attention_foreign import register_relu_attention
from .attention_fused import relu_attention
from .configuration_reluformer import ReLUFormerConfig
from .modeling_reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, ReLUFormerPreTrainedModel
from .settings_foreign import use_relu_attention

AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig)
AutoModel.register(ReLUFormerConfig, ReLUFormerModel)
AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration)

ReLUFormerConfig.register_for_auto_class()
ReLUFormerModel.register_for_auto_class("AutoModel")
ReLUFormerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

register_relu_attention()

__version__ = "0.1.0"

__all__ = [
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "ReLUFormerPreTrainedModel",
    "relu_attention",
    "use_relu_attention",
]
