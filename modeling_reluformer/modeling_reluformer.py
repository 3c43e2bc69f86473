"""ReLUFormer (arXiv 2302.06461) for translation: `ReLUFormerModel` and `ReLUFormerForConditionalGeneration`.

Encoder and decoder of Vaswani et al. (post-LN). Parameter names are Marian's.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_reluformer import positions_from_segments, sinusoidal_table
from .configuration_reluformer import CACHE_NAME, ReLUFormerConfig, require_tensor_parallel
from .layers_reluformer import (
    AttentionContext,
    AttentionPreTrainedModel,
    LayerOutput,
    LayerSums,
    ReLUFormerAttention,
    SharedSources,
    attention_context,
    checked_keywords,
    dropped,
    feed_forward_activation,
    join_sums,
    require_labels,
    require_positions,
    run_layers,
    token_positions,
    tokens_in,
)
from .loss_reluformer import IGNORED_LABEL, LossParts, Measured, ModuleSample, activation_norms, sentence_rows


@dataclass
class ReLUFormerEncoderOutput(LayerSums, BaseModelOutput):
    """Output of the encoder."""


@dataclass
class ReLUFormerDecoderOutput(LayerSums, BaseModelOutputWithPastAndCrossAttentions):
    """Output of the decoder."""


@dataclass
class ReLUFormerModelOutput(LayerSums, Seq2SeqModelOutput):
    """Output of encoder and decoder: the sums of both, the encoder's first."""


@dataclass
class ReLUFormerSeq2SeqLMOutput(LossParts, Seq2SeqLMOutput):
    """Output of the model with its head; for its losses see `LossParts`."""


class SinusoidalPositions(nn.Module):
    """The table of `sinusoidal_table` as a buffer, which is not saved."""

    def __init__(self, positions: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(positions, features), persistent=False)
        self.weight.copy_(sinusoidal_table(positions, features))

    def forward(self, position_ids: Tensor) -> Tensor:
        """(batch or 1, length) → (batch or 1, length, features)."""
        return nn.functional.embedding(position_ids, self.weight)


