"""What an analysis reads: pairs of lines, packed documents, one stream of tokens, the test split of a run, or pictures."""

from __future__ import annotations

import gzip
import logging
import math
import sys
import zlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase

from reluformer.analysis.collection import IGNORED_LABEL, Batch, ImageBatch, TextBatch
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.modeling_reluformer.configuration_vision import pair
from reluformer.training.data.corpus import CorpusReport, has_split, load_split, read_parallel_files
from reluformer.training.data.documents import PackedDocuments, PackingReport, pack_documents
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.moses import MosesStep
from reluformer.training.data.readers import is_unicode, text_lines
from reluformer.training.run.run_folder import RECIPE_FILE
from reluformer.training.translation import Translator

logger = logging.getLogger(__name__)

# Weights of one head and layer that one batch may have: a pair of 1,024 tokens, or many short ones.
WEIGHTS_PER_BATCH = 2**20


@dataclass(frozen=True)
class AnalysisText:
    """Encoded pairs, and what a result says about them.

    pairs: columns "input_ids" and "labels". facts: files, origin of the targets, counts of pairs and tokens. documents: what the
    pairs were packed of, where they are packed documents.
    """

    pairs: datasets.Dataset
    facts: dict[str, Any] = field(default_factory=dict)
    documents: PackedDocuments | None = None


def read_lines(
    text: str | Path, target_text: str | Path | None, documents: str | Path | None = None
) -> tuple[datasets.Dataset, dict[str, int]]:
    """Source lines and, if given, target lines: columns "source" and "target"; and what was skipped, by reason.

    Plain or gzip. A pair with an empty line or one that is not UTF-8 is skipped with a warning. `documents` names the document of
    each line: column "document".

    Raises:
        UserError: a missing file, files of different lengths, nothing left.
    """
    # One rule for one file and for two: a file beside itself is never misaligned.
    target = text if target_text is None else target_text
    lines, report = read_parallel_files(text, target, name="text", documents=documents)
    if target_text is None:
        lines, report = lines.remove_columns("target"), _of_sources(report)
    _tell_skips(report)
    return lines, report.skipped


def _of_sources(report: CorpusReport) -> CorpusReport:
    """The report of a file that was read beside itself: there, both sides are the source."""

    def of_sources(reasons: dict[str, Any]) -> dict[str, Any]:
        return {reason.replace("both sides", "source"): value for reason, value in reasons.items()}

    return replace(report, skipped=of_sources(report.skipped), first=of_sources(report.first))


def _tell_skips(report: CorpusReport | PackingReport) -> None:
    if report.skipped:
        logger.warning(report.summary())


def encode_text(
    lines: datasets.Dataset, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, num_beams: int = 5
) -> AnalysisText:
    """Token ids of the lines; without targets the model translates them first, and its text is encoded like any other.

    Args:
        lines: column "source" and perhaps "target".
        model, tokenizer: an encoder-decoder and its tokenizer.
        num_beams: for the model's own translation.

    Raises:
        UserError: nothing that fits the model's positions; a tokenizer that does not end sentences.
    """
    facts: dict[str, Any] = {"target": "given, teacher-forced"}
    most = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    skipped: dict[str, int] = {}
    if "target" not in lines.column_names:
        lines, skipped = _without_long_sources(lines, tokenizer, most)
        translator = Translator(model, tokenizer, num_beams=num_beams)
        lines = lines.add_column("target", translator(lines["source"], progress=True))
        facts = {"target": "the model's own translation, teacher-forced", "decoding": translator.decoding}
    pairs, report = encode_pairs(lines, tokenizer, max_length=most, name="text")
    _tell_skips(report)
    counts = {
        "sentences": len(pairs),
        "source_tokens": sum(map(len, pairs["input_ids"])),
        "target_tokens": sum(map(len, pairs["labels"])),
        "skipped": _added(skipped, report.skipped),
    }
    return AnalysisText(pairs, {**facts, **counts})


