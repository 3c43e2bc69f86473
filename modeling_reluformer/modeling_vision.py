"""The Vision Transformer with ReLU attention (arXiv 2309.08586): `ReLUFormerVisionModel`, `ReLUFormerForImageClassification`."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_reluformer import wide
from .configuration_vision import ReLUFormerVisionConfig, pair
from .layers_reluformer import (
    AttentionContext,
    AttentionPreTrainedModel,
    LayerOutput,
    LayerSums,
    ReLUFormerAttention,
    attention_context,
    checked_keywords,
    feed_forward_activation,
    run_layers,
)
from .loss_reluformer import IGNORED_LABEL, LossParts, activation_norms, regularized_loss


@dataclass
class ReLUFormerVisionOutput(LayerSums, BaseModelOutputWithPooling):
    """Of the Vision Transformer without its classifier."""


@dataclass
class ReLUFormerImageClassifierOutput(LossParts, ImageClassifierOutput):
    """Of the classifier: its loss, see `LossParts`."""


class ReLUFormerPatchEmbeddings(nn.Module):
    """Patches of a picture, each projected to `hidden_size` features."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__()
        self.num_channels = config.num_channels
        self.patch_size = pair(config.patch_size)
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, self.patch_size, stride=self.patch_size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, patches, hidden_size), row by row."""
        return self.projection(pixel_values).flatten(2).transpose(1, 2)


class ReLUFormerVisionEmbeddings(nn.Module):
    """What goes into the first layer: patches with learned positions, behind a token of the whole where the model has one."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__()
        self.image_size = pair(config.image_size)
        self.grid = config.patch_grid
        self.patch_embeddings = ReLUFormerPatchEmbeddings(config)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size)) if config.pooling == "cls" else None
        tokens = math.prod(self.grid) + (config.pooling == "cls")
        self.position_embeddings = nn.Parameter(torch.zeros(1, tokens, config.hidden_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """(batch, channels, height, width) → (batch, tokens, hidden_size).

        Raises:
            ValueError: no pictures, or of another dtype, number of channels or size.
        """
        self._check(pixel_values, interpolate_pos_encoding)
        embeddings = self.patch_embeddings(pixel_values.to(self.position_embeddings.dtype))
        if self.cls_token is not None:
            embeddings = torch.cat([self.cls_token.expand(embeddings.shape[0], -1, -1), embeddings], dim=1)
        positions = self.position_embeddings
        if interpolate_pos_encoding and pixel_values.shape[2:] != self.image_size:
            positions = self._interpolated(pixel_values.shape[2], pixel_values.shape[3])
        return self.dropout(embeddings + positions)

    def _check(self, pixel_values: Tensor, interpolated: bool) -> None:
        shape = (self.patch_embeddings.num_channels, *self.image_size)
        fits = pixel_values.is_floating_point() and pixel_values.ndim == 4 and pixel_values.shape[1] == shape[0]
        if not fits or (pixel_values.shape[1:] != shape and not interpolated):
            raise ValueError(
                f"pixel_values must be floats of the shape (batch, num_channels, height, width) = {('batch', *shape)}; got "
                f"{pixel_values.dtype} {tuple(pixel_values.shape)}. AutoImageProcessor makes such pictures; for another size "
                "give interpolate_pos_encoding=True."
            )

    def _interpolated(self, height: int, width: int) -> Tensor:
        """The positions of a larger or smaller grid, as ViT makes them: bicubic, the token of the whole unchanged."""
        patch = self.patch_embeddings.patch_size
        first = self.position_embeddings[:, : self.cls_token is not None]
        grid = self.position_embeddings[:, first.shape[1] :].unflatten(1, self.grid).permute(0, 3, 1, 2)
        grid = nn.functional.interpolate(
            grid, size=(height // patch[0], width // patch[1]), mode="bicubic", align_corners=False
        )
        return torch.cat([first, grid.flatten(2).transpose(1, 2)], dim=1)


class ReLUFormerVisionLayer(GradientCheckpointingLayer):
    """Attention and feed-forward network, each behind a norm (pre-LN, as in ViT)."""

    def __init__(self, config: ReLUFormerVisionConfig, layer_idx: int) -> None:
        super().__init__()
        heads, features = config.num_attention_heads, config.hidden_size
        self.self_attn = ReLUFormerAttention(config, heads, layer_idx, qkv_bias=config.qkv_bias)
        self.layernorm_before = nn.LayerNorm(features, eps=config.layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(features, eps=config.layer_norm_eps)
        self.activation_fn = feed_forward_activation(config, config.hidden_act, layer_idx)
        self.fc1 = nn.Linear(features, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, features)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: Tensor, context: AttentionContext, ffn_row_weight: Tensor | None = None, **kwargs: Any
    ) -> LayerOutput:
        """(batch, tokens, hidden_size) → the same, and if wanted the norms (1,) of its FFN, and S and T of its attention."""
        attended, _, rows = self.self_attn(self.layernorm_before(hidden_states), context, **kwargs)
        hidden_states = hidden_states + self.dropout(attended)
        activated = self.activation_fn(self.fc1(self.layernorm_after(hidden_states)))
        hidden_states = hidden_states + self.dropout(self.fc2(activated))
        norms = None if ffn_row_weight is None else activation_norms(activated, ffn_row_weight)
        return hidden_states, norms, *rows


class ReLUFormerVisionPooler(nn.Module):
    """The layer between pooling and classifier."""

    def __init__(self, config: ReLUFormerVisionConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.pooler_act]

    def forward(self, pooled: Tensor) -> Tensor:
        """(batch, hidden_size) → the same."""
        return self.activation(self.dense(pooled))


class ReLUFormerVisionPreTrainedModel(AttentionPreTrainedModel):
    config: ReLUFormerVisionConfig
    auto_map = {
        "AutoConfig": "configuration_vision.ReLUFormerVisionConfig",
        "AutoModel": "modeling_vision.ReLUFormerVisionModel",
        "AutoModelForImageClassification": "modeling_vision.ReLUFormerForImageClassification",
    }
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["ReLUFormerVisionEmbeddings", "ReLUFormerVisionLayer"]
    _can_record_outputs = {"hidden_states": ReLUFormerVisionLayer, "attentions": ReLUFormerAttention}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        xavier, features = self.config.initialization == "xavier", self.config.hidden_size
        if isinstance(module, ReLUFormerVisionEmbeddings):
            self.config.warn_of_small_start()  # here, since every new model comes by, and none whose weights are loaded
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
        self.layers = nn.ModuleList(ReLUFormerVisionLayer(config, index) for index in range(config.num_hidden_layers))
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = None if config.pooler_act is None else ReLUFormerVisionPooler(config)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.patch_embeddings

    @checked_keywords()
    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        row_weight: Tensor | None = None,
        statistics: str = "none",
        ffn_norms: bool = False,
        **kwargs: Any,
    ) -> ReLUFormerVisionOutput:
        """pixel_values (batch, channels, height, width) → last_hidden_state (batch, tokens, hidden_size), pooler_output."""
        if pixel_values is None:
            raise ValueError("Give pixel_values: pictures of the shape (batch, num_channels, height, width).")
        self._refuse_output_attentions(kwargs)
        hidden_states = self.embeddings(pixel_values, interpolate_pos_encoding)
        batch, tokens = hidden_states.shape[:2]
        if row_weight is not None:
            row_weight = row_weight.unsqueeze(1).expand(batch, tokens) / tokens
        context = attention_context(
            self.config, hidden_states, None, keys=tokens, row_weight=row_weight, statistics=statistics
        )
        hidden_states, sums, norms = run_layers(
            self.layers, hidden_states, context, ffn_row_weight=row_weight if ffn_norms else None, **kwargs
        )
        hidden_states = self.layernorm(hidden_states)
        pooled = hidden_states[:, 0] if self.config.pooling == "cls" else hidden_states.mean(dim=1)
        return ReLUFormerVisionOutput(
            last_hidden_state=hidden_states,
            pooler_output=pooled if self.pooler is None else self.pooler(pooled),
            attention_sums=sums,
            ffn_norms=norms,
        )


def counted_images(labels: Tensor) -> Tensor:
    """Which pictures count, (batch,) of bool: not those whose label, or the label of each class, is -100."""
    counted = labels != IGNORED_LABEL
    return counted if labels.ndim == 1 else counted.any(-1)


def classification_loss_sum(logits: Tensor, labels: Tensor, problem_type: str) -> Tensor:
    """The loss of all pictures that count, summed; a scalar. Its means are those of Transformers' `ForImageClassification`.

    Args:
        logits: (batch, num_labels).
        labels: (batch,) classes or (batch, num_labels) shares; -100 where a picture does not count.
        problem_type: `single_label_classification`, cross-entropy; `multi_label_classification`, the binary cross-entropy of the
            sigmoids, a mean over the classes; `regression`, the squared error, a mean over the outputs.
    """
    logits = logits.to(wide(logits.dtype))
    if problem_type == "single_label_classification" and not labels.is_floating_point():
        return nn.functional.cross_entropy(logits, labels.long(), ignore_index=IGNORED_LABEL, reduction="sum")
    labels = labels.to(logits.dtype).view_as(logits)
    if problem_type == "regression":
        return nn.functional.mse_loss(logits, labels, reduction="sum") / logits.shape[1]
    counted = counted_images(labels).unsqueeze(1)
    if problem_type == "single_label_classification":  # a picture of no share adds nothing
        return nn.functional.cross_entropy(logits, labels * counted, reduction="sum")
    weight = counted.to(logits.dtype)
    loss_sum = nn.functional.binary_cross_entropy_with_logits(logits, labels, weight, reduction="sum")
    return loss_sum / logits.shape[1]


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

    @checked_keywords()
    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> ReLUFormerImageClassifierOutput:
        """One pass over pictures; with `labels`, the loss: that of the kind of problem, plus the regulariser where it is on.

        Args:
            pixel_values: (batch, num_channels, height, width), as AutoImageProcessor makes them.
            labels: (batch,), the numbers of the classes; or (batch, num_labels), floats: with
                `problem_type="single_label_classification"` the share of each class (MixUp), else, as in Transformers, its
                truth (`multi_label_classification`). A picture does not count whose label, or that of each class, is -100.
            interpolate_pos_encoding: take pictures of another size, with positions interpolated to their patches.
            num_items_in_batch: entries of `labels` in the whole batch of which this call is a part; the loss is divided by its
                pictures.

        Returns:
            logits (batch, num_labels); with `labels`, the fields of `ReLUFormerImageClassifierOutput`.

        Raises:
            ValueError: pictures that are no floats, or of another size or number of channels; labels of another shape.
            IndexError: on a CPU, a label that is no class. A GPU raises a device-side assertion instead.
            TypeError: an argument that the model would ignore or that is near one of these.
        """
        row_weight, statistics, kind = None, "none", None
        if labels is not None:
            kind, statistics = self._problem_type(labels), self._statistics()
            row_weight = torch.ones(labels.shape[0], device=labels.device)
            if kind != "regression":  # of which -100 is a value like any other
                row_weight = counted_images(labels).float()
        elif self.training:
            self._warn_about_missing_labels()
        outputs = self.model(
            pixel_values,
            interpolate_pos_encoding=interpolate_pos_encoding,
            row_weight=row_weight,
            statistics=statistics,
            ffn_norms=kind is not None and self.ffn_l1_weight > 0,
            return_dict=True,
            **kwargs,
        )
        logits = self.classifier(outputs.pooler_output)
        losses = {}
        if kind is not None:
            items = row_weight.sum()
            if num_items_in_batch is not None:  # the Trainer counts the entries of `labels`: one a picture, or several
                items = num_items_in_batch / labels[0].numel()
            loss_sum = classification_loss_sum(logits, labels, kind)
            losses = regularized_loss(loss_sum, items, **self._loss_terms(outputs, statistics))
        return ReLUFormerImageClassifierOutput(
            logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions, **losses
        )

    def _problem_type(self, labels: Tensor) -> str:
        """Of the configuration, or by the rule of Transformers what the labels ask for."""
        if self.config.problem_type is not None:
            return self.config.problem_type
        if self.num_labels == 1:
            return "regression"
        return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


ReLUFormerVisionModel.register_for_auto_class("AutoModel")
ReLUFormerForImageClassification.register_for_auto_class("AutoModelForImageClassification")

__all__ = ["ReLUFormerForImageClassification", "ReLUFormerVisionModel", "ReLUFormerVisionPreTrainedModel"]
