"""What an analysis reads: pairs of lines, packed documents, the test split of a run, one stream of tokens, or
pictures."""

from __future__ import annotations

import sys
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

from reluformer.analysis.analyses import ANALYSES, DOCUMENTS, INPUT, MODEL, NEEDS, PAIRS, TEXT
from reluformer.analysis.collection import Batch, pair_batch, text_batch
from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training.data.corpus import CorpusReport, has_split, load_split, read_parallel_files
from reluformer.training.data.documents import PackedDocuments, pack_documents
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.run.run_folder import RECIPE_FILE
from reluformer.translating.loading import load_model_and_tokenizer, load_model_config, load_whole
from reluformer.translating.readers import is_unicode, text_file, text_lines
from reluformer.translating.translation import Translator, device_of

# Tokens of a batch, padding included; weights of one head and layer, such as those of a single pair of 1,024 tokens;
# pictures.
BATCH_TOKENS, BATCH_WEIGHTS, BATCH_PICTURES = 2_048, 2**20, 32
# Of a context, where neither the user nor the model says less.
MOST_CONTEXT = 1_024

Pair = tuple[list[int], list[int]]  # token ids of the source, and labels


@dataclass
class AnalysisOptions:
    """What `analyze` is asked for.

    what: names out of `ANALYSES`, or `all`: those that can be taken of the model and its input. model: folder or Hub
        id.
    output: folder; None: `analysis` in the model's folder. text: file of source lines, or any text for a decoder-only
        model;
    None: for the folder of a run, its test split. target_text: file of their translations; None: the model's own.
    documents: file that names the document of each line; the lines of one are then packed to texts of at most
    max_length tokens, by default the model's positions. context: tokens of a context of a decoder-only model; None: its
    positions, at most 1,024. images: for a classifier, a folder of pictures. device: None: a GPU if there is one.
    """

    what: Sequence[str]
    model: str
    output: str | None = None
    text: str | None = None
    target_text: str | None = None
    documents: str | None = None
    max_length: int | None = None
    context: int | None = None
    images: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class Subject:
    """What the analyses are taken of.

    has: the last of `NEEDS` that is there. pairs: token ids of an encoder-decoder's input; documents: what they were
        packed of.
    batches: a pass over the input, on the model's device. facts: what every result says of the input. notes: what a
    reader must know, one sentence each.
    """

    model: PreTrainedModel
    has: str = MODEL
    tokenizer: PreTrainedTokenizerBase | None = None
    pairs: list[Pair] = field(default_factory=list)
    documents: PackedDocuments | None = None
    batches: Callable[[], Iterator[Batch]] = list
    facts: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def allows(self, needs: str) -> bool:
        """Whether an analysis that needs this can be taken."""
        return NEEDS.index(needs) <= NEEDS.index(self.has)


def read_subject(options: AnalysisOptions) -> Subject:
    """Loads the model, and reads what it is to be run on.

    Raises:
        UserError: a model or file that cannot be read; options that do not belong to this kind of model, or not
            together.
    """
    kind, allowed, read = "a translation model", ("text", "target_text", "documents", "max_length"), _read_pairs
    config = load_model_config(options.model)
    if type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        kind, allowed, read = "a classifier of pictures", ("images",), _read_pictures
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        kind, allowed, read = "a decoder-only language model", ("text", "context"), _read_text
    for option in ("text", "target_text", "documents", "max_length", "context", "images"):
        if getattr(options, option) is not None and option not in allowed:
            raise UserError(f"--{option}: {options.model} is {kind}; leave it out, and give {' or '.join(allowed[:2])}")
    for option, needed in {"target_text": "text", "documents": "text", "max_length": "documents"}.items():
        if getattr(options, option) is not None and getattr(options, needed) is None:
            raise UserError(f"--{option}: given without --{needed}; give --{needed} too, or leave it out")
    return read(options)


# Pairs and documents, of an encoder-decoder


def _read_pairs(options: AnalysisOptions) -> Subject:
    model, tokenizer = load_model_and_tokenizer(options.model)
    model.to(device_of(options.device)).eval()
    try:
        loaded = _read_lines(options)
    except UserError as error:
        if options.text is not None or "all" not in options.what:
            raise
        return Subject(model, tokenizer=tokenizer, notes=[f"the run's own test split is left out: {error}"])
    if loaded is None:
        return Subject(model, tokenizer=tokenizer)
    lines, max_length, report = loaded
    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    facts: dict[str, Any] = {"source_file": options.text, "target": "given, teacher-forced"}
    notes = []
    if "target" not in lines.column_names:
        translator = Translator(model, tokenizer, split="none")  # what is analysed is a line as a whole
        lines = lines.add_column("target", translator(lines["source"], progress=True))
        facts |= {"target": "the model's own translation, teacher-forced", "decoding": translator.decoding}
        notes.append("no --target_text: the decoder reads the model's own translation")
    documents = None
    if "document" in lines.column_names:
        most = positions if max_length is None else max_length
        if not 0 < most <= positions:
            raise UserError(f"--max_length: {most} tokens; give 1 to {positions}, the positions of the model")
        documents = pack_documents(lines, tokenizer, max_tokens=most, too_long="skip", name="text")
        facts |= {"documents": documents.report.documents, "packed_documents": len(documents.pairs), "max_length": most}
    of_text = lines if documents is None else documents.pairs
    encoded, packed = encode_pairs(of_text, tokenizer, max_length=positions, name="text")
    packed = packed if documents is None else documents.report
    notes += [each.summary() for each in (report, packed) if each.skipped]
    pairs: list[Pair] = list(zip(encoded["input_ids"], encoded["labels"], strict=True))
    facts |= {
        "sentences": packed.kept,
        "source_tokens": sum(len(source) for source, _ in pairs),
        "target_tokens": sum(len(labels) for _, labels in pairs),
        "skipped": report.skipped | packed.skipped,
    }
    return Subject(
        model,
        PAIRS if documents is None else DOCUMENTS,
        tokenizer,
        pairs,
        documents,
        lambda: (batch for _, batch in pair_batches(model, pairs)),
        {"text": facts},
        notes,
    )