def pack_text(
    lines: datasets.Dataset,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
) -> AnalysisText:
    """Token ids of the documents that the lines make, packed as in training; a line that alone is longer is left out and counted.

    Args:
        lines: columns "source", "target" and "document".
        model, tokenizer: an encoder-decoder and its tokenizer.
        max_length: most tokens of a packed document on either side; None: the model's positions.

    Raises:
        UserError: more tokens than positions, or a model that has no limit where none is given; see `pack_documents`.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    most = positions if max_length is None else max_length
    if most is None:
        raise UserError(
            "--max_length: missing; the model has no limit of positions, so say how long a packed document may be"
        )
    if positions is not None and most > positions:
        raise UserError(
            f"--max_length: {max_length} tokens of a packed document; give at most {positions}, the positions of the model"
        )
    packed = pack_documents(lines, tokenizer, max_tokens=most, too_long="skip", name="text")
    report = packed.report
    _tell_skips(report)
    facts = {
        "target": "given, teacher-forced",
        "documents": report.documents,
        "packed_documents": report.packed,
        "max_length": most,
        "sentences": report.sentences,
        "source_tokens": report.source_tokens,
        "target_tokens": report.target_tokens,
        "skipped": report.skipped,
    }
    return AnalysisText(packed.encoded, facts, packed)


def _without_long_sources(
    lines: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, most: int
) -> tuple[datasets.Dataset, dict[str, int]]:
    """Lines that the model can translate, and the number of the others: they are skipped, as too long pairs are."""
    moses = MosesStep.from_tokenizer(tokenizer)
    texts = list(lines["source"]) if moses is None else moses.apply(lines["source"], side="source")
    lengths = [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]
    kept = [index for index, length in enumerate(lengths) if length <= most]
    skipped = len(lengths) - len(kept)
    if not kept:
        raise UserError(
            f"text: every source is longer than the {most} tokens the model has positions for; split the lines"
        )
    if not skipped:
        return lines, {}
    logger.warning("text: %d of %d sources skipped: longer than %d tokens", skipped, len(lengths), most)
    return lines.select(kept), {f"longer than {most} tokens": skipped}


def _added(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {reason: first.get(reason, 0) + second.get(reason, 0) for reason in {**first, **second}}


def batches(
    pairs: datasets.Dataset, device: torch.device, *, batch_tokens: int, progress: bool = True
) -> Generator[Batch]:
    """All pairs once, the longest first.

    Args:
        pairs: columns "input_ids" and "labels".
        device: where the tensors go.
        batch_tokens: tokens of the longer side with padding in a batch; a longer pair is a batch of its own.
        progress: show a progress bar.
    """
    for _, batch in numbered_batches(pairs, device, batch_tokens=batch_tokens, progress=progress):
        yield batch


def numbered_batches(
    pairs: datasets.Dataset, device: torch.device, *, batch_tokens: int, progress: bool = True
) -> Generator[tuple[list[int], Batch]]:
    """`batches`, each with the places of its rows in `pairs`."""
    lengths = [(len(row["input_ids"]), len(row["labels"])) for row in pairs]
    order = sorted(range(len(lengths)), key=lambda index: (max(lengths[index]), lengths[index]), reverse=True)
    with tqdm(total=len(order), desc="analysing", unit="sentence", disable=None if progress else True) as bar:
        start = 0
        while start < len(order):
            longest = max(lengths[order[start]])
            size = max(1, min(batch_tokens // longest, WEIGHTS_PER_BATCH // longest**2))
            places = order[start : start + size]
            rows = [pairs[place] for place in places]
            yield places, make_batch([(row["input_ids"], row["labels"]) for row in rows], device)
            bar.update(len(places))
            start += size


def make_batch(pairs: list[tuple[list[int], list[int]]], device: torch.device | str) -> Batch:
    """Pairs of source ids and labels, padded on the right."""
    sources, labels = zip(*pairs, strict=True)
    longest = max(map(len, sources))
    mask = torch.tensor([[True] * len(ids) + [False] * (longest - len(ids)) for ids in sources])
    # Padding is masked, so that any id does.
    return Batch(_padded(sources, 0).to(device), mask.to(device), _padded(labels, IGNORED_LABEL).to(device))


def _padded(rows: tuple[list[int], ...], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def require_sizes(**sizes: int) -> None:
    """Raises a `UserError` for a size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"--{name}: {value} must be at least 1")


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


def run_text(run: str, folder: Path) -> dict[str, Any]:
    """The options of `AnalysisOptions` that name the test split of a run; its text is written into `folder`.

    Raises:
        UserError: no run, or no test split.
    """
    if not (Path(run) / RECIPE_FILE).is_file():
        raise UserError(f"--run: {run!r} holds no {RECIPE_FILE}; give the folder of a run, or --model and --text")
    recipe = load_recipe(Path(run) / RECIPE_FILE)
    data = recipe.data
    if not has_split(data, "test"):
        raise UserError(f"--run: the recipe of {run} has no test split; give --model and --text")
    pairs, _ = load_split(data, "test")
    columns = {"text": "source", "target_text": "target"} | ({"documents": "document"} if data.packing else {})
    lines = {option: (" ".join(text.split("\n")) for text in pairs[column]) for option, column in columns.items()}
    found: dict[str, Any] = {
        option: _written(folder / f"test.{columns[option]}.txt", texts) for option, texts in lines.items()
    }
    return found | ({"max_length": data.max_length} if data.packing else {})


