"""The decoder-only language model: `ReLUFormerDecoderModel` and `ReLUFormerForCausalLM`."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import Cache, DynamicCache, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_decoder import ReLUFormerDecoderConfig
from .configuration_reluformer import CACHE_NAME
from .layers_reluformer import (
    AttentionPreTrainedModel,
    LayerSums,
    ReLUFormerAttention,
    ReLUFormerMLP,
    ReLUFormerPreNormLayer,
    attention_context,
    checked_keywords,
    require_labels,
    require_positions,
    run_layers,
    token_positions,
    tokens_in,
)
from .loss_reluformer import IGNORED_LABEL, LossParts, Measured, ModuleSample


@dataclass
class ReLUFormerDecoderModelOutput(LayerSums, BaseModelOutputWithPast):
    """Output of the language model without its head."""


@dataclass
class ReLUFormerCausalLMOutput(LossParts, CausalLMOutputWithPast):
    """Output of the language model with its head; for its losses see `LossParts`."""


def make_norm(config: ReLUFormerDecoderConfig) -> nn.Module:
    """A new norm over the features."""
    kind = nn.RMSNorm if config.norm_type == "rms_norm" else nn.LayerNorm
    return kind(config.hidden_size, eps=config.norm_eps)


def make_layer(config: ReLUFormerDecoderConfig, layer_idx: int) -> ReLUFormerPreNormLayer:
    """A new layer; with `normalization="none"` it has no norms."""
    attention = ReLUFormerAttention(
        config,
        config.num_attention_heads,
        layer_idx,
        is_causal=True,
        query_key_bias=config.query_key_bias,
        value_bias=config.value_bias,
        output_bias=config.output_bias,
        key_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
    mlp = ReLUFormerMLP(config, layer_idx, config.ffn_type, config.ffn_bias, config.activation_dropout)
    for name, projection in (*attention.named_children(), *mlp.named_children()):
        projection.writes_to_residual = name in ("out_proj", "fc2", "down_proj")
    norm = partial(make_norm, config) if config.normalization == "pre" else nn.Identity
    return ReLUFormerPreNormLayer(attention, mlp, norm, config.dropout)


class ReLUFormerDecoderPreTrainedModel(AttentionPreTrainedModel):
    config: ReLUFormerDecoderConfig
    auto_map = {
        "AutoConfig": "configuration_decoder.ReLUFormerDecoderConfig",
        "AutoModel": "modeling_decoder.ReLUFormerDecoderModel",
        "AutoModelForCausalLM": "modeling_decoder.ReLUFormerForCausalLM",
    }
    _no_split_modules = ["ReLUFormerPreNormLayer"]
    _skip_keys_device_placement = [CACHE_NAME]
    _can_record_outputs = {"hidden_states": ReLUFormerPreNormLayer, "attentions": ReLUFormerAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # On the projection itself: a module of ours without parameters of its own, as the layer, never comes by here.
        if getattr(module, "writes_to_residual", False) and self.config.scale_residual_init:
            std = self.config.init_std / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, mean=0.0, std=std)


class ReLUFormerDecoderModel(ReLUFormerDecoderPreTrainedModel):
    """The decoder-only language model without a head. Arguments as in `ReLUFormerForCausalLM.forward`."""

    def __init__(self, config: ReLUFormerDecoderConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = self.rotary_emb = None
        if config.position_embedding == "rotary":
            self.rotary_emb = LlamaRotaryEmbedding(config)
        else:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(make_layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = make_norm(config) if config.final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @checked_keywords
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        measured: Measured | None = None,
        **kwargs: Any,
    ) -> ReLUFormerDecoderModelOutput:
        """input_ids (batch, length) → last_hidden_state (batch, length, hidden_size). attention_mask covers cache and
        input."""
        self._refuse_output_attentions(kwargs)
        if self.training and measured is None and cache is None:
            self._warn_about_missing_labels()  # here: TRL's SFTTrainer calls this model alone
        inputs_embeds = self._embed(input_ids, inputs_embeds, "")
        if segment_ids is None:
            # before a cache is made here: the default of use_cache must not change what is seen
            segment_ids = packed_segments(position_ids, attention_mask, cache)
        if segment_ids is not None and len(segment_ids) == 1:  # of positions that all rows share
            segment_ids = segment_ids.expand(len(inputs_embeds), -1)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        length, seen = inputs_embeds.shape[1], tokens_in(cache)
        if position_ids is None:
            if self.embed_positions is not None and isinstance(seen, int):
                require_positions(seen + length, self.config.max_position_embeddings)
            position_ids = token_positions(length, inputs_embeds.device, attention_mask, segment_ids, seen)
        rotation = None
        if self.rotary_emb is not None:
            rotation = tuple(part.unsqueeze(1) for part in self.rotary_emb(inputs_embeds, position_ids=position_ids))
        context = attention_context(
            self.config,
            inputs_embeds,
            attention_mask,
            cache=cache,
            causal=True,
            query_offset=seen,
            segments=(segment_ids, segment_ids),
            measured=measured,
            rotation=rotation,
        )
        if self.embed_positions is not None:
            inputs_embeds = inputs_embeds + self._look_up_positions(position_ids)
        hidden_states = nn.functional.dropout(inputs_embeds, p=self.config.embedding_dropout, training=self.training)
        cached = {CACHE_NAME: cache}
        layers = islice(self.layers, self.config.num_hidden_layers)  # fewer in `generate` with assistant_early_exit
        hidden_states, sums, norms = run_layers(layers, hidden_states, context, **kwargs, **cached)
        return ReLUFormerDecoderModelOutput(
            last_hidden_state=self.norm(hidden_states), attention_sums=sums, ffn_norms=norms, **cached
        )

    def _look_up_positions(self, position_ids: Tensor) -> Tensor:
        try:
            return self.embed_positions(position_ids)
        except IndexError as error:  # of a CPU; generate() gives positions of its own, of which some may be too high
            lowest, highest = map(int, position_ids.aminmax())
            most = self.config.max_position_embeddings
            raise IndexError(
                f"position_ids are from {lowest} to {highest}; max_position_embeddings={most} has 0 to {most - 1}: "
                "shorten the sequence or max_new_tokens, or take a model with more positions."
            ) from error


def packed_segments(position_ids: Tensor | None, attention_mask: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Segments of sequences that are packed by the convention of Transformers: positions that start anew, no mask, no
    cache.

    position_ids: (batch or 1, length) → numbers from 1 of the same shape; None where nothing is packed.
    """
    if position_ids is None or attention_mask is not None or cache is not None:
        return None
    first = torch.ones_like(position_ids[:, :1])
    segments = torch.cat([first, (position_ids.diff(dim=1) != 1).to(first.dtype)], dim=1).cumsum(1)
    return None if not is_compiling() and bool((segments[:, -1] == 1).all()) else segments


