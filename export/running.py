"""An exported model in onnxruntime: `generate` is the library's, so that greedy search, beams and all options are PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

import reluformer  # noqa: F401  (registers the model's configuration)
from reluformer.configuration.errors import UserError
from reluformer.export.graphs import GRAPHS, both_caches, filled, pairs_of
from reluformer.modeling_reluformer.configuration_reluformer import CACHE_NAME
from reluformer.modeling_reluformer.layers_reluformer import (
    LanguageHeadMixin,
    checked_keywords,
    require_known_ids,
    require_positions,
)
from reluformer.training.loading import load_tokenizer
from reluformer.training.translation import Translator

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions


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
    ) -> BaseModelOutput:
        """input_ids, attention_mask: (batch, source)."""
        _refuse(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        require_known_ids(input_ids, self.config.vocab_size, "")
        require_positions(input_ids.shape[1], self.config.max_position_embeddings)
        feeds = {"input_ids": input_ids.long(), "attention_mask": _source_mask(attention_mask, input_ids.shape)}
        return BaseModelOutput(_run(self.session, feeds)[0])


class OnnxTranslationModel(LanguageHeadMixin, PreTrainedModel, GenerationMixin):
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
        _, self.heads, _, self.head_dim = shapes["past_key_values.0.decoder.key"]
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
            UserError: no such folder, or one that lacks a file.
        """
        from onnxruntime import InferenceSession  # of an extra

        folder = Path(folder)
        for name in ("config.json", *GRAPHS):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: holds no {name}; give a folder that `reluformer export` has written")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        sessions = [InferenceSession(folder / name, session_options, providers=list(providers)) for name in GRAPHS]
        return cls(config, *sessions, GenerationConfig.from_pretrained(folder))

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
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the decoder's tokens, and the cache that has grown by them.

        Args:
            input_ids, attention_mask: (batch, source). decoder_input_ids: (batch, target).
            encoder_outputs: of this model's encoder, instead of `input_ids`.
            cache: as this method has returned it; one that is new is replaced by a `DynamicCache`.
            use_cache: whether the cache is returned.

        Raises:
            ValueError: sequences beyond max_position_embeddings. IndexError: an id outside the vocabulary.
        """
        _refuse(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        # onnxruntime takes negative ids for those at the end of the vocabulary
        require_known_ids(decoder_input_ids, self.config.decoder_vocab_size or self.config.vocab_size, "decoder_")
        sources = encoder_outputs.last_hidden_state
        if cache is None or not cache.is_updated.get(0):
            cache = self._empty_cache(len(sources))
        seen = cache.self_attention_cache.get_seq_length()
        require_positions(seen + decoder_input_ids.shape[1], self.config.max_position_embeddings)
        mask = _source_mask(attention_mask, sources.shape[:2])
        feeds = {
            "input_ids": decoder_input_ids.long(),
            "encoder_attention_mask": mask,
            "encoder_hidden_states": sources,
        }
        parts = cache.self_attention_cache, cache.cross_attention_cache
        past = [tensor for part in parts for pair in pairs_of(part) for tensor in pair]
        feeds |= zip(both_caches("past_key_values", self.layers), past, strict=True)
        logits, *present = _run(self.session, feeds)
        for part, tensors in zip(
            parts, (present[: 2 * self.layers], present[2 * self.layers : len(past)]), strict=True
        ):
            part.layers = filled(zip(tensors[::2], tensors[1::2], strict=True)).layers
        return Seq2SeqLMOutput(
            logits=logits,
            encoder_last_hidden_state=sources,
            **{CACHE_NAME: None if use_cache is False else cache},
        )

    def _empty_cache(self, batch: int) -> EncoderDecoderCache:
        """Keys and values of length 0, which the graph's first step takes."""
        empty = torch.zeros(batch, self.heads, 0, self.head_dim)
        cache = EncoderDecoderCache(*(filled(self.layers * [(empty, empty)]) for _ in range(2)))
        cache.is_updated = dict.fromkeys(range(self.layers), True)
        return cache

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: Tensor) -> EncoderDecoderCache:
        """Beams of a sentence have the same source, so only what they have written themselves changes places."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache


def _source_mask(given: Tensor | None, shape: Sequence[int]) -> Tensor:
    """The mask of the source, (batch, source), of the dtype of the graphs."""
    return torch.ones(tuple(shape), dtype=torch.long) if given is None else given.long()


def _run(session: InferenceSession, feeds: Mapping[str, Tensor]) -> list[Tensor]:
    arrays = {name: tensor.contiguous().numpy() for name, tensor in feeds.items()}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]


def _refuse(**wanted: Any) -> None:
    for name, value in wanted.items():
        if value:
            raise ValueError(f"{name}=True: an exported graph does not hold them; ask the PyTorch model.")


def load_translator(path_or_hub_id: str | Path, **options: Any) -> Translator:
    """As `Translator.from_pretrained`, for an exported model, too.

    Args:
        path_or_hub_id: of a model, or a folder that `reluformer export` has written.
        options: as there.

    Raises:
        UserError: see `Translator.from_pretrained` and `OnnxTranslationModel.from_pretrained`; an attn_implementation, device or
            compute that an exported model cannot follow.
    """
    if not any((Path(path_or_hub_id) / name).is_file() for name in GRAPHS):
        return Translator.from_pretrained(path_or_hub_id, **options)
    for name in ("attn_implementation", "device", "compute"):
        if (given := options.pop(name, None)) not in (None, "cpu", "float32"):
            raise UserError(
                f"{name}: {given!r} was given, but {path_or_hub_id} is an exported model, which runs on cpu in float32; "
                "leave it out"
            )
    return Translator(OnnxTranslationModel.from_pretrained(path_or_hub_id), load_tokenizer(path_or_hub_id), **options)
