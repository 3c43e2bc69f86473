"""The Vision Transformer with ReLU attention (arXiv 2309.08586): `ReLUFormerVisionModel`,
`ReLUFormerForImageClassification`."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_reluformer import wide
from .configuration_vision import ReLUFormerVisionConfig, pair
from .layers_reluformer import (
    AttentionPreTrainedModel,
    LayerSums,
    ReLUFormerAttention,
    ReLUFormerMLP,
    ReLUFormerPreNormLayer,
    attention_context,
    checked_keywords,
    run_layers,
)
from .loss_reluformer import IGNORED_LABEL, LossParts, Measured, ModuleSample


@dataclass
class ReLUFormerVisionOutput(LayerSums, BaseModelOutputWithPooling):
    """Output of the Vision Transformer without its classifier."""


@dataclass
class ReLUFormerImageClassifierOutput(LossParts, ImageClassifierOutput):
    """Output of the classifier; for its losses see `LossParts`."""


class ReLUFormerVisionEmbeddings(nn.Module):
    """What goes into the first layer: the class token, where the model has one, then the patches, with learned
    positions."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__()
        self.image_size = pair(config.image_size)
        self.grid = config.patch_grid
        patch_size = pair(config.patch_size)
        self.patch_embeddings = nn.Conv2d(config.num_channels, config.hidden_size, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        tokens = math.prod(self.grid) + (config.pooling == "cls")
        self.position_embeddings = nn.Parameter(torch.zeros(1, tokens, config.hidden_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """(batch, channels, height, width) → (batch, tokens, hidden_size)."""
        shape = (self.patch_embeddings.in_channels, *self.image_size)
        fits = pixel_values.is_floating_point() and pixel_values.ndim == 4 and pixel_values.shape[1] == shape[0]
        if not fits or (pixel_values.shape[1:] != shape and not interpolate_pos_encoding):
            raise ValueError(
                f"pixel_values must be floats of the shape (batch, num_channels, height, width) = {('batch', *shape)}; "
                f"got {pixel_values.dtype} {tuple(pixel_values.shape)}. AutoImageProcessor makes such pictures; for "
                "another size give interpolate_pos_encoding=True."
            )
        embeddings = self.patch_embeddings(pixel_values.to(self.position_embeddings.dtype)).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            embeddings = torch.cat([self.cls_token.expand(embeddings.shape[0], -1, -1), embeddings], dim=1)
        positions = self.position_embeddings
        if pixel_values.shape[2:] != self.image_size:
            positions = self._interpolated(pixel_values.shape[2], pixel_values.shape[3])
        return self.dropout(embeddings + positions)

    def _interpolated(self, height: int, width: int) -> Tensor:
        """The positions of a larger or smaller grid, as ViT makes them: bicubic, that of the class token unchanged."""
        patch_size = self.patch_embeddings.stride
        size = height // patch_size[0], width // patch_size[1]
        first = self.position_embeddings[:, : self.cls_token is not None]
        grid = self.position_embeddings[:, first.shape[1] :].unflatten(1, self.grid).permute(0, 3, 1, 2)
        grid = nn.functional.interpolate(grid, size=size, mode="bicubic", align_corners=False)
        return torch.cat([first, grid.flatten(2).transpose(1, 2)], dim=1)


def make_layer(config: ReLUFormerVisionConfig, layer_idx: int) -> ReLUFormerPreNormLayer:
    """A new layer."""
    attention = ReLUFormerAttention(config, config.num_attention_heads, layer_idx, query_key_bias=config.qkv_bias)
    norm = partial(nn.LayerNorm, config.hidden_size, eps=config.layer_norm_eps)
    return ReLUFormerPreNormLayer(attention, ReLUFormerMLP(config, layer_idx), norm, config.hidden_dropout_prob)


class ReLUFormerVisionPreTrainedModel(AttentionPreTrainedModel):
    config: ReLUFormerVisionConfig
    auto_map = {
        "AutoConfig": "configuration_vision.ReLUFormerVisionConfig",
        "AutoModel": "modeling_vision.ReLUFormerVisionModel",
        "AutoModelForImageClassification": "modeling_vision.ReLUFormerForImageClassification",
    }
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["ReLUFormerVisionEmbeddings", "ReLUFormerPreNormLayer"]
    _can_record_outputs = {"hidden_states": ReLUFormerPreNormLayer, "attentions": ReLUFormerAttention}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        xavier, features = self.config.initialization == "xavier", self.config.hidden_size
        if isinstance(module, ReLUFormerVisionEmbeddings):
            std = features**-0.5 if xavier else self.config.initializer_range
            init.trunc_normal_(module.position_embeddings, mean=0.0, std=std)
            if module.cls_token is not None:
                init.trunc_normal_(module.cls_token, mean=0.0, std=self.config.initializer_range)
        elif isinstance(module, nn.Linear) and xavier:
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Conv2d) and xavier:  # LeCun's
            init.trunc_normal_(module.weight, mean=0.0, std=module.weight[0].numel() ** -0.5)


class ReLUFormerVisionModel(ReLUFormerVisionPreTrainedModel):
    """The Vision Transformer without a classifier. Arguments as in `ReLUFormerForImageClassification.forward`."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__(config)
        self.embeddings = ReLUFormerVisionEmbeddings(config)
        self.layers = nn.ModuleList(make_layer(config, index) for index in range(config.num_hidden_layers))
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = nn.Identity()
        if config.pooler_act is not None:
            layer = nn.Linear(config.hidden_size, config.hidden_size)
            self.pooler = nn.Sequential(layer, ACT2FN[config.pooler_act])
        self.gradient_checkpointing = False
        self.post_init()

    @checked_keywords
    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor,
        interpolate_pos_encoding: bool = False,
        measured: Measured | None = None,
        **kwargs: Any,
    ) -> ReLUFormerVisionOutput:
        """pixel_values (batch, channels, height, width) → last_hidden_state (batch, tokens, hidden_size),
        pooler_output."""
        self._refuse_output_attentions(kwargs)
        hidden_states = self.embeddings(pixel_values, interpolate_pos_encoding)
        if measured is not None:
            batch, tokens = hidden_states.shape[:2]
            measured = replace(measured, row_weight=measured.row_weight.unsqueeze(1).expand(batch, tokens) / tokens)
        context = attention_context(self.config, hidden_states, None, measured=measured)
        hidden_states, sums, norms = run_layers(self.layers, hidden_states, context, **kwargs)
        hidden_states = self.layernorm(hidden_states)
        pooled = hidden_states[:, 0] if self.config.pooling == "cls" else hidden_states.mean(dim=1)
        return ReLUFormerVisionOutput(
            last_hidden_state=hidden_states,
            pooler_output=self.pooler(pooled),
            attention_sums=sums,
            ffn_norms=norms,
        )


class ReLUFormerForImageClassification(ReLUFormerVisionPreTrainedModel):
    """The Vision Transformer with a classifier on its pooled output."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = ReLUFormerVisionModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        config = self.config
        if module is self.classifier and isinstance(module, nn.Linear) and config.initialization == "xavier":
            init.zeros_(module.weight)
            if config.problem_type == "multi_label_classification":  # one class of all is true at the start
                init.constant_(module.bias, -math.log(config.num_labels))

    @checked_keywords
    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        module_sample: ModuleSample | None = None,
        **kwargs: Any,
    ) -> ReLUFormerImageClassifierOutput:
        """One pass over pictures; with `labels`, the loss: that of the kind of problem, plus the regulariser where it
        is on.

        Args:
            pixel_values: (batch, num_channels, height, width), as AutoImageProcessor makes them.
            labels: as in Transformers: (batch,), the numbers of the classes, -100 for a picture that does not count; or
                floats, (batch, num_labels), the truth of each class or the values of a regression, by
                `config.problem_type`.
            interpolate_pos_encoding: take pictures of another size, with positions interpolated to their patches.
            num_items_in_batch: entries of `labels` in the whole batch of which this call is a part; the loss is divided
                by its pictures.
            module_sample: as in `ReLUFormerForConditionalGeneration.forward`.

        Returns:
            logits (batch, num_labels); with `labels`, the fields of `ReLUFormerImageClassifierOutput`.

        Raises:
            ValueError: pictures that are no floats, or of another size or number of channels; labels of another shape.
            IndexError: on a CPU, a label that is no class. A GPU raises a device-side assertion instead.
        """
        measured = None
        if labels is not None:
            counted = torch.ones_like(labels) if labels.is_floating_point() else labels != IGNORED_LABEL
            row_weight = counted.view(len(labels), -1)[:, 0].to(wide(pixel_values.dtype))
            measured = self._measured(row_weight, self._chosen_modules(module_sample))
        elif self.training:
            self._warn_about_missing_labels()
        outputs = self.model(
            pixel_values,
            interpolate_pos_encoding=interpolate_pos_encoding,
            measured=measured,
            return_dict=True,
            **kwargs,
        )
        logits = self.classifier(outputs.pooler_output)
        losses = {}
        if measured is not None:
            items = pictures = measured.row_weight.sum().to(logits.device)
            if num_items_in_batch is not None:  # the Trainer counts the entries of `labels`: one a picture, or several
                items = num_items_in_batch / labels[0].numel()
            # With num_items_in_batch=1 the loss of one class for each picture is a sum, so that a batch without labels
            # gives 0 and not 0/0; the other kinds ignore the number and return a mean.
            loss = self.loss_function(labels, logits.to(wide(logits.dtype)), self.config, num_items_in_batch=1)
            loss_sum = loss if self.config.problem_type == "single_label_classification" else loss * pictures
            losses = self._losses(loss_sum, items, outputs)
        return ReLUFormerImageClassifierOutput(
            logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions, **losses
        )


ReLUFormerVisionModel.register_for_auto_class("AutoModel")
ReLUFormerForImageClassification.register_for_auto_class("AutoModelForImageClassification")