def _written(path: Path, texts: Iterable[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\n" for text in texts)
    return str(path)


@dataclass(frozen=True)
class Pictures:
    """What is read, and with what the model's input is made of it.

    images: bytes (pictures, height, width), or rows with a column "image". labels: the model's number of each picture's class.
    """

    images: np.ndarray | datasets.Dataset
    labels: np.ndarray
    processor: BaseImageProcessor

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says about them."""
        return {"pictures": len(self.labels), "classes": len(np.unique(self.labels))}

    def image(self, number: int) -> Image.Image:
        """One of them, as PIL's."""
        found = self.images[number]
        return Image.fromarray(found) if isinstance(found, np.ndarray) else found["image"]


def read_idx(path: str | Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of a file of the form of MNIST (IDX), plain or .gz.

    Args:
        path: of the file.
        dimensions: 3 for pictures (pictures, height, width), 1 for labels.

    Raises:
        UserError: the file is missing, damaged, or holds something else.
    """
    path = Path(path).expanduser()
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); give an IDX file, as MNIST has them") from error
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - header != math.prod(shape):
        raise UserError(
            f"{path}: is no IDX file of bytes in {dimensions} dimensions, or is cut off; pictures and labels are two files"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_pictures(images: str, labels: str | None, model_name: str, model: PreTrainedModel) -> Pictures:
    """The pictures of a folder of class folders, or with `labels` of two IDX files.

    Raises:
        UserError: files that are missing or damaged, classes that the model does not know, a model without image processor, or
            one whose configuration does not say which pictures it takes.
    """
    if lacking := [name for name in ("image_size", "patch_size", "num_channels") if not hasattr(model.config, name)]:
        raise UserError(f"--images: the configuration of {model_name} has no {lacking[0]}; give a model such as a ViT")
    is_folder = Path(images).expanduser().is_dir()
    if is_folder == (labels is not None):
        raise UserError(
            f"--images: {images!r} is {'a folder' if is_folder else 'no folder'}; give a folder with a folder for each class, "
            "or an IDX file and --image_labels"
        )
    read, numbers = _of_folder(images, model) if is_folder else _of_idx(images, labels, model)
    try:
        processor = AutoImageProcessor.from_pretrained(model_name, trust_remote_code=False)
    except Exception as error:  # what a damaged file makes the libraries raise is of any kind
        raise UserError(f"{model_name}: its image processor cannot be loaded: {one_line(error)}") from error
    return Pictures(read, numbers, processor)


def _of_folder(folder: str, model: PreTrainedModel) -> tuple[datasets.Dataset, np.ndarray]:
    try:
        rows = datasets.load_dataset(
            "imagefolder", data_dir=str(Path(folder).expanduser()), split="train", drop_labels=False
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"--images: {folder!r} cannot be loaded: {one_line(error)}") from error
    names, known = rows.features["label"].names, model.config.label2id
    if unknown := [name for name in names if name not in known]:
        told = ", ".join(list(map(str, known))[:5])
        raise UserError(
            f"--images: the class {unknown[0]!r} is none of the model's {len(known)}, {told} …; rename its folder"
        )
    return rows, np.array([int(known[names[label]]) for label in rows["label"]])


def _of_idx(images: str, labels: str, model: PreTrainedModel) -> tuple[np.ndarray, np.ndarray]:
    read, numbers = read_idx(images, 3), read_idx(labels, 1).astype(np.int64)
    if len(read) != len(numbers) or not len(numbers):
        raise UserError(f"--images: {images} holds {len(read):,} pictures, {labels} {len(numbers):,} labels")
    if numbers.max() >= model.config.num_labels:
        raise UserError(
            f"--image_labels: {labels} holds the class {numbers.max()}, the model has {model.config.num_labels}"
        )
    return read, numbers


def image_batches(pictures: Pictures, model: PreTrainedModel, *, batch_tokens: int) -> Generator[ImageBatch]:
    """All pictures in order.

    Args:
        pictures: of `read_pictures`. model: they go to its device.
        batch_tokens: patches of a batch; a picture of more is a batch of its own.
    """
    config = model.config
    sizes = zip(pair(config.image_size), pair(config.patch_size), strict=True)
    height, width = (pixels // patch for pixels, patch in sizes)
    tokens = height * width + (getattr(config, "pooling", "cls") == "cls")
    count, size = len(pictures.labels), max(1, batch_tokens // tokens)
    for start in tqdm(range(0, count, size), desc="analysing", unit="batch", disable=None):
        numbers = range(start, min(start + size, count))
        images = [_converted(pictures.image(number), config) for number in numbers]
        pixel_values = pictures.processor(images=images, return_tensors="pt")["pixel_values"]
        labels = torch.from_numpy(pictures.labels[start : numbers.stop])
        yield ImageBatch(pixel_values.to(model.device, model.dtype), labels.to(model.device), tokens)


def _converted(image: Image.Image, config: Any) -> Image.Image | torch.Tensor:
    """With as many channels as the model takes; a processor wants the one of a grey picture as a dimension of its own."""
    if config.num_channels != 1:
        return image.convert("RGB")
    grey = image.convert("L").resize(pair(config.image_size)[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey))[..., None]
