"""What an analysis reads: pairs of lines, packed documents, the test split of a run, one stream of tokens, or pictures."""

from __future__ import annotations

import gzip
import logging
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from tqdm.auto import tqdm
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from reluformer.analysis.analyses import DOCUMENTS, INPUT, MODEL, NEEDS, NOTHING, PAIRS, TEXT
from reluformer.analysis.collection import Batch, pair_batch, text_batch
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.modeling_reluformer.configuration_vision import pair
from reluformer.training.data.corpus import load_split, read_parallel_files
from reluformer.training.data.documents import PackedDocuments, pack_documents
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.readers import is_unicode, text_file, text_lines
from reluformer.training.loading import (
    device_of,
    load_model_and_tokenizer,
    load_model_config,
    load_whole,
    load_with_tokenizer,
)
from reluformer.training.run.run_folder import RECIPE_FILE
from reluformer.training.translation import Translator

logger = logging.getLogger(__name__)

# Tokens of a batch, padding included; and weights of one head and layer, such as those of a single pair of 1,024 tokens.
BATCH_TOKENS, BATCH_WEIGHTS = 2_048, 2**20
# Of a context, where neither the user nor the model says less.
MOST_CONTEXT = 1_024

Pair = tuple[list[int], list[int]]  # token ids of the source, and labels


@dataclass
class AnalysisOptions:
    """What `analyze` is asked for.

    what: names out of `ANALYSES`, or `all`: those that can be taken of the model and its input. model: folder or Hub id.
    run: folder of a finished run, whose model and test split are taken. output: folder; None: `analysis` in the model's folder.
    text: file of source lines, or any text for a decoder-only model. target_text: file of their translations; None: the model's
    own. documents: file that names the document of each line; the lines of one are then packed to texts of at most max_length
    tokens, by default the model's positions. context: tokens of a context of a decoder-only model; None: its positions, at most
    1,024. images: for a classifier, a folder of class folders, or a file of the form of MNIST with `image_labels`.
    top_p: percentages. seed: of variance-simulation. device: None: a GPU if there is one.
    """

    what: Sequence[str]
    model: str | None = None
    run: str | None = None
    output: str | None = None
    text: str | None = None
    target_text: str | None = None
    documents: str | None = None
    max_length: int | None = None
    context: int | None = None
    images: str | None = None
    image_labels: str | None = None
    top_p: Sequence[float] = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    seed: int = 0
    device: str | None = None


@dataclass(frozen=True)
class Subject:
    """What the analyses are taken of.

    has: the last of `NEEDS` that is there. pairs: token ids of an encoder-decoder's input; documents: what they were packed of.
    batches: a pass over the input, on the model's device. facts: what every result says of the input. notes: what a reader must
    know, one sentence each.
    """

    options: AnalysisOptions
    has: str = NOTHING
    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    pairs: list[Pair] = field(default_factory=list)
    documents: PackedDocuments | None = None
    batches: Callable[[], Iterator[Batch]] = list
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def allows(self, needs: str) -> bool:
        """Whether an analysis that needs this can be taken."""
        return NEEDS.index(needs) <= NEEDS.index(self.has)


def read_subject(options: AnalysisOptions) -> Subject:
    """Loads the model, and reads what it is to be run on.

    Raises:
        UserError: a model or file that cannot be read; options that do not belong to this kind of model, or not together.
    """
    name = options.model if options.run is None else options.run
    if name is None:
        return Subject(options)
    kind, allowed, read = "a translation model", ("text", "target_text", "documents", "max_length"), _read_pairs
    config = load_model_config(name)
    if type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        kind, allowed, read = "a classifier of pictures", ("images", "image_labels"), _read_pictures
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        kind, allowed, read = "a decoder-only language model", ("text", "context"), _read_text
    inputs = ("text", "target_text", "documents", "max_length", "context", "images", "image_labels")
    for option in inputs:
        if getattr(options, option) is not None and option not in allowed:
            raise UserError(f"--{option}: {name} is {kind}; leave it out, and give {' or '.join(allowed[:2])}")
        if getattr(options, option) is not None and options.run is not None:
            raise UserError(f"--{option}: --run says it already; leave one of the two out")
    for option, needed in _GO_WITH.items():
        if getattr(options, option) is not None and getattr(options, needed) is None:
            raise UserError(f"--{option}: given without --{needed}; give --{needed} too, or leave it out")
    return read(name, options)


_GO_WITH = {"image_labels": "images", "target_text": "text", "documents": "target_text", "max_length": "documents"}


# Pairs and documents, of an encoder-decoder


