"""The joint BPE tokenizer of a recipe, complete in itself: `AutoTokenizer.from_pretrained` needs nothing of ours.

Text → perhaps lower case, NFC, single spaces → words that begin with "▁" (a space or the start), with every punctuation
mark, symbol and digit on its own → BPE → `</s>` appended. Decoding joins the pieces and turns "▁" into spaces, so
normalised text comes back exactly. A character that is not in the vocabulary is written as its UTF-8 bytes, so nothing
ends as `<unk>` or vanishes.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict

import datasets
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from reluformer.configuration.errors import UserError
from reluformer.translating.moses import MosesStep

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED_TOKENS = [*SPECIAL_TOKENS.values(), *BYTE_TOKENS]
WORD_START = "▁"
# A mark takes the word start before it along ("▁(") rather than leaving it alone as a piece.
SINGLE_MARK = Regex(rf"{WORD_START}?[[\p{{P}}\p{{S}}\p{{N}}]&&[^{WORD_START}]]")
# Rarer characters of a large noisy corpus go by their bytes rather than fill the vocabulary.
ALPHABET_LIMIT = 1_000
MINIMUM_PAIR_FREQUENCY = 2


def train_tokenizer(
    pairs: datasets.Dataset,
    *,
    vocab_size: int,
    lowercase: bool,
    moses: bool,
    source_language: str,
    target_language: str,
    max_length: int,
) -> PreTrainedTokenizerFast:
    """Train one BPE vocabulary on both sides of raw `pairs` (columns "source", "target").

    `vocab_size` counts everything: 4 special tokens (`<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3), 256 bytes, the alphabet
    and the merges. A corpus too small for it gives fewer, which is logged. `max_length` becomes `model_max_length`;
    nothing is truncated unless the caller asks for it. With `moses` the pairs go through `MosesStep` first, which is
    recorded in tokenizer_config.json as "moses".

    All different words are counted in memory. Give an existing tokenizer where that is too much.

    Raises `UserError`: a vocabulary without room for the alphabet, or without a merge; `moses` without sacremoses.
    """
    step = MosesStep(source_language, target_language) if moses else None
    tokenizer = _pipeline(models.BPE(), lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=RESERVED_TOKENS,
        limit_alphabet=ALPHABET_LIMIT,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        show_progress=sys.stderr.isatty(),  # a log file would hold every state of the bar
    )
    tokenizer.train_from_iterator(_texts(pairs, step), trainer, length=2 * len(pairs))
    trained = json.loads(tokenizer.to_str())["model"]
    size = len(trained["vocab"])
    if not trained["merges"]:
        raise UserError(
            f"vocab_size: {vocab_size} holds no merge after the {size} special tokens, bytes and characters of the "
            f"corpus; give more, or a corpus in which two characters meet {MINIMUM_PAIR_FREQUENCY} times"
        )
    if size < vocab_size:
        logger.warning(
            f"vocab_size {vocab_size:,} asked for, {size:,} reached: the corpus holds no further frequent pair"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=_finished(trained, lowercase),
        **SPECIAL_TOKENS,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "</s>" in a corpus line is text
        source_language=source_language,
        target_language=target_language,
        **({"moses": asdict(step)} if step else {}),
    )


def _pipeline(model: models.BPE, lowercase: bool) -> Tokenizer:
    """A tokenizer with our normalisation and pre-tokenisation; what follows the model is `_finished`'s."""
    tokenizer = Tokenizer(model)
    # "▁" itself stands for a space inside, so it cannot stand for itself. Lower case first: it can undo NFC.
    spaces = [normalizers.Replace(Regex(rf"[\s{WORD_START}]+"), " "), normalizers.Strip()]
    lower = [normalizers.Lowercase()] if lowercase else []
    tokenizer.normalizer = normalizers.Sequence([*lower, normalizers.NFC(), *spaces])
    words = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    marks = pre_tokenizers.Split(SINGLE_MARK, behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, marks])
    return tokenizer


def _finished(trained: dict, lowercase: bool) -> Tokenizer:
    """The trained pieces in a new tokenizer, since training marks all its reserved tokens, bytes too, as special."""
    merges = [tuple(merge) for merge in trained["merges"]]
    model = models.BPE(vocab=trained["vocab"], merges=merges, unk_token=SPECIAL_TOKENS["unk_token"], byte_fallback=True)
    tokenizer = _pipeline(model, lowercase)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    end = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    spaces = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces])
    return tokenizer


def _texts(pairs: datasets.Dataset, step: MosesStep | None) -> Iterator[list[str]]:
    for batch in pairs.iter(batch_size=1_000):
        for side in ("source", "target"):
            yield step.apply(batch[side], side=side) if step else batch[side]
