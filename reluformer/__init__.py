"""ReLUFormer (arXiv 2302.06461) as a Hugging Face Transformers model.

Importing this package makes the models known to the Auto classes, and `attn_implementation="reluformer"` to other
models (see `use_relu_attention`). Models are saved with their code, so that they load with Transformers alone, by
`trust_remote_code=True`.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers: the same names as in `_MODULES`
    from .modeling_reluformer.configuration_decoder import ReLUFormerDecoderConfig as ReLUFormerDecoderConfig
    from .modeling_reluformer.configuration_reluformer import ReLUFormerConfig as ReLUFormerConfig
    from .modeling_reluformer.configuration_vision import ReLUFormerVisionConfig as ReLUFormerVisionConfig
    from .modeling_reluformer.fused.attention import relu_attention as relu_attention
    from .modeling_reluformer.fused.module import ReLUAttention as ReLUAttention
    from .modeling_reluformer.modeling_decoder import ReLUFormerDecoderModel as ReLUFormerDecoderModel
    from .modeling_reluformer.modeling_decoder import (
        ReLUFormerDecoderPreTrainedModel as ReLUFormerDecoderPreTrainedModel,
    )
    from .modeling_reluformer.modeling_decoder import ReLUFormerForCausalLM as ReLUFormerForCausalLM
    from .modeling_reluformer.modeling_reluformer import (
        ReLUFormerForConditionalGeneration as ReLUFormerForConditionalGeneration,
    )
    from .modeling_reluformer.modeling_reluformer import ReLUFormerModel as ReLUFormerModel
    from .modeling_reluformer.modeling_reluformer import ReLUFormerPreTrainedModel as ReLUFormerPreTrainedModel
    from .modeling_reluformer.modeling_vision import (
        ReLUFormerForImageClassification as ReLUFormerForImageClassification,
    )
    from .modeling_reluformer.modeling_vision import ReLUFormerVisionModel as ReLUFormerVisionModel
    from .modeling_reluformer.modeling_vision import ReLUFormerVisionPreTrainedModel as ReLUFormerVisionPreTrainedModel
    from .modeling_reluformer.other_models.regularization import attention_regularization as attention_regularization
    from .modeling_reluformer.other_models.use import use_relu_attention as use_relu_attention
    from .modeling_reluformer.sparse_ffn.use import use_sparse_ffn as use_sparse_ffn
    from .translating.translation import Translator as Translator

__version__ = "0.1.0"

# Every public name, and the module that defines it, which is imported when the name is first used.
_MODULES = {
    "ReLUAttention": "modeling_reluformer.fused.module",
    "ReLUFormerConfig": "modeling_reluformer.configuration_reluformer",
    "ReLUFormerDecoderConfig": "modeling_reluformer.configuration_decoder",
    "ReLUFormerDecoderModel": "modeling_reluformer.modeling_decoder",
    "ReLUFormerDecoderPreTrainedModel": "modeling_reluformer.modeling_decoder",
    "ReLUFormerForCausalLM": "modeling_reluformer.modeling_decoder",
    "ReLUFormerForConditionalGeneration": "modeling_reluformer.modeling_reluformer",
    "ReLUFormerForImageClassification": "modeling_reluformer.modeling_vision",
    "ReLUFormerModel": "modeling_reluformer.modeling_reluformer",
    "ReLUFormerPreTrainedModel": "modeling_reluformer.modeling_reluformer",
    "ReLUFormerVisionConfig": "modeling_reluformer.configuration_vision",
    "ReLUFormerVisionModel": "modeling_reluformer.modeling_vision",
    "ReLUFormerVisionPreTrainedModel": "modeling_reluformer.modeling_vision",
    "Translator": "translating.translation",
    "attention_regularization": "modeling_reluformer.other_models.regularization",
    "relu_attention": "modeling_reluformer.fused.attention",
    "use_relu_attention": "modeling_reluformer.other_models.use",
    "use_sparse_ffn": "modeling_reluformer.sparse_ffn.use",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def _is_the_command() -> bool:
    """Whether this process is the command `reluformer`, which registers later: its help must not wait for
    Transformers."""
    return Path(sys.argv[0]).stem == "reluformer" or sys.orig_argv[1:3] == ["-m", "reluformer"]


if not _is_the_command():
    from .modeling_reluformer.registration import register

    register()
