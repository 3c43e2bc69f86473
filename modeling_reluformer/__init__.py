"""ReLUFormer (arXiv 2302.06461) as a Hugging Face Transformers model.

Importing this package registers the model with `AutoConfig`, `AutoModel` and `AutoModelForSeq2SeqLM`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_reluformer import ReLUFormerConfig
from .modeling_reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, ReLUFormerPreTrainedModel

AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig)
AutoModel.register(ReLUFormerConfig, ReLUFormerModel)
AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration)

__version__ = "0.1.0"

__all__ = [
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "ReLUFormerPreTrainedModel",
]