def _read_pairs(name: str, options: AnalysisOptions) -> Subject:
    model, tokenizer = load_model_and_tokenizer(name)
    model.to(device_of(options.device)).eval()
    if options.text is None and options.run is None:
        return Subject(options, MODEL, model, tokenizer)
    lines, max_length, skipped = _read_lines(options)
    if list(options.what) == ["attention-maps"]:  # no need to translate what is not drawn
        lines = lines.select([0])
    target: dict[str, Any] = {"target": "given, teacher-forced"}
    if is_own := "target" not in lines.column_names:
        translator = Translator(model, tokenizer)
        lines = lines.add_column("target", translator(lines["source"], progress=True))
        target = {"target": "the model's own translation, teacher-forced", "decoding": translator.decoding}
    positions, documents = getattr(model.config, "max_position_embeddings", None) or sys.maxsize, None
    if "document" in lines.column_names:
        documents = _pack(lines, tokenizer, max_length, positions)
    pairs_of_text = lines if documents is None else documents.pairs
    encoded, report = encode_pairs(pairs_of_text, tokenizer, max_length=positions, name="text")
    report = report if documents is None else documents.report
    _tell_skips(report)
    pairs: list[Pair] = list(zip(encoded["input_ids"], encoded["labels"], strict=True))
    counts = {"sentences": report.kept} | {
        name: sum(len(pair[side]) for pair in pairs) for side, name in enumerate(("source_tokens", "target_tokens"))
    }
    if documents is not None:
        counts |= {"documents": report.documents, "packed_documents": len(pairs), "max_length": report.max_tokens}
    return Subject(
        options,
        PAIRS if documents is None else DOCUMENTS,
        model,
        tokenizer,
        pairs,
        documents,
        lambda: (batch for _, batch in pair_batches(model, pairs)),
        {"text": _files(options) | target | counts | {"skipped": skipped | report.skipped}},
        ("no --target_text: the decoder reads the model's own translation",) * is_own,
    )


def _files(options: AnalysisOptions) -> dict[str, str | None]:
    if options.run is not None:
        return {"split": "test"}
    return {"source_file": options.text, "target_file": options.target_text, "documents_file": options.documents}


def _read_lines(options: AnalysisOptions) -> tuple[datasets.Dataset, int | None, dict[str, int]]:
    """Columns "source", perhaps "target", and "document" where they are to be packed; the limit of packing; what was skipped."""
    if options.run is not None:
        recipe = Path(options.run) / RECIPE_FILE
        if not recipe.is_file():
            raise UserError(f"--run: {options.run!r} holds no {RECIPE_FILE}; give the folder of a run")
        data = load_recipe(recipe).data
        lines, report = load_split(data, "test")
        if data.packing is None:
            lines = lines.remove_columns([name for name in lines.column_names if name == "document"])
        return lines, data.max_length, report.skipped
    # One rule for one file and for two: a file beside itself is never misaligned.
    target = options.target_text or options.text
    lines, report = read_parallel_files(options.text, target, name="text", documents=options.documents)
    _tell_skips(report)
    return lines if options.target_text else lines.remove_columns("target"), options.max_length, report.skipped


def _tell_skips(report: Any) -> None:
    if report.skipped:
        logger.warning(report.summary())


def _pack(
    lines: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int | None, positions: int
) -> PackedDocuments:
    """The documents that the lines make, packed as in training; a line that alone is longer is left out and counted."""
    most = max_length or positions
    if most > positions:
        raise UserError(
            f"--max_length: {most} tokens of a packed document; give at most {positions}, the positions of the model"
        )
    return pack_documents(lines, tokenizer, max_tokens=most, too_long="skip", name="text")


