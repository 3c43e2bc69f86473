"""Where a Vision Transformer looks: the weight that each patch gets, laid over the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize
from PIL import Image
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedModel

from reluformer.analysis.collection import eager
from reluformer.analysis.drawing import new_figure, save
from reluformer.configuration.errors import UserError


def plot_patch_map(
    model: PreTrainedModel,
    processor: BaseImageProcessor,
    image: Image.Image,
    path: str | Path,
    *,
    layer: int = -1,
) -> Path:
    """Draws a picture, and beside it the attention of every head of one layer over its patches.

    The brighter a patch, the more weight it gets: from the token of the whole where the model has one, else as the mean over
    all patches that look. Weights are shown as the model computed them: those of a point-wise activation need not sum to one,
    and a head that gives no weight at all is dark.

    Args:
        model: a `ReLUFormerForImageClassification`; it computes in "eager" attention here and is given back as it was.
        processor: its image processor.
        image: any picture.
        path: of the figure; its ending says which format, for example .png.
        layer: from 0, or from the last with -1.

    Returns:
        The path.

    Raises:
        UserError: no such layer.
    """
    maps, found = patch_attention(model, processor, image, layer=layer)
    layers, heads = model.config.num_hidden_layers, len(maps)
    height, width = processor.size["height"], processor.size["width"]
    shown = np.asarray(image.convert("RGB").resize((width, height)))
    columns = min(heads, 6) + 1
    rows = -(-heads // (columns - 1))
    figure = new_figure(2.1 * columns + 0.8, 2.3 * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    grid[0, 0].imshow(shown)
    grid[0, 0].set_title(found, fontsize=9, parse_math=False)
    scale = Normalize(0, float(maps.max()) or 1.0)
    panels = [axes for line in grid for axes in line[1:]]
    for head, (weights, axes) in enumerate(zip(maps, panels, strict=False), start=1):
        axes.imshow(shown, alpha=0.35)
        drawn = axes.imshow(
            weights.numpy(), norm=scale, cmap="viridis", alpha=0.75, extent=(-0.5, width - 0.5, height - 0.5, -0.5)
        )
        axes.set_title(f"head {head}", fontsize=9)
    figure.colorbar(drawn, ax=panels, shrink=0.8, label="weight")
    return save(figure, Path(path), f"Attention over the patches, layer {layer % layers + 1} of {layers}")


def patch_attention(
    model: PreTrainedModel, processor: BaseImageProcessor, image: Image.Image, *, layer: int = -1
) -> tuple[Tensor, str]:
    """What `plot_patch_map` draws, with the same arguments: weights (heads, rows, columns), and the class that is found."""
    config = model.config
    layers = config.num_hidden_layers
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer} does not exist; the model has {layers} layers, 0 to {layers - 1}")
    coloured = image.convert("RGB" if config.num_channels == 3 else "L")
    if config.num_channels == 1:
        coloured = np.asarray(coloured)[..., None]
    inputs = processor(images=coloured, return_tensors="pt").to(model.device)
    with eager(model), torch.inference_mode():
        outputs = model(inputs["pixel_values"], output_attentions=True)
    weights = outputs.attentions[layer][0].float().cpu()
    received = weights[:, 0, 1:] if config.pooling == "cls" else weights.mean(dim=1)
    return received.unflatten(1, config.patch_grid), config.id2label[int(outputs.logits.argmax())]
