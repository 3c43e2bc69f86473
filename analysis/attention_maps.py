"""Where a translation looks: cross-attention weights as a heat map over source and target tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import eager
from reluformer.analysis.colors import color_of_model
from reluformer.analysis.heat_maps import draw_heat_maps
from reluformer.configuration.errors import UserError
from reluformer.training.data.moses import MosesStep
from reluformer.training.translation import Translator


def plot_attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    path: str | Path,
    target: str | None = None,
    *,
    layer: int = -1,
    each_head: bool = False,
    num_beams: int = 5,
) -> Path:
    """Draws the cross-attention of one decoder layer: the mean over its heads, or every head in a grid.

    A row belongs to the step that predicts its target token. Weights are shown as the model computed them: those of a
    point-wise activation need not sum to one, and an exact zero is white, so that a dead row is blank.

    Args:
        model: a sequence-to-sequence model; it computes in "eager" attention here and is given back as it was.
        tokenizer: its tokenizer.
        source: one text.
        path: of the picture; its ending says which format, for example .png.
        target: a translation; default the model's own.
        layer: of the decoder, from 0, or from the last with -1.
        each_head: a grid of the heads instead of their mean.
        num_beams: width of the beam for the model's own translation.

    Returns:
        The path.

    Raises:
        UserError: an empty or too long text, or no such layer.
    """
    weights, source_tokens, target_tokens = cross_attention(
        model, tokenizer, source, target, layer=layer, num_beams=num_beams
    )
    layers = model.config.decoder_layers
    heads = weights.shape[0]
    where = f"layer {layer % layers + 1} of {layers}"
    if each_head:
        maps, titles = list(weights), [f"head {head + 1}" for head in range(heads)]
        title = f"Cross-attention, {where}, {heads} heads"
    else:
        maps, titles = [weights.mean(dim=0)], [""]
        title = f"Cross-attention, {where}, mean of {heads} heads"
    figure = draw_heat_maps(
        maps,
        titles,
        source_tokens,
        target_tokens,
        title=title,
        key_label="source tokens",
        query_label="predicted target tokens",
        color=color_of_model(model.config),
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def cross_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    layer: int = -1,
    num_beams: int = 5,
) -> tuple[Tensor, list[str], list[str]]:
    """The weights behind `plot_attention_map`, with the same arguments.

    Returns:
        Weights (heads, target tokens, source tokens), source tokens, target tokens, `</s>` included in both unless the
        model's own translation was cut.
    """
    layers = model.config.decoder_layers
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer} does not exist; the decoder has {layers} layers, 0 to {layers - 1}")
    if not source.strip():
        raise UserError("source: empty; give a text to translate")
    source_ids = _ids(tokenizer, source, "source", model.config.max_position_embeddings)
    if target is None:
        target_ids = torch.tensor([Translator(model, tokenizer, num_beams=num_beams).target_ids(source)])
    else:
        target_ids = _ids(tokenizer, target, "target", model.config.max_position_embeddings)
    start = torch.tensor([[model.config.decoder_start_token_id]])
    inputs = {"input_ids": source_ids, "decoder_input_ids": torch.cat((start, target_ids[:, :-1]), dim=1)}
    with eager(model), torch.inference_mode():
        outputs = model(**{name: ids.to(model.device) for name, ids in inputs.items()}, output_attentions=True)
    weights = outputs.cross_attentions[layer][0].float().cpu()
    return weights, _tokens(tokenizer, source_ids), _tokens(tokenizer, target_ids)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, side: str, at_most: int) -> Tensor:
    """Token ids (1, tokens) of a text, as in training."""
    moses = MosesStep.from_tokenizer(tokenizer)
    if moses is not None:
        text = moses.apply([text], side=side)[0]
    ids = (tokenizer(text) if side == "source" else tokenizer(text_target=text))["input_ids"]
    if len(ids) > at_most:
        raise UserError(f"{side}: {len(ids)} tokens, the model has {at_most} positions; give a shorter text")
    return torch.tensor([ids])


def _tokens(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> list[str]:
    return tokenizer.convert_ids_to_tokens(ids[0].tolist())
