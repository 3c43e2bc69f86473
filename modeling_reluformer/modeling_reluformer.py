"""ReLUFormer (arXiv 2302.06461): encoder, decoder, `ReLUFormerModel` and `ReLUFormerForConditionalGeneration`."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple, is_torchdynamo_compiling, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_reluformer import OWN_IMPLEMENTATIONS, attention_context
from .configuration_reluformer import NON_NEGATIVE_ACTIVATIONS, ReLUFormerConfig, valid_attention_implementations
from .layers_reluformer import (
    GatedRMSNorm,
    ReLUFormerAttention,
    ReLUFormerDecoderLayer,
    ReLUFormerEncoderLayer,
    SinusoidalPositions,
)
from .loss_reluformer import IGNORED_LABEL, SentenceRows, sentence_rows, translation_loss
from .visibility_reluformer import positions_from_padding, positions_from_segments

logger = logging.get_logger(__name__)


@dataclass
class ReLUFormerEncoderOutput(BaseModelOutput):
    """`attention_figures`: (encoder modules, 5), see `module_figures`; None where not asked for."""

    attention_figures: Tensor | None = None


@dataclass
class ReLUFormerDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """`attention_figures`: (decoder modules, 5), see `module_figures`; None where not asked for."""

    attention_figures: Tensor | None = None


@dataclass
class ReLUFormerModelOutput(Seq2SeqModelOutput):
    """`attention_figures`: (modules, 5), see `module_figures`; None where not asked for."""

    attention_figures: Tensor | None = None


@dataclass
class ReLUFormerSeq2SeqLMOutput(Seq2SeqLMOutput):
    """With `labels`, beside the loss, its parts per target token and what the attention did. All scalars, None where undefined.

    cross_entropy, regularization: loss = cross_entropy + config.regularization_weight · regularization (Eq. 7).
    attention_sum, attention_entropy, dead_row_fraction: means of S, of H (nats) and of rows without any positive weight
        over all attention modules, heads and real query rows.
    """

    cross_entropy: Tensor | None = None
    regularization: Tensor | None = None
    attention_sum: Tensor | None = None
    attention_entropy: Tensor | None = None
    dead_row_fraction: Tensor | None = None


class ReLUFormerPreTrainedModel(PreTrainedModel):
    config: ReLUFormerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ReLUFormerEncoderLayer", "ReLUFormerDecoderLayer"]
    _keys_to_ignore_on_load_unexpected = [r"embed_positions\.weight"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.init_std
        if isinstance(module, SinusoidalPositions):
            init.copy_(module.weight, module.table())
        elif isinstance(module, nn.Linear) and std is None:
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5 if std is None else std)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        else:
            super()._init_weights(module)
        if isinstance(module, GatedRMSNorm):
            init.ones_(module.gate)
        elif isinstance(module, ReLUFormerAttention) and self.config.attention_gamma_learnable:
            init.constant_(module.log_gamma, math.log(self.config.attention_gamma))
        elif isinstance(module, ReLUFormerForConditionalGeneration):
            init.zeros_(module.final_logits_bias)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        activation = self.config.attention_activation
        valid = valid_attention_implementations(activation)
        requested = valid[0] if requested_attention is None else requested_attention
        if requested not in valid:
            raise ValueError(
                f"attn_implementation={requested!r} cannot compute attention_activation={activation!r}; "
                f"choose one of {', '.join(valid)}."
            )
        if requested in OWN_IMPLEMENTATIONS:
            return requested
        return super().get_correct_attn_implementation(requested, is_init_check)

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: str | None, is_init_check: bool = False, allow_all_kernels: bool = False
    ) -> str:
        # before the library looks: it would accept any name registered globally and any kernel of the Hub
        checked = self.get_correct_attn_implementation(attn_implementation, is_init_check)
        if checked in OWN_IMPLEMENTATIONS:
            return checked
        return super()._check_and_adjust_attn_implementation(checked, is_init_check, allow_all_kernels)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        # generate() would prepare a dense mask for static caches; the compact one serves every implementation here
        return attention_mask

    def _refuse_output_attentions(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("output_attentions") and self.config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions=True needs attn_implementation='eager'; {self.config._attn_implementation!r} never holds "
                "the weights. Call model.set_attn_implementation('eager') first."
            )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, name: str) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"Give exactly one of {name}input_ids and {name}inputs_embeds.")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def _positions(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, segments: Tensor | None, seen: int | Tensor = 0
    ) -> Tensor:
        """Positions of the tokens, (batch or 1, length); padding on the left does not count."""
        length = inputs_embeds.shape[1]
        if isinstance(seen, int) and seen + length > self.config.max_position_embeddings:
            raise ValueError(
                f"A sequence of {seen + length} tokens is longer than max_position_embeddings="
                f"{self.config.max_position_embeddings}: shorten it, or raise that number in the config (positions are not trained)."
            )
        if segments is not None:
            return positions_from_segments(segments)
        if attention_mask is not None and attention_mask.ndim == 2:
            return positions_from_padding(attention_mask, length)
        return (torch.arange(length, device=inputs_embeds.device) + seen).unsqueeze(0)


class ReLUFormerEncoder(ReLUFormerPreTrainedModel):
    _can_record_outputs = {"hidden_states": ReLUFormerEncoderLayer, "attentions": ReLUFormerAttention}

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = SinusoidalPositions(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList([ReLUFormerEncoderLayer(config, index) for index in range(config.encoder_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        segment_ids: Tensor | None = None,
        row_weight: Tensor | None = None,
        statistics: str = "none",
        **kwargs: Any,
    ) -> ReLUFormerEncoderOutput:
        """input_ids (batch, source) → last_hidden_state (batch, source, d_model)."""
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "") * self.embed_scale
        positions = self.embed_positions(self._positions(inputs_embeds, attention_mask, segment_ids))
        hidden_states = nn.functional.dropout(inputs_embeds + positions, p=self.config.dropout, training=self.training)
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            keys=inputs_embeds.shape[1],
            query_segments=segment_ids,
            key_segments=segment_ids,
            row_weight=row_weight,
            statistics=statistics,
        )
        figures = []
        for layer in self.layers:
            hidden_states, layer_figures = layer(hidden_states, context, **kwargs)
            figures.append(layer_figures)
        return ReLUFormerEncoderOutput(last_hidden_state=hidden_states, attention_figures=_join(figures))


class ReLUFormerDecoder(ReLUFormerPreTrainedModel):
    _can_record_outputs = {
        "hidden_states": ReLUFormerDecoderLayer,
        "attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.decoder_vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = SinusoidalPositions(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList([ReLUFormerDecoderLayer(config, index) for index in range(config.decoder_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        encoder_segment_ids: Tensor | None = None,
        row_weight: Tensor | None = None,
        statistics: str = "none",
        **kwargs: Any,
    ) -> ReLUFormerDecoderOutput:
        """input_ids (batch, target) → last_hidden_state (batch, target, d_model). attention_mask covers cache and input."""
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "decoder_") * self.embed_scale
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        length = inputs_embeds.shape[1]
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        positions = self.embed_positions(self._positions(inputs_embeds, attention_mask, segment_ids, seen))
        hidden_states = nn.functional.dropout(inputs_embeds + positions, p=self.config.dropout, training=self.training)
        figures_wanted = {"row_weight": row_weight, "statistics": statistics}
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            keys=length if past_key_values is None else past_key_values.get_mask_sizes(length, 0)[0],
            causal=True,
            query_offset=seen,
            query_segments=segment_ids,
            key_segments=segment_ids,
            past_key_values=getattr(past_key_values, "self_attention_cache", past_key_values),
            **figures_wanted,
        )
        cross_context = None
        if encoder_hidden_states is not None:
            cross_context = attention_context(
                self.config,
                inputs_embeds,
                encoder_attention_mask,
                keys=encoder_hidden_states.shape[1],
                query_segments=segment_ids,
                key_segments=encoder_segment_ids,
                encoder_hidden_states=encoder_hidden_states,
                **figures_wanted,
            )
        figures = []
        for layer in self.layers:
            hidden_states, layer_figures = layer(
                hidden_states, context, encoder_hidden_states, cross_context, past_key_values=past_key_values, **kwargs
            )
            figures.append(layer_figures)
        return ReLUFormerDecoderOutput(
            last_hidden_state=hidden_states, past_key_values=past_key_values, attention_figures=_join(figures)
        )


class ReLUFormerModel(ReLUFormerPreTrainedModel):
    """Encoder and decoder without a head. Arguments as in `ReLUFormerForConditionalGeneration.forward`."""

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = ReLUFormerEncoder(config)
        self.decoder = ReLUFormerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        decoder_segment_ids: Tensor | None = None,
        sentence_rows: SentenceRows | None = None,
        statistics: str = "none",
        **kwargs: Any,
    ) -> ReLUFormerModelOutput:
        encoder_weight, decoder_weight = (None, None) if sentence_rows is None else sentence_rows
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                segment_ids=segment_ids,
                row_weight=encoder_weight,
                statistics=statistics,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = ReLUFormerEncoderOutput(*encoder_outputs[:3])
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            segment_ids=decoder_segment_ids,
            encoder_segment_ids=segment_ids,
            row_weight=decoder_weight,
            statistics=statistics,
            **kwargs,
        )
        return ReLUFormerModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            attention_figures=_join(
                [getattr(encoder_outputs, "attention_figures", None), decoder_outputs.attention_figures]
            ),
        )


class ReLUFormerForConditionalGeneration(ReLUFormerPreTrainedModel, GenerationMixin):
    """ReLUFormer for translation and other sequence-to-sequence tasks.

    Example:

    ```python
    >>> import reluformer
    >>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    >>> tokenizer = AutoTokenizer.from_pretrained("runs/demo")
    >>> model = AutoModelForSeq2SeqLM.from_pretrained("runs/demo")
    >>> tokenizer.batch_decode(model.generate(**tokenizer("zwölf", return_tensors="pt")), skip_special_tokens=True)
    ['twelve']
    ```"""

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # labels are not shifted; the loss itself is translation_loss
        self.model = ReLUFormerModel(config)
        self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {
                "lm_head.weight": "model.shared.weight",
                "model.encoder.embed_tokens.weight": "model.shared.weight",
                "model.decoder.embed_tokens.weight": "model.shared.weight",
            }
        self.final_logits_bias = nn.Buffer(torch.zeros((1, config.decoder_vocab_size)))
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resizes the shared vocabulary, with the output layer and its bias.

        Raises:
            ValueError: the embeddings are not shared, so that "the" vocabulary is not defined.
        """
        if not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_token_embeddings needs share_encoder_decoder_embeddings=True; this model has two vocabularies."
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        size = embeddings.weight.shape[0]
        bias = self.final_logits_bias
        self.config.decoder_vocab_size = size
        self.final_logits_bias = nn.Buffer(nn.functional.pad(bias, (0, max(0, size - bias.shape[1])))[:, :size].clone())
        return embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        decoder_segment_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> ReLUFormerSeq2SeqLMOutput:
        """One pass over source and target; with `labels`, the loss of `translation_loss`.

        Args:
            input_ids: (batch, source). attention_mask: (batch, source), 1 for real tokens, padding on either side.
            decoder_input_ids: (batch, target); default: the labels shifted right behind `decoder_start_token_id`.
            decoder_attention_mask: (batch, seen + target), needed only where padding stands left of the target.
            labels: (batch, target), -100 where there is no target.
            segment_ids, decoder_segment_ids: (batch, source), (batch, target): for packed sequences, the number of each
                token's sequence from 1, 0 for padding; equal numbers side by side.
            num_items_in_batch: number of targets in the whole batch that this call is a part of; the loss is divided by it.

        Returns:
            logits (batch, target, vocabulary), and with `labels` the fields of `ReLUFormerSeq2SeqLMOutput`.

        Raises:
            ValueError: labels padded on the left without decoder_input_ids; sequences beyond max_position_embeddings; masks
                of a wrong shape.
        """
        rows = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            source = input_ids if inputs_embeds is None else inputs_embeds
            if source is None:
                source = encoder_outputs[0]
            rows = sentence_rows(labels, attention_mask, source.shape[1], segment_ids, decoder_segment_ids)
        elif self.training and past_key_values is None:
            self._warn_about_missing_labels()
        statistics = "none" if labels is None else self._statistics()
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            segment_ids=segment_ids,
            decoder_segment_ids=decoder_segment_ids,
            sentence_rows=rows,
            statistics=statistics,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        logits = logits + self.final_logits_bias.to(logits.dtype)
        losses = {}
        if labels is not None:
            losses = translation_loss(
                logits,
                labels,
                outputs.attention_figures,
                statistics=statistics,
                label_smoothing=self.config.label_smoothing,
                regularization_weight=self.config.regularization_weight,
                num_items_in_batch=num_items_in_batch,
            )._asdict()
        return ReLUFormerSeq2SeqLMOutput(
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            **losses,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (batch, target) shifted right behind the start token; -100 becomes the padding token.

        Raises:
            ValueError: labels padded on the left: the start token would stand before the padding.
        """
        if not is_torchdynamo_compiling() and labels.shape[1] > 0:
            padded = (labels[:, 0] == IGNORED_LABEL) & (labels != IGNORED_LABEL).any(dim=1)
            if padded.any():
                raise ValueError(
                    "Labels are padded on the left. Pad them on the right (tokenizer.padding_side='right'), or give "
                    "decoder_input_ids and decoder_attention_mask beside them."
                )
        shifted = labels.new_empty(labels.shape)
        shifted[:, 1:] = labels[:, :-1]
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    def _statistics(self) -> str:
        """Which row statistics a pass with labels needs: what the loss takes, and in evaluation all that can be reported."""
        config = self.config
        if config.attention_activation in NON_NEGATIVE_ACTIVATIONS:
            return "sum+entropy" if config.regularization_weight > 0 or not self.training else "sum"
        normalized_eager = config.attention_scaling == "none" and config._attn_implementation == "eager"
        normalized_eager = normalized_eager and config.attention_activation in ("softmax", "sparsemax", "entmax15")
        return "sum+entropy" if normalized_eager and not self.training else "none"

    def _warn_about_missing_labels(self) -> None:
        if self.config.regularization_weight > 0 and not is_torchdynamo_compiling():
            logger.warning_once(
                "A training pass without labels: the model's own loss, and with it the regulariser "
                f"(regularization_weight={self.config.regularization_weight}), is not computed. The Trainer's "
                "label_smoothing_factor does that: leave it at 0 and set config.label_smoothing instead."
            )


def _join(figures: list[Tensor | None]) -> Tensor | None:
    figures = [part for part in figures if part is not None]
    return torch.cat([part.to(figures[0].device) for part in figures]) if figures else None


__all__ = ["ReLUFormerForConditionalGeneration", "ReLUFormerModel", "ReLUFormerPreTrainedModel"]