def pair_batches(model: PreTrainedModel, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Batch]]:
    """All pairs once, the longest first, with the places of a batch's rows in `pairs`; a long pair is a batch of its own."""
    lengths = [(len(source), len(labels)) for source, labels in pairs]
    order = sorted(range(len(lengths)), key=lambda place: (max(lengths[place]), lengths[place]), reverse=True)
    with tqdm(total=len(order), desc="analysing", unit="sentence", leave=False, disable=None) as bar:
        start = 0
        while start < len(order):
            longest = max(lengths[order[start]])
            size = max(1, min(BATCH_TOKENS // longest, BATCH_WEIGHTS // longest**2))
            places = order[start : start + size]
            yield places, pair_batch(model, [pairs[place] for place in places])
            bar.update(len(places))
            start += size


# Text, of a decoder-only model


def _read_text(name: str, options: AnalysisOptions) -> Subject:
    """The tokens of a file as one stream behind the end token, if there is one, cut into contexts.

    A context begins with the last token of the one before it, so that each token but the first is predicted once.
    """
    model, tokenizer = load_with_tokenizer(AutoModelForCausalLM, name)
    model.to(device_of(options.device)).eval()
    if options.text is None:
        return Subject(options, MODEL, model, tokenizer)
    positions = getattr(model.config, "max_position_embeddings", None) or MOST_CONTEXT
    length = min(positions, MOST_CONTEXT) if options.context is None else options.context
    if length > positions or length < 2:
        raise UserError(f"--context: {length} tokens; give 2 to {positions}, the positions of the model")
    text = "".join(f"{line}\n" for line in text_lines(text_file(options.text)))
    if not is_unicode(text):
        raise UserError(f"--text: {options.text!r} is not UTF-8; give a text")
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    if not ids:
        raise UserError(f"--text: the tokenizer of the model makes no tokens of {options.text!r}; give another text")
    stream = [*([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]), *ids]
    contexts = [stream[start : start + length] for start in range(0, max(len(stream) - 1, 1), length - 1)]
    facts = {"source_file": options.text, "tokens": len(ids), "context": length, "contexts": len(contexts)}
    batches = partial(_text_batches, contexts, model.device)
    return Subject(options, TEXT, model, tokenizer, batches=batches, facts={"text": facts})


def _text_batches(contexts: list[list[int]], device: torch.device) -> Iterator[Batch]:
    """All contexts in order, the last one, which may be shorter, by itself."""
    whole, size = contexts[:-1], max(1, BATCH_TOKENS // len(contexts[0]))
    groups = [whole[start : start + size] for start in range(0, len(whole), size)]
    for group in tqdm([*groups, contexts[-1:]], desc="analysing", unit="batch", leave=False, disable=None):
        yield text_batch(torch.tensor(group, device=device))


# Pictures, of a classifier


def _read_pictures(name: str, options: AnalysisOptions) -> Subject:
    model = load_whole(AutoModelForImageClassification, name)
    model.to(device_of(options.device)).eval()
    if options.images is None:
        return Subject(options, MODEL, model)
    if lacking := [each for each in ("image_size", "patch_size", "num_channels") if not hasattr(model.config, each)]:
        raise UserError(f"--images: the configuration of {name} has no {lacking[0]}; give a model such as a ViT")
    is_folder = Path(options.images).expanduser().is_dir()
    if is_folder == (options.image_labels is not None):
        raise UserError(
            f"--images: {options.images!r} is {'a folder' if is_folder else 'no folder'}; give a folder with a folder for each "
            "class, or an IDX file and --image_labels"
        )
    if is_folder:
        images, labels = _read_class_folders(options.images, model.config.label2id)
    else:
        images, labels = read_idx(options.images, 3), read_idx(options.image_labels, 1).astype(np.int64)
    if len(images) != len(labels) or not len(labels) or labels.max() >= model.config.num_labels:
        raise UserError(
            f"--image_labels: {len(labels):,} labels, up to class {max(labels, default=0)}, of {len(images):,} pictures; the "
            f"model has {model.config.num_labels} classes"
        )
    facts = {"images": options.images, "image_labels": options.image_labels}
    facts |= {"pictures": len(labels), "classes": len(np.unique(labels))}
    batches = partial(_picture_batches, images, labels, name, model)
    return Subject(options, INPUT, model, batches=batches, facts={"pictures": facts})


def _read_class_folders(folder: str, known: dict[str, int]) -> tuple[datasets.Dataset, np.ndarray]:
    rows = datasets.load_dataset(
        "imagefolder", data_dir=str(Path(folder).expanduser()), split="train", drop_labels=False
    )
    names = rows.features["label"].names
    if unknown := [name for name in names if name not in known]:
        told = ", ".join(list(map(str, known))[:5])
        raise UserError(
            f"--images: the class {unknown[0]!r} is none of the model's {len(known)}, {told} …; rename its folder"
        )
    return rows, np.array([int(known[names[label]]) for label in rows["label"]])


def read_idx(path: str | Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of a file of the form of MNIST (IDX), plain or .gz.

    dimensions: 3 for pictures (pictures, height, width), 1 for labels.

    Raises:
        UserError: the file is missing, damaged, or holds something else.
    """
    path = Path(path).expanduser()
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"no IDX file of bytes in {dimensions} dimensions")
        shape = np.frombuffer(content, ">i4", dimensions, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read ({one_line(error)}); give an IDX file, as MNIST has them, pictures and labels apart"
        ) from error


def _picture_batches(
    images: np.ndarray | datasets.Dataset, labels: np.ndarray, name: str, model: PreTrainedModel
) -> Iterator[Batch]:
    """All pictures in order."""
    config, processor = model.config, AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    tokens = math.prod(
        side // patch for side, patch in zip(pair(config.image_size), pair(config.patch_size), strict=True)
    )
    size = max(1, BATCH_TOKENS // tokens)
    for start in tqdm(range(0, len(labels), size), desc="analysing", unit="batch", leave=False, disable=None):
        numbers = range(start, min(start + size, len(labels)))
        pixels = processor(images=[_image(images[number], config) for number in numbers], return_tensors="pt")
        inputs = {"pixel_values": pixels["pixel_values"].to(model.device, model.dtype)}
        yield Batch(inputs, torch.from_numpy(labels[start : numbers.stop]).to(model.device))


def _image(found: Any, config: Any) -> Image.Image | torch.Tensor:
    """With as many channels as the model takes; a processor wants the one of a grey picture as a dimension of its own."""
    image = Image.fromarray(found) if isinstance(found, np.ndarray) else found["image"]
    if config.num_channels != 1:
        return image.convert("RGB")
    grey = image.convert("L").resize(pair(config.image_size)[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey))[..., None]
