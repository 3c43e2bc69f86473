"""An exported model in onnxruntime: `generate` is the library's, so that greedy search, beams and all options are PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

import reluformer  # noqa: F401  (registers the model's configuration)
from reluformer.configuration.errors import UserError, one_line
from reluformer.export.caches import filled, pairs_of
from reluformer.export.names import GRAPHS, cache_names
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.modeling_reluformer.fused.generation import SharedSources
from reluformer.modeling_reluformer.layers_reluformer import (
    CompactMask,
    attention_visibility,
    checked_keywords,
    require_known_ids,
    require_positions,
    require_token_ids,
)
from reluformer.modeling_reluformer.modeling_reluformer import require_same_batch

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions


@dataclass
class OnnxEncoderOutput(BaseModelOutput):
    """cross_attention: key and value of each layer of the decoder, (batch, heads, source, head_dim), one after the other."""

    cross_attention: tuple[Tensor, ...] | None = None


class OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, session: InferenceSession, config: PreTrainedConfig) -> None:
        super().__init__()
        self.session, self.config = session, config

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
    ) -> OnnxEncoderOutput:
        """input_ids, attention_mask: (batch, source). Raises what the PyTorch model raises for ids and masks it cannot take."""
        _refuse(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        ids = _token_ids(input_ids, "", self.config.vocab_size)
        require_positions(ids.shape[1], self.config.max_position_embeddings)
        hidden_states, *cross = _run(
            self.session, {"input_ids": ids, "attention_mask": _source_mask(attention_mask, ids.shape)}
        )
        return OnnxEncoderOutput(last_hidden_state=hidden_states, cross_attention=tuple(cross))


class OnnxTranslationModel(SharedSources, CompactMask, PreTrainedModel, GenerationMixin):
    """A folder of `reluformer export`, for `generate`, `Translator` and whatever else takes a model of Transformers.

    Args:
        config: of the model that was exported.
        encoder, decoder: sessions of the two graphs.
        generation_config: None takes that of the configuration.

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

    def __init__(
        self,
        config: PreTrainedConfig,
        encoder: InferenceSession,
        decoder: InferenceSession,
        generation_config: GenerationConfig | None = None,
    ) -> None:
        super().__init__(config)
        self.encoder = OnnxEncoder(encoder, config)
        self.session = decoder
        self.layers = config.decoder_layers
        if generation_config is not None:
            self.generation_config = generation_config
        shapes = {item.name: item.shape for item in decoder.get_inputs()}
        # names and sizes of (batch, heads, length, head_dim)
        own, cross = (shapes[f"past_key_values.0.{of}.key"] for of in ("decoder", "encoder"))
        self.heads, self.head_dim = own[1], own[3]
        self.shares_sources = own[0] != cross[0]
        self.eval()

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        session_options: SessionOptions | None = None,
    ) -> OnnxTranslationModel:
        """The model of a folder.

        Args:
            folder: that `reluformer export` has written.
            providers: of onnxruntime, in the order of preference.
            session_options: of onnxruntime, the number of threads for example.

        Raises:
            UserError: no such folder, or one that lacks a file or holds a damaged one.
        """
        from onnxruntime import InferenceSession  # of an extra

        folder = Path(folder)
        for name in ("config.json", *GRAPHS):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: holds no {name}; give a folder that `reluformer export` has written")
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            sessions = [InferenceSession(folder / name, session_options, providers=list(providers)) for name in GRAPHS]
            generation_config = GenerationConfig.from_pretrained(folder)
        # What a damaged file makes the libraries raise is of any kind, for onnxruntime a plain Exception.
        except Exception as error:
            raise UserError(f"{folder}: its graphs cannot be loaded: {one_line(error)}") from error
        return cls(config, *sessions, generation_config)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def get_encoder(self, modality: str | None = None) -> OnnxEncoder:
        return self.encoder

    @checked_keywords()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: OnnxEncoderOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        targets_per_source: int = 1,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the decoder's tokens, and the cache that has grown by them.

        Args:
            input_ids, attention_mask: (sources, source). decoder_input_ids: (sources · targets_per_source, target).
            encoder_outputs: of this model's encoder, instead of `input_ids`.
            cache: as this method has returned it, or an empty `EncoderDecoderCache` of two `DynamicCache`.
            use_cache: whether the cache is returned.
            targets_per_source: how many neighbouring targets share a source.

        Raises:
            ValueError: ids or a mask of a wrong shape or dtype, none or empty ids, another number of targets than of sources,
                sequences beyond max_position_embeddings; all as in the PyTorch model.
            IndexError: an id outside the vocabulary.
        """
        _refuse(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        decoder_input_ids = _token_ids(decoder_input_ids, "decoder_", self._decoder_vocab_size)
        sources = encoder_outputs.last_hidden_state
        require_same_batch(sources, decoder_input_ids, targets_per_source)
        attention_mask = _source_mask(attention_mask, sources.shape[:2])
        if not self.shares_sources:
            attention_mask = attention_mask.repeat_interleave(targets_per_source, dim=0)
        cache = self._cache(cache, encoder_outputs, targets_per_source)
        seen = cache.self_attention_cache.get_seq_length()
        require_positions(seen + decoder_input_ids.shape[1], self.config.max_position_embeddings)
        feeds = {"input_ids": decoder_input_ids, "encoder_attention_mask": attention_mask}
        for of, part in (("decoder", cache.self_attention_cache), ("encoder", cache.cross_attention_cache)):
            tensors = [tensor for pair in pairs_of(part) for tensor in pair]
            if not tensors:
                tensors = 2 * self.layers * [torch.zeros(len(decoder_input_ids), self.heads, 0, self.head_dim)]
            feeds |= zip(cache_names("past_key_values", of, self.layers), tensors, strict=True)
        logits, *present = _run(self.session, feeds)
        cache.self_attention_cache.layers = filled(_in_pairs(present)).layers
        return Seq2SeqLMOutput(
            logits=logits,
            encoder_last_hidden_state=sources,
            **{CACHE_NAME: None if use_cache is False else cache},
        )

    @property
    def _decoder_vocab_size(self) -> int:
        return getattr(self.config, "decoder_vocab_size", None) or self.config.vocab_size

    def _cache(
        self, given: EncoderDecoderCache | None, encoder_outputs: OnnxEncoderOutput, targets_per_source: int
    ) -> EncoderDecoderCache:
        """The cache to use; its part for the source is filled when it is new."""
        if given is None:
            given = EncoderDecoderCache(filled([]), filled([]))
        if type(given.self_attention_cache) is not DynamicCache:
            raise ValueError(
                f"the graph makes its cache grow by itself and takes a DynamicCache; got "
                f"{type(given.self_attention_cache).__name__}. Leave out cache_implementation."
            )
        if not given.is_updated.get(0):
            cross = encoder_outputs.cross_attention
            if not self.shares_sources and targets_per_source > 1:
                cross = [tensor.repeat_interleave(targets_per_source, dim=0) for tensor in cross]
            given.cross_attention_cache.layers = filled(_in_pairs(cross)).layers
            given.self_attention_cache.layers = []
            given.is_updated = dict.fromkeys(range(self.layers), True)
        return given


def _in_pairs(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _token_ids(input_ids: Tensor | None, name: str, vocab_size: int) -> Tensor:
    """Ids of the dtype of the graphs, which look up negative ones from the end of the vocabulary; `name`: `decoder_` or empty."""
    if input_ids is None:
        raise ValueError(f"Give {name}input_ids: an exported graph takes nothing in their place.")
    require_token_ids(input_ids, name)
    require_known_ids(input_ids, vocab_size, name)
    return input_ids.long()


def _source_mask(given: Tensor | None, shape: Sequence[int]) -> Tensor:
    """The mask of the source, (batch, source), of the dtype of the graphs."""
    if given is None:
        return torch.ones(tuple(shape), dtype=torch.long)
    if given.ndim != 2:
        raise ValueError(f"An exported graph takes an attention mask (batch, source); got {tuple(given.shape)}.")
    attention_visibility(given, batch=shape[0], queries=shape[1], keys=shape[1])
    return given.long()


def _run(session: InferenceSession, feeds: Mapping[str, Tensor]) -> list[Tensor]:
    arrays = {name: tensor.contiguous().numpy() for name, tensor in feeds.items()}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]


def _refuse(**wanted: Any) -> None:
    for name, value in wanted.items():
        if value:
            raise ValueError(f"{name}=True: an exported graph does not hold them; ask the PyTorch model.")
