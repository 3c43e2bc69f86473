"""The parts of every ReLUFormer for translation: the base class with its initialisation, the encoder, the decoder."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers import initialization as init
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_reluformer import attention_context
from .base_reluformer import AttentionPreTrainedModel, checked_keywords
from .configuration_attention import CACHE_NAME
from .configuration_reluformer import ReLUFormerConfig, require_tensor_parallel
from .layers_reluformer import ReLUFormerDecoderLayer, ReLUFormerEncoderLayer, SinusoidalPositions
from .multihead_reluformer import ReLUFormerAttention
from .outputs_reluformer import ReLUFormerDecoderOutput, ReLUFormerEncoderOutput, run_layers
from .tokens_reluformer import EmbedsTokens, look_up_positions, require_positions, require_whole_mask, token_positions


def require_same_batch(source: Tensor, target: Tensor, targets_per_source: int = 1) -> None:
    """Raises a `ValueError` unless there are `targets_per_source` targets for each source."""
    if source.shape[0] * targets_per_source != target.shape[0]:
        sizes = f"got {source.shape[0]} and {target.shape[0]}."
        if targets_per_source == 1:
            raise ValueError(f"Source and target must have the same number of sequences; {sizes}")
        raise ValueError(f"Each source must have {targets_per_source} targets ({targets_per_source=}); {sizes}")


def with_cross_attention_cache(cache: Cache, config: ReLUFormerConfig) -> EncoderDecoderCache:
    """`cache` for self-attention and a new one for cross-attention, whose keys must not mix with those of `cache`."""
    if isinstance(cache, EncoderDecoderCache):
        return cache
    return EncoderDecoderCache(cache, DynamicCache(config=config))


def require_same_sources(cache: Cache | None, encoder_hidden_states: Tensor) -> None:
    """Raises a `ValueError` if the cache holds the keys of more or fewer sources than the encoder's output has."""
    if not isinstance(cache, EncoderDecoderCache) or not cache.is_updated.get(0):
        return
    sources, given = cache.cross_attention_cache.layers[0].keys.shape[0], encoder_hidden_states.shape[0]
    if sources != given:
        raise ValueError(
            f"The cache holds the keys of {sources} sources, and the encoder's output has {given} rows. A cache that "
            "generate() returned holds each source once, whatever the number of its beams or sequences: give an encoder's output "
            "that does so too, and targets_per_source, or repeat the keys by "
            "cache.cross_attention_cache.batch_repeat_interleave(targets_per_source)."
        )


class ReLUFormerPreTrainedModel(AttentionPreTrainedModel):
    config: ReLUFormerConfig
    auto_map = {
        "AutoConfig": "configuration_reluformer.ReLUFormerConfig",
        "AutoModel": "modeling_reluformer.ReLUFormerModel",
        "AutoModelForSeq2SeqLM": "modeling_reluformer.ReLUFormerForConditionalGeneration",
    }
    _no_split_modules = ["ReLUFormerEncoderLayer", "ReLUFormerDecoderLayer"]
    _keys_to_ignore_on_load_unexpected = [r"embed_positions\.weight"]
    _instead_of_smoothing = " and set config.label_smoothing instead"

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

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # With tie_word_embeddings=False the library ties nothing at all; here that field is about the output layer alone.
        config = self.config
        if not all_submodels and config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
            return {name: source for name, source in (self._tied_weights_keys or {}).items() if "lm_head" not in name}
        return super().get_expanded_tied_weights_keys(all_submodels)

    @classmethod
    def maybe_distribute_model(
        cls, model: "ReLUFormerPreTrainedModel", distributed_config: Any, *args: Any, **kwargs: Any
    ) -> "ReLUFormerPreTrainedModel":
        """As in Transformers.

        Raises:
            ValueError: tensor parallelism (`tp_size`) of a model that it would change.
        """
        if distributed_config is not None and distributed_config.tp_size > 1:
            require_tensor_parallel(model.config, distributed_config.tp_size)
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)


