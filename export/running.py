"""An exported model in onnxruntime: `generate` is the library's, so that greedy search, beams and all options are
PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.modeling_reluformer.layers_reluformer import checked_keywords
from reluformer.translating.loading import load_tokenizer
from reluformer.translating.translation import Translator

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model_merged.onnx"
GRAPHS = (ENCODER_FILE, DECODER_FILE)
KeysAndValues = Sequence[tuple[Tensor, Tensor]]


def cache_names(kind: str, layers: int) -> list[str]:
    """Names of key and value of each layer, of the decoder's own attention and then of cross-attention.

    kind: past_key_values | present.
    """
    return [
        f"{kind}.{layer}.{of}.{part}"
        for of in ("decoder", "encoder")
        for layer in range(layers)
        for part in ("key", "value")
    ]


def cache_of(own: KeysAndValues, cross: KeysAndValues) -> EncoderDecoderCache:
    """A cache that holds a key and a value, (batch, heads, length, head_dim), for each layer, as they are and not
    copied.

    The library's own way to fill one concatenates, which a graph would do, too.
    """
    caches = []
    for pairs in (own, cross):
        cache = DynamicCache()
        cache.layers = [DynamicLayer() for _ in pairs]
        for layer, (key, value) in zip(cache.layers, pairs, strict=True):
            layer.lazy_initialization(key, value)
            layer.keys, layer.values = key, value
        caches.append(cache)
    both = EncoderDecoderCache(*caches)
    both.is_updated = dict.fromkeys(range(len(cross)), True)  # the source is not computed again
    return both


class OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, session: InferenceSession) -> None:
        super().__init__()
        self.session = session

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> BaseModelOutput:
        """input_ids, attention_mask: (batch, source)."""
        _refuse_outputs(options)
        feeds = {"input_ids": input_ids, "attention_mask": _source_mask(attention_mask, input_ids.shape)}
        return BaseModelOutput(_run(self.session, feeds, ["last_hidden_state"])[0])


class OnnxTranslationModel(PreTrainedModel, GenerationMixin):
    """A folder of `reluformer export`, for `generate`, `Translator` and whatever else takes a model of Transformers.

    Args:
        config: of the model that was exported.
        encoder, decoder: sessions of the two graphs.

    Example:

    ```python
    >>> from reluformer.export.running import OnnxTranslationModel
    >>> from transformers import AutoTokenizer

    >>> model, tokenizer = OnnxTranslationModel.from_pretrained("onnx"), AutoTokenizer.from_pretrained("onnx")
    >>> tokenizer.batch_decode(model.generate(**tokenizer("zwölf", return_tensors="pt")), skip_special_tokens=True)
    ['twelve']
    ```
    """

    main_input_name = "input_ids"
    is_exported = True  # so that a `Translator` does not say that it translates by `generate`: there is no other way

    def __init__(self, config: PreTrainedConfig, encoder: InferenceSession, decoder: InferenceSession) -> None:
        super().__init__(config)
        self.encoder, self.session = OnnxEncoder(encoder), decoder
        self.eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> OnnxTranslationModel:
        """The model of a folder.

        Args:
            folder: that `reluformer export` has written.
            options: of `onnxruntime.InferenceSession`, such as `sess_options` or `providers`; default: the processor.

        Raises:
            UserError: no such folder, or one that lacks a file.
        """
        from onnxruntime import InferenceSession  # of an extra

        folder = Path(folder)
        for name in ("config.json", *GRAPHS):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: holds no {name}; give a folder that `reluformer export` has written")
        options = {"providers": ["CPUExecutionProvider"], **options}
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = cls(config, *(InferenceSession(folder / name, **options) for name in GRAPHS))
        model.generation_config = GenerationConfig.from_pretrained(folder)
        return model

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def get_encoder(self, modality: str | None = None) -> OnnxEncoder:
        return self.encoder

    @checked_keywords
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool = True,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the decoder's tokens, and a cache that holds theirs, too.

        Args:
            input_ids, attention_mask: (batch, source). decoder_input_ids: (batch, target).
            encoder_outputs: of this model's encoder, instead of `input_ids`.
            cache: as this method has returned it.
            use_cache: whether the cache is returned.
        """
        _refuse_outputs(options)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        sources, layers = encoder_outputs.last_hidden_state, self.config.decoder_layers
        if cache is None or not cache.is_updated.get(0):  # none, or the empty one that `generate` begins with
            heads = self.config.decoder_attention_heads
            empty = torch.zeros(len(sources), heads, 0, self.config.d_model // heads)
            cache = cache_of(*(2 * [layers * [(empty, empty)]]))
        parts = cache.self_attention_cache, cache.cross_attention_cache
        past = [tensor for part in parts for layer in part.layers for tensor in (layer.keys, layer.values)]
        feeds = {
            "input_ids": decoder_input_ids,
            "encoder_attention_mask": _source_mask(attention_mask, sources.shape[:2]),
            "encoder_hidden_states": sources,
            **dict(zip(cache_names("past_key_values", layers), past, strict=True)),
        }
        logits, *present = _run(self.session, feeds, ["logits", *cache_names("present", layers)])
        pairs = list(zip(present[::2], present[1::2], strict=True))
        return Seq2SeqLMOutput(
            logits=logits,
            encoder_last_hidden_state=sources,
            **{CACHE_NAME: cache_of(pairs[:layers], pairs[layers:]) if use_cache else None},
        )


def _source_mask(mask: Tensor | None, shape: Sequence[int]) -> Tensor:
    """The mask of the source, (batch, source), of the dtype of the graphs."""
    return torch.ones(tuple(shape), dtype=torch.long) if mask is None else mask.long()


def _run(session: InferenceSession, feeds: Mapping[str, Tensor], outputs: Sequence[str]) -> list[Tensor]:
    arrays = {name: tensor.contiguous().numpy() for name, tensor in feeds.items()}
    return [torch.from_numpy(array) for array in session.run(outputs, arrays)]


def _refuse_outputs(options: Mapping[str, Any]) -> None:
    for name in ("output_attentions", "output_hidden_states"):
        if options.get(name):
            raise ValueError(f"{name}=True: an exported graph does not hold them; ask the PyTorch model.")


def load_translator(path_or_hub_id: str | Path, **options: Any) -> Translator:
    """As `Translator.from_pretrained`, for an exported model, too.

    Args:
        path_or_hub_id: of a model, or a folder that `reluformer export` has written.
        options: as there.

    Raises:
        UserError: see `Translator.from_pretrained` and `OnnxTranslationModel.from_pretrained`; an attn_implementation,
            device or compute that an exported model cannot follow.
    """
    if not any((Path(path_or_hub_id) / name).is_file() for name in GRAPHS):
        return Translator.from_pretrained(path_or_hub_id, **options)
    for name in ("attn_implementation", "device", "compute"):
        if (value := options.pop(name, None)) not in (None, "cpu", "float32"):
            raise UserError(
                f"{name}: {value!r} was given, but {path_or_hub_id} is an exported model, which runs on cpu in "
                "float32; leave it out"
            )
    return Translator(OnnxTranslationModel.from_pretrained(path_or_hub_id), load_tokenizer(path_or_hub_id), **options)