class ReLUFormerLayer(GradientCheckpointingLayer):
    """A layer of the encoder or of the decoder: dropout, residual and norm around each attention and the feed-forward
    network."""

    def __init__(self, config: ReLUFormerConfig, layer_idx: int, is_decoder: bool) -> None:
        super().__init__()
        stack = "decoder" if is_decoder else "encoder"
        heads, ffn_dim = getattr(config, f"{stack}_attention_heads"), getattr(config, f"{stack}_ffn_dim")
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.ffn_temperature = config.ffn_temperature
        self.activation_fn = None
        if config.activation_function != "softmax":
            ffn_layer = layer_idx + (config.encoder_layers if is_decoder else 0)
            self.activation_fn = feed_forward_activation(config, config.activation_function, ffn_layer)
        # a seed draws the initial weights in the order of the modules, which the committed results have
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.ffn_layer_norm = nn.LayerNorm(config.d_model) if config.ffn_output_norm == "layer_norm" else None
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.self_attn = ReLUFormerAttention(config, heads, layer_idx, is_causal=is_decoder)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        if is_decoder:
            self.encoder_attn = ReLUFormerAttention(config, heads, layer_idx)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        hidden_states: Tensor,
        context: AttentionContext,
        encoder_hidden_states: Tensor | None = None,
        cross_context: AttentionContext | None = None,
        **kwargs: Any,
    ) -> LayerOutput:
        """(batch, length, d_model) → the same, and if wanted the norms (1,) of its FFN, and S and T of each
        attention."""
        attended, _, rows = self.self_attn(hidden_states, context, **kwargs)
        hidden_states = self._add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            attended, _, cross_rows = self.encoder_attn(hidden_states, cross_context, encoder_hidden_states, **kwargs)
            hidden_states = self._add_and_norm(hidden_states, attended, self.encoder_attn_layer_norm)
            rows += cross_rows
        update, norms = self._feed_forward(hidden_states, context.ffn_row_weight)
        return self._add_and_norm(hidden_states, update, self.final_layer_norm), norms, *rows

    def _add_and_norm(self, residual: Tensor, update: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(residual + dropped(update, self.dropout, self.training))

    def _feed_forward(self, hidden_states: Tensor, row_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Eq. 1; with softmax the key-value memory of Eq. 2, with a norm Table 1's third row. Also the
        `activation_norms`."""
        scores = self.fc1(hidden_states)
        if self.activation_fn is None:
            scores = torch.softmax(scores / self.ffn_temperature, dim=-1)
        else:
            scores = self.activation_fn(scores)
        norms = None if row_weight is None else activation_norms(scores, row_weight)
        update = self.fc2(dropped(scores, self.activation_dropout, self.training))
        return update if self.ffn_layer_norm is None else self.ffn_layer_norm(update), norms


class ReLUFormerPreTrainedModel(AttentionPreTrainedModel):
    config: ReLUFormerConfig
    auto_map = {
        "AutoConfig": "configuration_reluformer.ReLUFormerConfig",
        "AutoModel": "modeling_reluformer.ReLUFormerModel",
        "AutoModelForSeq2SeqLM": "modeling_reluformer.ReLUFormerForConditionalGeneration",
    }
    _no_split_modules = ["ReLUFormerLayer"]
    _keys_to_ignore_on_load_unexpected = [r"embed_positions\.weight"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.init_std
        if isinstance(module, SinusoidalPositions):
            init.copy_(module.weight, sinusoidal_table(*module.weight.shape))
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

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # With tie_word_embeddings=False the library ties nothing at all; here that field is about the output layer
        # alone.
        config = self.config
        if not all_submodels and config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
            return {name: source for name, source in (self._tied_weights_keys or {}).items() if "lm_head" not in name}
        return super().get_expanded_tied_weights_keys(all_submodels)

    @classmethod
    def maybe_distribute_model(cls, model: PreTrainedModel, distributed_config: Any, *args: Any) -> PreTrainedModel:
        if distributed_config is not None and distributed_config.tp_size > 1:
            require_tensor_parallel(model.config, distributed_config.tp_size)
        return super().maybe_distribute_model(model, distributed_config, *args)

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        if not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "Vocabularies are resized with share_encoder_decoder_embeddings=True alone; this model has two."
            )
        embeddings = super()._resize_token_embeddings(*args, **kwargs)
        self.config.decoder_vocab_size = size = embeddings.weight.shape[0]
        if (bias := getattr(self, "final_logits_bias", None)) is not None:
            padded = nn.functional.pad(bias, (0, max(0, size - bias.shape[1])))
            self.final_logits_bias = nn.Buffer(padded[:, :size].clone())
        if (head := self.get_output_embeddings()) is not None:
            head.out_features = size
        return embeddings


class ReLUFormerStack(ReLUFormerPreTrainedModel):
    """What encoder and decoder share: embedding, positions and a stack of layers."""

    def __init__(self, config: ReLUFormerConfig, vocab_size: int, layers: int, is_decoder: bool) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = SinusoidalPositions(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList(ReLUFormerLayer(config, index, is_decoder) for index in range(layers))
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        super().init_parallel_plans()
        self._tp_plan = {}  # the plan of the configuration names modules of the whole model, not of a stack

    def _with_positions(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, segments: Tensor | None, seen: int | Tensor = 0
    ) -> Tensor:
        """What goes into the first layer, (batch, length, d_model)."""
        length = inputs_embeds.shape[1]
        if isinstance(seen, int):  # a static cache has no number that could be looked at without waiting for the device
            require_positions(seen + length, self.config.max_position_embeddings)
        positions = self.embed_positions(token_positions(length, inputs_embeds.device, attention_mask, segments, seen))
        return nn.functional.dropout(inputs_embeds + positions, p=self.config.dropout, training=self.training)


class ReLUFormerEncoder(ReLUFormerStack):
    _can_record_outputs = {"hidden_states": ReLUFormerLayer, "attentions": ReLUFormerAttention}

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config, config.vocab_size, config.encoder_layers, is_decoder=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        segment_ids: Tensor | None = None,
        measured: Measured | None = None,
        **kwargs: Any,
    ) -> ReLUFormerEncoderOutput:
        """input_ids (batch, source) → last_hidden_state (batch, source, d_model)."""
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "")
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            segments=(segment_ids, segment_ids),
            measured=measured,
        )
        hidden_states = self._with_positions(inputs_embeds, attention_mask, segment_ids)
        hidden_states, sums, norms = run_layers(self.layers, hidden_states, context, **kwargs)
        return ReLUFormerEncoderOutput(last_hidden_state=hidden_states, attention_sums=sums, ffn_norms=norms)


# Of how many layers `output_hidden_states=[-1]` is the last: `num_hidden_layers`, the default, is the encoder's. Not in
# Transformers 5.17.
_DEPTH = {"num_hidden_layers_key": "decoder_layers"}
_HAS_DEPTH = "num_hidden_layers_key" in {field.name for field in fields(OutputRecorder)}
_OF_DECODER_LAYERS = OutputRecorder(ReLUFormerLayer, **_DEPTH) if _HAS_DEPTH else ReLUFormerLayer


class ReLUFormerDecoder(ReLUFormerStack):
    _can_record_outputs = {
        "hidden_states": _OF_DECODER_LAYERS,
        "attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config, config.decoder_vocab_size, config.decoder_layers, is_decoder=True)

    @checked_keywords
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        encoder_segment_ids: Tensor | None = None,
        targets_per_source: int = 1,
        measured: Measured | None = None,
        **kwargs: Any,
    ) -> ReLUFormerDecoderOutput:
        """input_ids (batch, target) → last_hidden_state (batch, target, d_model). attention_mask covers cache and
        input.

        encoder_hidden_states: (batch / targets_per_source, source, d_model), encoder_attention_mask: (the same,
            source).
        """
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "decoder_")
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        elif encoder_hidden_states is not None and cache is not None and not isinstance(cache, EncoderDecoderCache):
            # the keys of the source must not mix with its own
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        seen = tokens_in(cache)
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            cache=cache,
            causal=True,
            query_offset=seen,
            segments=(segment_ids, segment_ids),
            measured=measured,
        )
        cross_context = None
        if encoder_hidden_states is not None:
            require_same_batch(encoder_hidden_states, inputs_embeds, targets_per_source)
            cross_context = attention_context(
                self.config,
                inputs_embeds.reshape(encoder_hidden_states.shape[0], -1, inputs_embeds.shape[-1]),
                encoder_attention_mask,
                keys=encoder_hidden_states.shape[1],
                segments=(segment_ids, encoder_segment_ids),
                measured=measured,
            )
        hidden_states = self._with_positions(inputs_embeds, attention_mask, segment_ids, seen)
        cached = {CACHE_NAME: cache}
        hidden_states, sums, norms = run_layers(
            self.layers, hidden_states, context, encoder_hidden_states, cross_context, **kwargs, **cached
        )
        return ReLUFormerDecoderOutput(last_hidden_state=hidden_states, attention_sums=sums, ffn_norms=norms, **cached)


def require_same_batch(source: Tensor, target: Tensor, targets_per_source: int = 1) -> None:
    """Raises a `ValueError` unless there are `targets_per_source` targets for each source."""
    if source.shape[0] * targets_per_source != target.shape[0]:
        raise ValueError(
            f"Each source must have {targets_per_source} targets ({targets_per_source=}); got {source.shape[0]} "
            f"sources and {target.shape[0]} targets."
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

    @checked_keywords
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        decoder_segment_ids: Tensor | None = None,
        targets_per_source: int = 1,
        measured: tuple[Measured | None, Measured | None] = (None, None),
        **kwargs: Any,
    ) -> ReLUFormerModelOutput:
        if (segment_ids is None) != (decoder_segment_ids is None):
            raise ValueError(
                "Packed sequences need segment_ids and decoder_segment_ids, or a target would attend to every source; "
                f"only {'decoder_segment_ids' if segment_ids is None else 'segment_ids'} was given."
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                segment_ids=segment_ids,
                measured=measured[0],
                return_dict=True,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = ReLUFormerEncoderOutput(*encoder_outputs[:3])
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            segment_ids=decoder_segment_ids,
            encoder_segment_ids=segment_ids,
            targets_per_source=targets_per_source,
            measured=measured[1],
            return_dict=True,
            **kwargs,
        )
        both = (encoder_outputs, decoder_outputs)
        return ReLUFormerModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            attention_sums=join_sums(getattr(outputs, "attention_sums", None) for outputs in both),
            ffn_norms=join_sums(getattr(outputs, "ffn_norms", None) for outputs in both),
        )


class ReLUFormerForConditionalGeneration(SharedSources, ReLUFormerPreTrainedModel, GenerationMixin):
    """ReLUFormer for translation and other sequence-to-sequence tasks."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # labels are not shifted; the loss itself is regularized_loss
        self.model = ReLUFormerModel(config)
        self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        if config.share_encoder_decoder_embeddings:
            tied = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
            self._tied_weights_keys = dict.fromkeys(tied, "model.shared.weight")
        self.final_logits_bias = nn.Buffer(torch.zeros((1, config.decoder_vocab_size)))
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.final_logits_bias)

    @checked_keywords
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        decoder_segment_ids: Tensor | None = None,
        targets_per_source: int = 1,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        module_sample: ModuleSample | None = None,
        **kwargs: Any,
    ) -> ReLUFormerSeq2SeqLMOutput:
        """One pass over source and target; with `labels`, the loss (see `loss_reluformer`).

        Args:
            input_ids: (batch, source). attention_mask: (batch, source), 1 for real tokens, padding on either side.
            decoder_input_ids: (batch, target); default: the labels shifted right after `decoder_start_token_id`, each
                packed sequence by itself.
            decoder_attention_mask: (batch, seen + target), needed only where padding stands left of the target.
            labels: (batch, target), -100 where there is no target.
            segment_ids, decoder_segment_ids: (batch, source), (batch, target): for packed sequences, the number of each
                token's sequence from 1, 0 for padding; equal numbers side by side.
            targets_per_source: how many neighbouring targets share a source, as beams do, whose keys are held once;
                with `labels`, 1.
            num_items_in_batch: number of targets in the whole batch of which this call is a part; the loss is divided
                by it.
            skip_logits: compute the loss without holding the logits (see `vocabulary_loss`), which saves memory and
                time; it needs `labels`. Default: `config.skip_logits` in training with labels, else False.
            module_sample: where `regularization_share` is below 1, what `draw_modules` has drawn for this pass in
                training. Default: it is drawn here, where `torch.compile` ends a graph.

        Returns:
            logits (batch, target, vocabulary), None with `skip_logits`; with `labels`, the fields of
            `ReLUFormerSeq2SeqLMOutput`.

        Raises:
            ValueError: skip_logits without labels; labels padded on the left without decoder_input_ids; sequences
                beyond max_position_embeddings; ids, embeddings, masks or labels of a wrong shape or dtype.
            IndexError: on a CPU, a token id or label outside the vocabulary. A GPU raises a device-side assertion
                instead.
        """
        measured = (None, None)
        if labels is not None:
            use_cache = False
            require_labels(labels, decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, decoder_segment_ids)
            source = input_ids if inputs_embeds is None else inputs_embeds
            source = encoder_outputs[0] if source is None else source
            require_same_batch(source, labels)
            dtype = self._wide_dtype()
            rows = sentence_rows(labels, attention_mask, source.shape[1], segment_ids, decoder_segment_ids, dtype)
            sample = self._chosen_modules(module_sample)
            measured = (
                self._measured(rows[0], sample),
                self._measured(rows[1], sample, first_module=self.config.encoder_layers),
            )
        elif self.training and cache is None:
            self._warn_about_missing_labels()
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            segment_ids=segment_ids,
            decoder_segment_ids=decoder_segment_ids,
            targets_per_source=targets_per_source,
            measured=measured,
            return_dict=True,
            **kwargs,
        )
        logits, losses = self._logits_and_losses(
            outputs, labels, skip_logits, num_items_in_batch, self.final_logits_bias
        )
        own = {"last_hidden_state", "attention_sums", "ffn_norms"}
        others = {name: value for name, value in outputs.items() if name not in own}
        return ReLUFormerSeq2SeqLMOutput(logits=logits, **others, **losses)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs: Any) -> tuple[Any, ...]:
        """As in Transformers, but one limit of the length: that of the call, else `max_new_tokens`.

        A model that was saved with `max_new_tokens` would ignore the `max_length` of a call, as the Trainer's
        `generation_max_length` is one, and warn of the two limits for each batch.
        """
        prepared, *others = super()._prepare_generation_config(generation_config, **kwargs)
        limits = {
            name: kwargs.get(name) or getattr(generation_config, name, None)
            for name in ("max_length", "max_new_tokens")
        }
        if limits["max_length"] is None and prepared.max_new_tokens is not None:
            prepared.max_length = None
        elif limits["max_length"] is not None and limits["max_new_tokens"] is None:
            prepared.max_new_tokens = None
        return prepared, *others

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """Labels (batch, target) shifted right after the start token; -100 becomes the padding token.

        segment_ids: (batch, target), see `forward`: each packed sequence is shifted by itself.

        Raises:
            ValueError: labels padded on the left, or a packed sequence that begins with -100; a configuration without
                decoder_start_token_id or pad_token_id.
        """
        for name in ("decoder_start_token_id", "pad_token_id"):
            if getattr(self.config, name) is None:
                raise ValueError(
                    f"config.{name} is None, but the decoder's input is made with it: set it to a token's id."
                )
        if segment_ids is None:
            segment_ids = torch.ones_like(labels)
        starts = (positions_from_segments(segment_ids) == 0) & (segment_ids > 0)
        # on a GPU the check would wait for all that was launched before it
        if labels.device.type == "cpu" and not is_compiling():
            padded = (starts & (labels == IGNORED_LABEL)).any(dim=1) & (labels != IGNORED_LABEL).any(dim=1)
            if padded.any():
                raise ValueError(
                    "Labels are padded on the left. Pad them on the right (tokenizer.padding_side='right'), packed "
                    "sequences too, or give decoder_input_ids and decoder_attention_mask beside them."
                )
        shifted = labels.roll(1, dims=1)
        shifted[:, 0] = self.config.decoder_start_token_id
        shifted = shifted.masked_fill(starts, self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)


# `save_pretrained` writes the code beside the weights, see `auto_map`.
ReLUFormerModel.register_for_auto_class("AutoModel")
ReLUFormerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