class ReLUFormerStack(EmbedsTokens, ReLUFormerPreTrainedModel):
    """What encoder and decoder share: embedding, positions and a stack of layers."""

    def __init__(self, config: ReLUFormerConfig, vocab_size: int, layers: list[nn.Module]) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = SinusoidalPositions(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        super().init_parallel_plans()
        # The plan of the configuration names modules of the whole model; this class would read it as its own.
        self._tp_plan = {}

    def _with_positions(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, segments: Tensor | None, seen: int | Tensor = 0
    ) -> Tensor:
        """What goes into the first layer, (batch, length, d_model)."""
        length = inputs_embeds.shape[1]
        most = self.config.max_position_embeddings
        if isinstance(seen, int):  # a static cache has no number that could be looked at without waiting for the device
            require_positions(seen + length, most)
        positions = token_positions(length, inputs_embeds.device, attention_mask, segments, seen)
        positions = look_up_positions(self.embed_positions, positions, most)
        return nn.functional.dropout(inputs_embeds + positions, p=self.config.dropout, training=self.training)


class ReLUFormerEncoder(ReLUFormerStack):
    _can_record_outputs = {"hidden_states": ReLUFormerEncoderLayer, "attentions": ReLUFormerAttention}

    def __init__(self, config: ReLUFormerConfig) -> None:
        layers = [ReLUFormerEncoderLayer(config, index) for index in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)

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
        ffn_norms: bool = False,
        **kwargs: Any,
    ) -> ReLUFormerEncoderOutput:
        """input_ids (batch, source) → last_hidden_state (batch, source, d_model)."""
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "")
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
        hidden_states = self._with_positions(inputs_embeds, attention_mask, segment_ids)
        hidden_states, figures, norms = run_layers(
            self.layers, hidden_states, context, ffn_row_weight=row_weight if ffn_norms else None, **kwargs
        )
        return ReLUFormerEncoderOutput(last_hidden_state=hidden_states, attention_figures=figures, ffn_norms=norms)


class ReLUFormerDecoder(ReLUFormerStack):
    _can_record_outputs = {
        "hidden_states": ReLUFormerDecoderLayer,
        "attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(ReLUFormerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        layers = [ReLUFormerDecoderLayer(config, index) for index in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size, layers)

    @checked_keywords()
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
        row_weight: Tensor | None = None,
        statistics: str = "none",
        ffn_norms: bool = False,
        **kwargs: Any,
    ) -> ReLUFormerDecoderOutput:
        """input_ids (batch, target) → last_hidden_state (batch, target, d_model). attention_mask covers cache and input.

        encoder_hidden_states: (batch / targets_per_source, source, d_model), encoder_attention_mask: (the same, source).
        """
        self._refuse_output_attentions(kwargs)
        inputs_embeds = self._embed(input_ids, inputs_embeds, "decoder_")
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        elif encoder_hidden_states is not None and isinstance(cache, Cache):
            cache = with_cross_attention_cache(cache, self.config)
        batch, length = inputs_embeds.shape[:2]
        seen = 0 if cache is None else cache.get_seq_length()
        if isinstance(seen, Tensor):
            seen = seen.clone()  # a static cache counts in place while the layers write to it
        require_whole_mask(attention_mask, batch, length, seen, "decoder_")
        figures_wanted = {"row_weight": row_weight, "statistics": statistics}
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            keys=length if cache is None else cache.get_mask_sizes(length, 0)[0],
            causal=True,
            query_offset=seen,
            query_segments=segment_ids,
            key_segments=segment_ids,
            cache=getattr(cache, "self_attention_cache", cache),
            **figures_wanted,
        )
        cross_context = None
        if encoder_hidden_states is not None:
            require_same_batch(encoder_hidden_states, inputs_embeds, targets_per_source)
            require_same_sources(cache, encoder_hidden_states)
            cross_context = attention_context(
                self.config,
                inputs_embeds.reshape(encoder_hidden_states.shape[0], -1, inputs_embeds.shape[-1]),
                encoder_attention_mask,
                keys=encoder_hidden_states.shape[1],
                query_segments=segment_ids,
                key_segments=encoder_segment_ids,
                encoder_hidden_states=encoder_hidden_states,
                **figures_wanted,
            )
        hidden_states = self._with_positions(inputs_embeds, attention_mask, segment_ids, seen)
        hidden_states, figures, norms = run_layers(
            self.layers,
            hidden_states,
            context,
            encoder_hidden_states,
            cross_context,
            ffn_row_weight=row_weight if ffn_norms else None,
            **kwargs,
            **{CACHE_NAME: cache},
        )
        return ReLUFormerDecoderOutput(
            last_hidden_state=hidden_states,
            attention_figures=figures,
            ffn_norms=norms,
            **{CACHE_NAME: cache},
        )
