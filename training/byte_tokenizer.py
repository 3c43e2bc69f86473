"""The byte-level BPE tokenizer of a language model: GPT-2's rules, trained on the run's own texts.

No text is changed: what was encoded is decoded to the same bytes, which a loss per byte stands on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from reluformer.configuration.errors import UserError
from reluformer.training.run.progress import bars_are_seen
from reluformer.training.tokenization import MINIMUM_PAIR_FREQUENCY, give_back_memory

logger = logging.getLogger(__name__)

END, PADDING = "<|endoftext|>", "<|padding|>"
_RESERVED = 256 + len((END, PADDING))


def train_byte_tokenizer(texts: Iterator[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Trains a vocabulary on texts.

    Args:
        texts: read once; all different words are counted in memory.
        vocab_size: counts everything: 2 special tokens (`<|endoftext|>` 0, which begins and ends a text, and `<|padding|>` 1),
            256 bytes and the merges. A corpus too small for it gives fewer, which is logged.
        max_length: becomes `model_max_length`; nothing is truncated unless the caller asks for it.

    Raises:
        UserError: no text, a vocabulary without room for merges, or texts in which no two bytes meet often enough.
    """
    if vocab_size <= _RESERVED:
        raise UserError(
            f"tokenizer.vocab_size: {vocab_size} leaves no room for BPE merges beside {_RESERVED} bytes and special tokens; "
            f"give at least {_RESERVED + 1}"
        )
    first = next(texts, None)
    if first is None:
        raise UserError(
            "data: empty corpus: no document of the training split holds text; give files with text in UTF-8"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        show_progress=bars_are_seen(),
    )
    tokenizer.train_from_iterator(chain([first], texts), trainer)
    give_back_memory()
    size = tokenizer.get_vocab_size()
    if size <= _RESERVED:
        raise UserError(
            f"data: the texts are too small to train BPE: no two bytes of a word meet {MINIMUM_PAIR_FREQUENCY} times"
        )
    if size < vocab_size:
        logger.warning("tokenizer.vocab_size %s asked for, %s reached: the texts hold no more", vocab_size, size)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        unk_token=END,
        pad_token=PADDING,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "<|endoftext|>" in a source file is text
    )
