"""The text of an analysis of a decoder-only model: one stream of tokens, in contexts of one length."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import TextBatch
from reluformer.configuration.errors import UserError
from reluformer.training.data.readers import is_unicode, text_lines

# Where neither the user nor the model says less: the weights of a context of 4,096 tokens are 64 MB for each head and layer.
MOST_TOKENS = 1_024


@dataclass(frozen=True)
class CausalText:
    """The contexts of a text, and what a result says about them."""

    contexts: list[list[int]]
    facts: dict[str, Any] = field(default_factory=dict)


def read_causal_text(
    path: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, context: int | None = None
) -> CausalText:
    """The tokens of a file as one stream behind the end token, if there is one, cut into contexts.

    A context begins with the last token of the one before it, so that each token but the first is predicted once.

    Args:
        path: of a text, plain, .gz or .zst, in UTF-8.
        model: its positions are the longest context.
        tokenizer: the model's.
        context: tokens of a context; None: the model's positions, at most `MOST_TOKENS`.

    Raises:
        UserError: a missing, empty or damaged file, or one that is not UTF-8; more tokens than positions.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or MOST_TOKENS
    length = min(positions, MOST_TOKENS) if context is None else context
    if length > positions or length < 2:
        raise UserError(f"--context: {length} tokens; give 2 to {positions}, the positions of the model")
    text = "".join(text_lines(Path(path).expanduser()))
    if not is_unicode(text):
        raise UserError(f"--text: {str(path)!r} is not UTF-8; give a text")
    if not text:
        raise UserError(f"--text: {str(path)!r} is empty; give a text")
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    if not ids:
        raise UserError(
            f"--text: the tokenizer of the model makes no tokens of {str(path)!r}; is there a tokenizer in the model's folder?"
        )
    stream = [*([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]), *ids]
    contexts = [stream[start : start + length] for start in range(0, max(len(stream) - 1, 1), length - 1)]
    return CausalText(contexts, {"tokens": len(ids), "context": length, "contexts": len(contexts)})


def causal_batches(text: CausalText, device: torch.device, *, batch_tokens: int) -> Generator[TextBatch]:
    """All contexts in order, the last one, which may be shorter, by itself.

    Args:
        text: of `read_causal_text`.
        device: where the tensors go.
        batch_tokens: tokens of a batch; a longer context is a batch of its own.
    """
    whole, size = text.contexts[:-1], max(1, batch_tokens // len(text.contexts[0]))
    groups = [whole[start : start + size] for start in range(0, len(whole), size)]
    for group in tqdm([*groups, text.contexts[-1:]], desc="analysing", unit="batch", disable=None):
        yield TextBatch(torch.tensor(group, device=device))
