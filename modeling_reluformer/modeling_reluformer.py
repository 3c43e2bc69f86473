"""ReLUFormer (arXiv 2302.06461): `ReLUFormerModel` and `ReLUFormerForConditionalGeneration`."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple, is_torchdynamo_compiling, logging

from .base_reluformer import checked_keywords
from .configuration_attention import CACHE_NAME
from .configuration_reluformer import ReLUFormerConfig
from .generation_reluformer import SharedSources
from .loss_reluformer import (
    IGNORED_LABEL,
    SentenceRows,
    check_labels,
    cross_entropy_sum,
    sentence_rows,
    translation_loss,
)
from .outputs_reluformer import ReLUFormerEncoderOutput, ReLUFormerModelOutput, ReLUFormerSeq2SeqLMOutput, join_figures
from .stacks_reluformer import (
    ReLUFormerDecoder,
    ReLUFormerEncoder,
    ReLUFormerPreTrainedModel,
    require_same_batch,
)
from .tokens_reluformer import require_token_ids
from .visibility_reluformer import positions_from_segments, wide
from .vocabulary_reluformer import VocabularyHead, VocabularyMixin

logger = logging.get_logger(__name__)


class ReLUFormerModel(VocabularyMixin, ReLUFormerPreTrainedModel):
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

    @checked_keywords()
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
        sentence_rows: SentenceRows | None = None,
        statistics: str = "none",
        ffn_norms: bool = False,
        **kwargs: Any,
    ) -> ReLUFormerModelOutput:
        if (segment_ids is None) != (decoder_segment_ids is None):
            raise ValueError(
                "Packed sequences need segment_ids and decoder_segment_ids, or a target would attend to every source; "
                f"only {'decoder_segment_ids' if segment_ids is None else 'segment_ids'} was given."
            )
        encoder_weight, decoder_weight = (None, None) if sentence_rows is None else sentence_rows
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                segment_ids=segment_ids,
                row_weight=encoder_weight,
                statistics=statistics,
                ffn_norms=ffn_norms,
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
            row_weight=decoder_weight,
            statistics=statistics,
            ffn_norms=ffn_norms,
            return_dict=True,
            **kwargs,
        )
        return ReLUFormerModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE_NAME: getattr(decoder_outputs, CACHE_NAME)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            attention_figures=join_figures(
                [getattr(encoder_outputs, "attention_figures", None), decoder_outputs.attention_figures]
            ),
            ffn_norms=join_figures([getattr(encoder_outputs, "ffn_norms", None), decoder_outputs.ffn_norms]),
        )


class ReLUFormerForConditionalGeneration(VocabularyMixin, SharedSources, ReLUFormerPreTrainedModel, GenerationMixin):
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

    _tp_plan = {"lm_head": "colwise_gather_output"}

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
        self.lm_head = VocabularyHead(config.d_model, config.decoder_vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.zeros_(self.final_logits_bias)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    @checked_keywords("targets_per_source")
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
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> ReLUFormerSeq2SeqLMOutput:
        """One pass over source and target; with `labels`, the loss (see `translation_loss`).

        Args:
            input_ids: (batch, source). attention_mask: (batch, source), 1 for real tokens, padding on either side.
            decoder_input_ids: (batch, target); default: the labels shifted right behind `decoder_start_token_id`, each
                packed sequence by itself.
            decoder_attention_mask: (batch, seen + target), needed only where padding stands left of the target.
            labels: (batch, target), -100 where there is no target.
            segment_ids, decoder_segment_ids: (batch, source), (batch, target): for packed sequences, the number of each
                token's sequence from 1, 0 for padding; equal numbers side by side.
            targets_per_source: keyword; how many neighbouring targets share a source, as beams do, whose keys are held once.
            num_items_in_batch: number of targets in the whole batch of which this call is a part; the loss is divided by it.
            skip_logits: compute the loss without holding the logits (see `vocabulary_loss`), which saves memory and time; it
                needs `labels`. Default: `config.skip_logits` in training with labels, else False.

        Returns:
            logits (batch, target, vocabulary), None with `skip_logits`; with `labels`, the fields of `ReLUFormerSeq2SeqLMOutput`.

        Raises:
            ValueError: skip_logits without labels; labels padded on the left without decoder_input_ids; sequences beyond
                max_position_embeddings; ids, embeddings, masks or labels of a wrong shape or dtype; an empty batch.
            IndexError: on a CPU, a token id or label outside the vocabulary. A GPU raises a device-side assertion instead.
        """
        rows = None
        if skip_logits is None:
            skip_logits = self.config.skip_logits and self.training and labels is not None
        if skip_logits and labels is None:
            raise ValueError("skip_logits=True leaves only the loss, which needs labels; none were given. Give labels.")
        if labels is not None:
            use_cache = False
            check_labels(labels, self.config.decoder_vocab_size)
            if input_ids is not None:
                require_token_ids(input_ids, "")
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, decoder_segment_ids)
            target = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
            if labels.shape != target.shape[:2]:
                raise ValueError(
                    f"labels must have the shape (batch, target) of the decoder's input, {tuple(target.shape[:2])}; "
                    f"got {tuple(labels.shape)}."
                )
            source = input_ids if inputs_embeds is None else inputs_embeds
            if source is None and encoder_outputs is None:
                raise ValueError("Give exactly one of input_ids and inputs_embeds.")
            if source is None:
                source = encoder_outputs[0]
            require_same_batch(source, labels)
            self._warn_about_missing_figures(encoder_outputs)
            dtype = wide(self.lm_head.weight.dtype)
            rows = sentence_rows(labels, attention_mask, source.shape[1], segment_ids, decoder_segment_ids, dtype)
        elif self.training and cache is None:
            self._warn_about_missing_labels()
        statistics = "none" if labels is None else self._statistics()
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
            sentence_rows=rows,
            statistics=statistics,
            ffn_norms=rows is not None and self.ffn_l1_weight > 0,
            return_dict=True,
            **kwargs,
        )
        logits, smoothing = None, self.config.label_smoothing
        if skip_logits and self._head_computes_the_loss():
            summed = self.lm_head(outputs.last_hidden_state, labels, self.final_logits_bias, smoothing)
        else:
            logits = self.lm_head(outputs.last_hidden_state)
            # in place, a step of decoding saves a pass over memory that is new; autograd and backward hooks need it apart
            add = Tensor.add if logits.requires_grad else Tensor.add_
            logits = add(logits, self.final_logits_bias.to(logits.dtype))
            summed = None if labels is None else cross_entropy_sum(logits, labels, smoothing)
        losses = {}
        if labels is not None:
            terms = self._loss_terms(outputs, statistics)
            losses = translation_loss(summed, labels, num_items_in_batch=num_items_in_batch, **terms)._asdict()
        return ReLUFormerSeq2SeqLMOutput(
            logits=None if skip_logits else logits,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            **losses,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """Labels (batch, target) shifted right behind the start token; -100 becomes the padding token.

        segment_ids: (batch, target), see `forward`: each packed sequence is shifted by itself.

        Raises:
            ValueError: labels padded on the left: the start token would stand before the padding; a packed sequence that
                begins with -100; segment ids of another shape; a configuration without a start or a padding token.
        """
        for name in ("decoder_start_token_id", "pad_token_id"):
            if getattr(self.config, name) is None:
                raise ValueError(
                    f"config.{name} is None, with which labels are shifted right: set it, or give decoder_input_ids."
                )
        if segment_ids is None:
            starts, padded = None, (labels[:, :1] == IGNORED_LABEL) & (labels != IGNORED_LABEL).any(dim=1, keepdim=True)
        else:
            if segment_ids.shape != labels.shape:
                raise ValueError(
                    f"decoder_segment_ids must have the shape of the labels, {tuple(labels.shape)}; got "
                    f"{tuple(segment_ids.shape)}."
                )
            starts = (positions_from_segments(segment_ids) == 0) & (segment_ids > 0)
            padded = starts & (labels == IGNORED_LABEL)
        # on a GPU the check would wait for all that was launched before it
        if labels.device.type == "cpu" and not is_torchdynamo_compiling() and padded.any():
            fault = (
                "Labels are padded on the left." if starts is None else "A packed sequence of labels begins with -100."
            )
            raise ValueError(
                f"{fault} Pad them on the right (tokenizer.padding_side='right'), or give decoder_input_ids and "
                "decoder_attention_mask beside them."
            )
        shifted = labels.new_empty(labels.shape)
        shifted[:, 1:] = labels[:, :-1]
        shifted[:, 0] = self.config.decoder_start_token_id
        if starts is not None:
            shifted = shifted.masked_fill(starts, self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    def _warn_about_missing_figures(self, encoder_outputs: Any) -> None:
        if encoder_outputs is None or is_torchdynamo_compiling():
            return
        if self.ffn_l1_weight > 0 and getattr(encoder_outputs, "ffn_norms", None) is None:
            logger.warning_once(
                "labels were given with encoder_outputs that hold no norms of the encoder's feed-forward networks: the L1 term "
                "of this loss is that of the decoder alone. Give input_ids instead of encoder_outputs for the whole term."
            )
        if self.config.regularization_weight == 0:
            return
        if getattr(encoder_outputs, "attention_figures", None) is None:
            logger.warning_once(
                "labels were given with encoder_outputs that hold no figures of the encoder's attention: the regulariser of "
                f"this loss (regularization_weight={self.config.regularization_weight}) is that of the decoder alone. Give "
                "input_ids instead of encoder_outputs for the whole regulariser."
            )


# `save_pretrained` writes the code beside the weights, see `AUTO_MAP`.
ReLUFormerModel.register_for_auto_class("AutoModel")
ReLUFormerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["ReLUFormerForConditionalGeneration", "ReLUFormerModel", "ReLUFormerPreTrainedModel"]
