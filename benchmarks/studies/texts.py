"""Rows on language models: documents as contexts of one length, and the perplexity of a split.

The documents of a split, each followed by the tokenizer's end token, are one stream after an end token. A context
begins with the last token of the one before it, so that each token of the stream but the first is predicted exactly
once.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from tqdm.auto import tqdm
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    default_data_collator,
)

from benchmarks.studies.parser import BASES, STUDIES_FOLDER
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.analysis.ppl_sparsity import perplexity
from reluformer.configuration.errors import UserError

END, PADDING = "<|endoftext|>", "<|padding|>"
ITEMS, MODEL = "target_tokens", ReLUFormerForCausalLM

Recipe = Mapping[str, Any]
Document = tuple[str, str]  # name, text


def documents(data: Mapping[str, Any], split: str) -> Iterator[Document]:
    """The documents of a split ("train", "validation" or "test") that hold text in UTF-8, in order.

    data: of a recipe: `corpus`, all documents, of which `split` says what share is held out, or the splits themselves.
    Each of them has `packages` (Python sources), `paths` with `documents` (a line's document), or `dataset`.
    """
    corpus, shares = data.get("corpus"), data.get("split") or {}
    for name, content in _read(corpus or data[split]):
        if corpus is None or split_of(name, shares) == split:
            try:
                text = content.decode("utf-8") if isinstance(content, bytes) else content
            except UnicodeDecodeError:
                continue
            if text:
                yield name, text


def split_of(name: str, shares: Mapping[str, Any]) -> str:
    """The split of a document, by its name and the seed alone: it stays there where others come or go."""
    seeded = f"{shares.get('seed', 0)}:{name}".encode("utf-8", "surrogateescape")
    share, test = int.from_bytes(hashlib.blake2b(seeded, digest_size=8).digest()) / 2**64, shares.get("test", 0.0)
    if share < test:
        return "test"
    return "validation" if share < test + shares.get("validation", 0.0) else "train"


def _read(source: Mapping[str, Any]) -> Iterator[tuple[str, bytes | str]]:
    if packages := source.get("packages"):
        yield from ((name, path.read_bytes()) for name, path in package_files(packages).items())
    elif dataset := source.get("dataset"):
        rows = datasets.load_dataset(dataset["path"], split=dataset["split"])
        yield from ((str(number), text) for number, text in enumerate(rows[dataset["column"]]))
    else:
        lines = zip(_lines(source["documents"]), _lines(source["paths"]), strict=True)
        for name, rows in groupby(lines, itemgetter(0)):
            if source.get("only") is None or name.decode().strip() in source["only"]:
                yield name.decode().strip(), b"".join(line for _, line in rows)


def _lines(path: str) -> Iterator[bytes]:
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        yield from file


def package_files(packages: Mapping[str, Any]) -> dict[str, Path]:
    """Path from site-packages → path here of the Python files of installed packages, without the folders `exclude`,
    sorted.

    Raises:
        UserError: another release than the file `listed` asks for, if there is one: its sources would be another
            corpus.
    """
    if listed := packages.get("listed"):
        file, here = STUDIES_FOLDER / BASES / listed, {f"{each.name}=={each.version}" for each in distributions()}
        if missing := set(file.read_text(encoding="utf-8").split()) - here:
            raise UserError(f"data.corpus: needs {', '.join(sorted(missing))}; pip install -r {file}")
    excluded, paths = set(packages.get("exclude", ())), {}
    for name in packages["names"]:
        installed = distribution(name)
        for file in installed.files or ():
            if file.suffix == ".py" and ".." not in file.parts and excluded.isdisjoint(file.parts[:-1]):
                paths[file.as_posix()] = Path(str(installed.locate_file(file)))
    return dict(sorted(paths.items()))


def train_byte_tokenizer(texts: Iterator[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE as GPT-2 has it: it changes no text, and what looks like a special token in a text is text."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size, special_tokens=[END, PADDING], show_progress=False)
    special = {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": PADDING}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **special,
    )


@dataclass(frozen=True)
class Contexts(Dataset):
    """The stream of a split's `tokens` (stream,), int32, cut into contexts of one length; what is left at the end fills
    none.

    documents: name, bytes and tokens (with the end token) of each.
    """

    tokens: Tensor
    length: int
    documents: list[tuple[str, int, int]]

    @classmethod
    def of(cls, texts: Iterator[Document], tokenizer: PreTrainedTokenizerBase, length: int) -> Contexts:
        """Encodes the documents and joins them."""
        parts, told = [[tokenizer.eos_token_id]], []
        for name, text in tqdm(texts, desc="encoding", unit=" documents", delay=2, disable=None):
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
            parts.append([*ids, tokenizer.eos_token_id])
            told.append((name, len(text.encode("utf-8")), len(ids) + 1))
        return cls(torch.cat([torch.tensor(part, dtype=torch.int32) for part in parts]), length, told)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // (self.length - 1)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * (self.length - 1)
        ids = self.tokens[start : start + self.length].long()
        labels = ids.clone()
        labels[0] = -100  # predicted by the context before, if at all
        return {"input_ids": ids, "labels": labels}

    @property
    def rest(self) -> Tensor:
        """The context after the last whole one, (1, tokens)."""
        return self.tokens[None, len(self) * (self.length - 1) :].long()


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None = None) -> ReLUFormerDecoderConfig:
    """The configuration of a row's model; without a tokenizer, with the vocabulary that the recipe asks for."""
    fields = dict(recipe["model"])
    if tokenizer is None:
        derived = {"vocab_size": recipe["tokenizer"]["vocab_size"]}
    else:
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        derived = {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}
    attention = fields.pop("attn_implementation", None)
    config = ReLUFormerDecoderConfig.from_preset(fields.pop("preset", "gpt2"), **fields, **derived)
    config._attn_implementation = attention
    return config


def _tokenizer(recipe: Recipe, folder: Path) -> PreTrainedTokenizerBase:
    """That of the run folder, or a new one of the training split, which the run folder then holds."""
    if (folder / "tokenizer_config.json").is_file():
        return AutoTokenizer.from_pretrained(folder)
    data, size = recipe["data"], recipe["tokenizer"]["vocab_size"]
    texts = (text for _, text in documents(data, "train"))
    tokenizer = train_byte_tokenizer(texts, vocab_size=size, max_length=data["max_length"])
    tokenizer.save_pretrained(folder)
    return tokenizer


def prepare(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The arguments of the trainer: model, data and collator."""
    data, length = recipe["data"], recipe["data"]["max_length"]
    tokenizer = _tokenizer(recipe, folder)
    validated = recipe["training"].get("eval_strategy", "no") != "no"
    return {
        "model": ReLUFormerForCausalLM(build_config(recipe, tokenizer)),
        "train_dataset": Contexts.of(documents(data, "train"), tokenizer, length),
        "eval_dataset": Contexts.of(documents(data, "validation"), tokenizer, length) if validated else None,
        "data_collator": default_data_collator,
        "processing_class": tokenizer,
    }


def evaluate(recipe: Recipe, split: str, model: PreTrainedModel, folder: Path) -> dict[str, Any]:
    """Predicts every token of a split from those before it in its context, and writes `documents.<split>.tsv`.

    Returns:
        `documents`, `tokens` (with the end of each document), `perplexity` of a token, and `seconds`.
    """
    data = recipe["data"]
    contexts = Contexts.of(documents(data, split), AutoTokenizer.from_pretrained(folder), data["max_length"])
    started = time.perf_counter()
    nats = np.concatenate(list(_losses(model, contexts, recipe["evaluation"].get("batch_size", 32))))
    seconds = time.perf_counter() - started
    of_documents = np.add.reduceat(nats, np.cumsum([0, *(tokens for *_, tokens in contexts.documents)])[:-1])
    with (folder / f"documents.{split}.tsv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(("document", "bytes", "tokens", "nats"))
        writer.writerows((*each, f"{of:.6f}") for each, of in zip(contexts.documents, of_documents, strict=True))
    counts = {"documents": len(contexts.documents), "tokens": len(nats), "seconds": seconds}
    return {**counts, "perplexity": perplexity(float(nats.mean()))}


@torch.inference_mode()
def _losses(model: PreTrainedModel, contexts: Contexts, batch_size: int) -> Iterator[np.ndarray]:
    """Nats of each token of the stream after the first, in order: float64, one array for each batch."""
    rows = [contexts[number]["input_ids"] for number in range(len(contexts))]
    batches = [torch.stack(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    if contexts.rest.shape[1] > 1:
        batches.append(contexts.rest)
    for ids in tqdm(batches, desc="predicting", unit="batch", leave=False, disable=None):
        ids = ids.to(model.device)
        logits = model(ids, use_cache=False).logits[:, :-1].float()
        yield cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").double().cpu().numpy()
