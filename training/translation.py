"""Translating plain text with a trained model: batches by length, beam search, the order of the input restored."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from reluformer.training.errors import UserError
from reluformer.training.loading import device_of, load_model_and_tokenizer

logger = logging.getLogger(__name__)

DEFAULT_BATCH_TOKENS = 4_096
# Limits of the decoding length are stepwise in the source length, and a batch never crosses a step.
_LIMIT_STEP = 16
_LIMIT_OFFSET = 16


class Translator:
    """Plain text in, plain text out.

    A translation does not depend on what else is translated: padding is masked, and sentences share a batch only if
    they have the same limit on the decoding length. A Moses step that the tokenizer records is applied before and
    undone after.

    Args:
        model: a sequence-to-sequence model; it is put into evaluation mode for each call and given back as it was.
        tokenizer: its tokenizer, whose source ids end in `</s>`.
        num_beams: width of the beam; 1 is greedy.
        length_penalty: exponent of the length by which a hypothesis' log-probability is divided.
        max_new_tokens: most target tokens, `</s>` included. Default: 2 · n + 16 for a source of n tokens, n rounded up
            to the next multiple of 16, and at most `max_position_embeddings`. A translation that reaches it is cut,
            with a warning.
        batch_tokens: source tokens with padding (sentences · longest) in a batch; a longer sentence is a batch of
            its own.
        long_sources: for sources longer than `max_position_embeddings`: "error", or "truncate" with a warning.
        device: where to compute; None leaves the model where it is.

    Raises:
        UserError: an option out of range.

    Example:

    ```python
    >>> from reluformer.training.translation import Translator

    >>> translator = Translator.from_pretrained("runs/demo")
    >>> translator(["zwölf", "einundzwanzig"])
    ['twelve', 'twenty-one']
    ```
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_beams: int = 5,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        long_sources: Literal["error", "truncate"] = "error",
        device: str | torch.device | None = None,
    ) -> None:
        from reluformer.training.tokenization import MosesStep

        self.model = model if device is None else model.to(device_of(device))
        self.tokenizer = tokenizer
        self.num_beams = num_beams
        self.length_penalty = length_penalty
        self.max_new_tokens = max_new_tokens
        self.batch_tokens = batch_tokens
        self.long_sources = long_sources
        self.moses = MosesStep.from_tokenizer(tokenizer)
        self._check_options()

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        **options: Any,
    ) -> Translator:
        """A translator from a run folder, a checkpoint or a Hub repository.

        Args:
            path_or_hub_id: see `load_model_and_tokenizer`.
            device: None takes the GPU if CUDA has one, else the CPU.
            attn_implementation: how attention is computed; None takes the model's default.
            options: of the constructor.

        Raises:
            UserError: see `load_model_and_tokenizer` and the constructor.
        """
        device = device_of(device)  # first: loading can take minutes
        model, tokenizer = load_model_and_tokenizer(path_or_hub_id, attn_implementation=attn_implementation)
        return cls(model, tokenizer, device=device, **options)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings that decide what is translated, to stand beside scores."""
        settings = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        default = f"2 * source tokens rounded up to a multiple of {_LIMIT_STEP}, + {_LIMIT_OFFSET}"
        return {**settings, "max_new_tokens": self.max_new_tokens or default, "batch_tokens": self.batch_tokens}

    @overload
    def __call__(self, texts: str, progress: bool = False) -> str: ...
    @overload
    def __call__(self, texts: Iterable[str], progress: bool = False) -> list[str]: ...
    def __call__(self, texts: str | Iterable[str], progress: bool = False) -> str | list[str]:
        """Translates one text to a text, or several to a list in the same order.

        Texts of nothing but white space are translated to "" without the model.

        Args:
            texts: a text or any iterable of texts, a generator too; it is read to its end first.
            progress: show a progress bar.

        Raises:
            UserError: something that is no text; a source that is too long, unless `long_sources` is "truncate".
        """
        if isinstance(texts, str):
            return self([texts], progress)[0]
        texts = list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"texts[{index}]: expected text, got {type(text).__name__}")
        translations = [""] * len(texts)
        given = [index for index, text in enumerate(texts) if text.strip()]
        encoded = dict(zip(given, self._encode([texts[index] for index in given], given), strict=True))
        cut = 0
        with (
            self._evaluation_mode(),
            tqdm(total=len(given), desc="translating", unit="sentence", disable=not progress) as bar,
        ):
            for indices in self._batches(encoded):
                ids, unfinished = self._generate([encoded[index] for index in indices])
                for index, text in zip(indices, self._decode(ids), strict=True):
                    translations[index] = text
                cut += unfinished
                bar.update(len(indices))
        if cut:
            logger.warning("%d of %d translations were cut: they reached the limit of max_new_tokens.", cut, len(given))
        return translations

    def target_ids(self, text: str) -> list[int]:
        """The token ids of one text's translation as the model gave them, with `</s>` unless it was cut.

        Raises:
            UserError: as a call does.
        """
        with self._evaluation_mode():
            ids = self._generate(self._encode([text], [0]))[0][0, 1:].tolist()
        end = self.tokenizer.eos_token_id
        return ids[: ids.index(end) + 1] if end in ids else ids

    def limit(self, source_tokens: int) -> int:
        """The most target tokens, `</s>` included, for a source of so many tokens."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        rounded = -(-source_tokens // _LIMIT_STEP) * _LIMIT_STEP
        return min(2 * rounded + _LIMIT_OFFSET, self._positions or 2 * rounded + _LIMIT_OFFSET)

    @property
    def _positions(self) -> int | None:
        """How many tokens a side may have; None where the model does not limit it."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def _check_options(self) -> None:
        for name in ("num_beams", "batch_tokens", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} must be at least 1")
        if not math.isfinite(self.length_penalty):
            raise UserError(f"length_penalty: {self.length_penalty} must be a finite number")
        if self._positions is not None and (self.max_new_tokens or 0) > self._positions:
            raise UserError(
                f"max_new_tokens: {self.max_new_tokens} is more than the {self._positions} positions the model has"
            )
        if self.long_sources not in ("error", "truncate"):
            raise UserError(f"long_sources: {self.long_sources!r} is unknown; choose 'error' or 'truncate'")

    def _encode(self, texts: list[str], indices: list[int]) -> list[list[int]]:
        """Source ids of each text. `indices`: what to call them in an error."""
        if not texts:
            return []
        if self.moses is not None:
            texts = self.moses.apply(texts, side="source")
        sources = self.tokenizer(texts, verbose=False)["input_ids"]
        most = self._positions
        too_long = [i for i, ids in enumerate(sources) if most is not None and len(ids) > most]
        if not too_long:
            return sources
        first = too_long[0]
        length = len(sources[first])
        found = f"text {indices[first]} (counted from 0) has {length} tokens, the model has {most} positions"
        if self.long_sources == "error":
            more = f"; so do {len(too_long) - 1} more" if len(too_long) > 1 else ""
            raise UserError(f"{found}{more}: split the text into sentences, or choose long_sources='truncate'")
        logger.warning("%s: %d texts were truncated.", found, len(too_long))
        shortened = self.tokenizer([texts[i] for i in too_long], truncation=True, max_length=most)["input_ids"]
        for i, ids in zip(too_long, shortened, strict=True):
            sources[i] = ids
        return sources

    def _batches(self, encoded: dict[int, list[int]]) -> Iterator[list[int]]:
        """Indices of one batch after the other, the longest sources first: if memory runs out, then at once."""
        batch: list[int] = []
        longest = 0
        for index in sorted(encoded, key=lambda index: len(encoded[index]), reverse=True):
            length = len(encoded[index])
            full = (len(batch) + 1) * longest > self.batch_tokens
            if batch and (full or self.limit(length) != self.limit(longest)):
                yield batch
                batch = []
            if not batch:
                longest = length
            batch.append(index)
        if batch:
            yield batch

    def _generate(self, sources: list[list[int]]) -> tuple[Tensor, int]:
        """Target ids (sentences, longest translation) and how many of the translations were cut at the limit."""
        padded = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.model.device)
        limit = self.limit(max(map(len, sources)))
        ids = self.model.generate(
            input_ids=padded["input_ids"],
            attention_mask=padded["attention_mask"],
            num_beams=self.num_beams,
            # generate() warns about a length penalty that greedy decoding cannot use.
            length_penalty=self.length_penalty if self.num_beams > 1 else None,
            max_new_tokens=limit,
            max_length=None,  # of a converted checkpoint: generate() warns about two limits
            do_sample=False,
        )
        generated = ids[:, 1:]  # without the start token
        ends = self.model.generation_config.eos_token_id
        if ends is None or generated.shape[1] < limit:
            return ids, 0
        # A model with a forced end ends every translation at the limit, wherever it was.
        before = generated[:, :-1] if self.model.generation_config.forced_eos_token_id is not None else generated
        finished = torch.isin(before, torch.as_tensor(ends, device=ids.device)).any(dim=1)
        return ids, int((~finished).sum())

    def _decode(self, ids: Tensor) -> list[str]:
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts if self.moses is None else self.moses.undo(texts)

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)
