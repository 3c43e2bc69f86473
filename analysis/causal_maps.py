"""Where a language model looks: the self-attention of one layer as heat maps over the beginning of a text."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import eager
from reluformer.analysis.colors import color_of_model
from reluformer.analysis.heat_maps import draw_heat_maps
from reluformer.configuration.errors import UserError


def plot_causal_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    path: str | Path,
    *,
    layer: int = -1,
    tokens: int = 24,
) -> Path:
    """Draws the self-attention of every head of one layer.

    A row belongs to the token that looks. Weights are shown as the model computed them: those of a point-wise activation need
    not sum to one, and an exact zero is white; later tokens, which it does not see, are hatched.

    Args:
        model: a decoder-only model; it computes in "eager" attention here and is given back as it was.
        tokenizer: its tokenizer.
        text: whose first `tokens` are shown.
        path: of the picture; its ending says which format, for example .png.
        layer: from 0, or from the last with -1.
        tokens: of the text, at most as many as the model has positions.

    Returns:
        The path.

    Raises:
        UserError: an empty text, or no such layer.
    """
    weights, shown = causal_attention(model, tokenizer, text, layer=layer, tokens=tokens)
    layers, (heads, length, _) = model.config.num_hidden_layers, weights.shape
    figure = draw_heat_maps(
        list(weights),
        [f"head {head + 1}" for head in range(heads)],
        shown,
        shown,
        title=f"Self-attention, layer {layer % layers + 1} of {layers}, {heads} heads",
        key_label="token that is looked at",
        query_label="token that looks",
        hidden=torch.ones(length, length, dtype=torch.bool).triu(1),
        color=color_of_model(model.config),
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def causal_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, *, layer: int = -1, tokens: int = 24
) -> tuple[Tensor, list[str]]:
    """What `plot_causal_map` draws, with the same arguments: weights (heads, queries, keys), and the tokens as text."""
    layers = model.config.num_hidden_layers
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer} does not exist; the model has {layers} layers, 0 to {layers - 1}")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ids = ids[: min(tokens, getattr(model.config, "max_position_embeddings", tokens))]
    if not ids:
        raise UserError("text: empty; give one of at least one token")
    with eager(model), torch.inference_mode():
        outputs = model(torch.tensor([ids], device=model.device), use_cache=False, output_attentions=True)
    return outputs.attentions[layer][0].float().cpu(), [shown_token(tokenizer.decode([each])) for each in ids]


def shown_token(token: str) -> str:
    """Spaces and line ends as marks that are seen."""
    return token.replace(" ", "·").replace("\n", "\\n").replace("\t", "\\t")