def next_token_labels(labels: Tensor, segment_ids: Tensor | None = None) -> Tensor:
    """Labels as the Trainer gives them, one for each input token → the label that each position predicts, both (batch,
    length).

    The last position predicts nothing, nor does the last of a packed sequence. segment_ids: (batch, length), 0 for
    padding.
    """
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
    if segment_ids is None:
        return shifted
    following = nn.functional.pad(segment_ids[:, 1:], (0, 1), value=0)
    return torch.where((following == segment_ids) & (segment_ids > 0), shifted, IGNORED_LABEL)


class ReLUFormerForCausalLM(ReLUFormerDecoderPreTrainedModel, GenerationMixin):
    """The decoder-only language model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: ReLUFormerDecoderConfig) -> None:
        super().__init__(config)
        self.model = ReLUFormerDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @partial(checked_keywords, more=["shift_labels"])
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        module_sample: ModuleSample | None = None,
        **kwargs: Any,
    ) -> ReLUFormerCausalLMOutput:
        """One pass over tokens; with `labels`, the loss of each next token, plus the regulariser where it is on.

        Args:
            input_ids: (batch, length), or inputs_embeds: (batch, length, hidden_size).
            attention_mask: (batch, seen + length), 1 for real tokens, padding on either side; `seen` tokens are in the
                cache.
            position_ids: (batch or 1, length). Default: counted from 0 over the real tokens of each row, so that
                padding on the left shifts nothing, and anew in each packed sequence. Given without mask and cache,
                positions that start anew mark packed sequences, as in Transformers.
            labels: (batch, length), the input ids, -100 where a token is no target; they are shifted here, as in
                Transformers.
            segment_ids: (batch, length): for packed sequences, the number of each token's sequence from 1, 0 for
                padding; equal numbers side by side. No label of a first token is a target: under a Trainer, set it to
                -100, or it counts in num_items_in_batch. A cache that such a call fills says nothing of them: tokens
                that follow would see them all.
            logits_to_keep: how many of the last positions get logits, or which; 0: all.
            num_items_in_batch, skip_logits, module_sample: as in `ReLUFormerForConditionalGeneration.forward`.
            kwargs: among others `shift_labels`, (batch, length), in place of `labels`: the label that each position
                predicts, as it is. The Trainer gives it where a sequence is divided among processes.

        Returns:
            logits (batch, length, vocabulary), None with `skip_logits`; with `labels`, the fields of
            `ReLUFormerCausalLMOutput`.

        Raises:
            ValueError: skip_logits without labels; labels with logits_to_keep; sequences beyond
                max_position_embeddings; ids, embeddings, masks or labels of a wrong shape or dtype.
            IndexError: on a CPU, a token id or label outside the vocabulary. A GPU raises a device-side assertion
                instead.
        """
        # not named above: the Trainer waits for every argument with "label" in it
        shift_labels, measured = kwargs.pop("shift_labels", None), None
        if labels is not None or shift_labels is not None:
            use_cache = False if self.training else use_cache
            for given in (labels, shift_labels):
                if given is not None:
                    require_labels(given, inputs_embeds if input_ids is None else input_ids)
            if segment_ids is None:
                segment_ids = packed_segments(position_ids, attention_mask, cache)
            labels = next_token_labels(labels, segment_ids) if shift_labels is None else shift_labels
            # each row that predicts a label counts as that one label
            measured = self._measured(
                (labels != IGNORED_LABEL).to(self._wide_dtype()), self._chosen_modules(module_sample)
            )
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            segment_ids=segment_ids,
            measured=measured,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        outputs.last_hidden_state = outputs.last_hidden_state[:, kept]
        logits, losses = self._logits_and_losses(outputs, labels, skip_logits, num_items_in_batch)
        return ReLUFormerCausalLMOutput(
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **losses,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
        )


ReLUFormerDecoderModel.register_for_auto_class("AutoModel")
ReLUFormerForCausalLM.register_for_auto_class("AutoModelForCausalLM")