def _read_lines(options: AnalysisOptions) -> tuple[datasets.Dataset, int | None, CorpusReport] | None:
    """Columns "source", perhaps "target", and "document" where they are to be packed; the limit of packing; what was
    skipped."""
    if options.text is not None:
        # One rule for one file and for two: a file beside itself is never misaligned.
        target = options.target_text or options.text
        lines, report = read_parallel_files(options.text, target, name="text", documents=options.documents)
        return lines if options.target_text else lines.remove_columns("target"), options.max_length, report
    if all(name in ANALYSES and ANALYSES[name][1] == MODEL for name in options.what):
        return None
    recipe = Path(options.model) / RECIPE_FILE
    data = load_recipe(recipe).data if recipe.is_file() else None
    if data is None or not has_split(data, "test"):
        return None
    lines, report = load_split(data, "test")
    if data.packing is None:
        lines = lines.select_columns(["source", "target"])
    return lines, data.max_length, report


def pair_batches(model: PreTrainedModel, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Batch]]:
    """All pairs once, the longest first, with the indices of a batch's rows in `pairs`; a long pair is a batch of its
    own."""
    lengths = [max(len(source), len(labels)) for source, labels in pairs]
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    with tqdm(total=len(order), desc="analysing", unit="sentence", leave=False, disable=None) as bar:
        while order:
            longest = lengths[order[0]]
            size = max(1, min(BATCH_TOKENS // longest, BATCH_WEIGHTS // longest**2))
            indices, order = order[:size], order[size:]
            yield indices, pair_batch(model, [pairs[index] for index in indices])
            bar.update(len(indices))


# Text, of a decoder-only model


def _read_text(options: AnalysisOptions) -> Subject:
    """The tokens of a file as one stream after the end token, if there is one, cut into contexts.

    A context begins with the last token of the one before it, so that each token but the first is predicted once.
    """
    model, tokenizer = load_model_and_tokenizer(options.model, model_class=AutoModelForCausalLM)
    model.to(device_of(options.device)).eval()
    if options.text is None:
        return Subject(model)
    positions = getattr(model.config, "max_position_embeddings", None) or MOST_CONTEXT
    length = min(positions, MOST_CONTEXT) if options.context is None else options.context
    if length > positions or length < 2:
        raise UserError(f"--context: {length} tokens; give 2 to {positions}, the positions of the model")
    text = "".join(f"{line}\n" for line in text_lines(text_file(options.text)))
    if not is_unicode(text) or not text.strip():
        raise UserError(f"--text: {options.text!r} is empty or not UTF-8; give a text")
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    stream = [*([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]), *ids]
    contexts = [stream[start : start + length] for start in range(0, max(len(stream) - 1, 1), length - 1)]
    facts = {"source_file": options.text, "tokens": len(ids), "context": length, "contexts": len(contexts)}
    batches = partial(_text_batches, contexts, model.device)
    return Subject(model, TEXT, tokenizer, batches=batches, facts={"text": facts})


def _text_batches(contexts: list[list[int]], device: torch.device) -> Iterator[Batch]:
    """All contexts in order, the last one, which may be shorter, by itself."""
    whole, size = contexts[:-1], max(1, BATCH_TOKENS // len(contexts[0]))
    groups = [whole[start : start + size] for start in range(0, len(whole), size)]
    for group in tqdm([*groups, contexts[-1:]], desc="analysing", unit="batch", leave=False, disable=None):
        yield text_batch(torch.tensor(group, device=device))


# Pictures, of a classifier


def _read_pictures(options: AnalysisOptions) -> Subject:
    model = load_whole(AutoModelForImageClassification, options.model)
    model.to(device_of(options.device)).eval()
    if options.images is None:
        return Subject(model)
    known = Image.registered_extensions()  # also of what Pillow can only write
    files = [
        file for file in Path(options.images).expanduser().rglob("*") if known.get(file.suffix.lower()) in Image.OPEN
    ]
    if not files:
        raise UserError(f"--images: {options.images!r} holds no pictures; give a folder of picture files")
    facts = {"images": options.images, "pictures": len(files)}
    batches = partial(_picture_batches, sorted(files), options.model, model)
    return Subject(model, INPUT, batches=batches, facts={"pictures": facts})


def _picture_batches(files: list[Path], name: str, model: PreTrainedModel) -> Iterator[Batch]:
    """All pictures in order, with as many channels as the model takes; a processor wants that of a grey one as a
    dimension."""
    processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    grey = getattr(model.config, "num_channels", 3) == 1
    for start in tqdm(range(0, len(files), BATCH_PICTURES), desc="analysing", unit="batch", leave=False, disable=None):
        loaded = [_picture(file, grey) for file in files[start : start + BATCH_PICTURES]]
        pixels = processor(images=loaded, return_tensors="pt")["pixel_values"]
        yield Batch({"pixel_values": pixels.to(model.device, model.dtype)})


def _picture(file: Path, grey: bool) -> np.ndarray | Image.Image:
    try:
        with Image.open(file) as image:
            return np.array(image.convert("L"))[..., None] if grey else image.convert("RGB")
    except (OSError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
        raise UserError(f"--images: {file} cannot be read ({one_line(error)}); take it out of the folder") from error
