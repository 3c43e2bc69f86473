"""`reluformer analyze`: which figures to take of a model on a text, one pass for all of them, and their files."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from reluformer.analysis import ppl_sparsity, top_p
from reluformer.analysis import variance as simulation
from reluformer.analysis.collection import AnyBatch, observe
from reluformer.analysis.figure import (
    MODEL,
    NOTHING,
    TEXT,
    Analysed,
    Figure,
    Subject,
    figure_class,
    make_figure,
    model_facts,
)
from reluformer.analysis.texts import (
    batches,
    causal_batches,
    encode_text,
    image_batches,
    pack_text,
    read_causal_text,
    read_lines,
    read_pictures,
    require_sizes,
)
from reluformer.configuration.analyses import ANALYSES
from reluformer.configuration.errors import UserError
from reluformer.training.loading import (
    device_of,
    is_decoder_only,
    is_image_classifier,
    load_image_classifier,
    load_language_model,
    load_model_and_tokenizer,
)


@dataclass
class AnalysisOptions:
    """What `analyze` is asked for.

    what: names out of `ANALYSES`, or `all`: those that can be taken of the model and the text. model: folder or Hub id.
    text: file of source lines, or any text for a decoder-only model.
    target_text: file of their translations; None: the model's own. documents: file that names the document of each line; the
    lines of one are then packed to texts of at most max_length tokens, see `pack_text`. output: folder; None: `analysis` in the
    model's folder. batch_tokens: see `batches`. num_beams: of the model's own translation. top_p: percentages. maps: how many
    pairs attention-maps draws, map_tokens: how many tokens of each side. context: tokens of a context of a decoder-only model,
    see `read_causal_text`. images, image_labels: pictures for a classifier, see `read_pictures`. ppl_increase,
    sparsity_tokens: see `PPLSparsity`. lengths, samples, seed: of variance-simulation. device: None: a GPU if there is one.
    """

    what: Sequence[str]
    model: str | None = None
    text: str | None = None
    target_text: str | None = None
    documents: str | None = None
    max_length: int | None = None
    output: str | None = None
    batch_tokens: int = 2_048
    num_beams: int = 5
    top_p: Sequence[float] = top_p.DEFAULT_PERCENTAGES
    maps: int = 1
    map_tokens: int = 40
    context: int | None = None
    images: str | None = None
    image_labels: str | None = None
    ppl_increase: Sequence[float] = ppl_sparsity.DEFAULT_INCREASES
    sparsity_tokens: int = ppl_sparsity.DEFAULT_TOKENS
    lengths: Sequence[int] = simulation.DEFAULT_LENGTHS
    samples: int = simulation.DEFAULT_SAMPLES
    seed: int = 0
    device: str | None = None

    @property
    def every(self) -> bool:
        """Whether all figures are wanted that can be taken of the model and the text."""
        return list(self.what) == ["all"]

    @property
    def names(self) -> list[str]:
        """The figures that are wanted."""
        if not self.every:
            return [name for name in ANALYSES if name in self.what]
        kinds = {name: figure_class(name) for name in ANALYSES}
        return [
            name
            for name, kind in kinds.items()
            if kind.needs == MODEL
            or (kind.needs == TEXT and (self.text or self.images) and (self.documents or not kind.of_documents))
        ]

    def check(self) -> None:
        """Raises a `UserError` for what is missing, unknown or out of range."""
        if unknown := [name for name in self.what if name not in ANALYSES and not self.every]:
            raise UserError(f"--what: {', '.join(unknown)} is unknown; choose of {', '.join(ANALYSES)}, or all")
        if not self.what:
            raise UserError(f"--what: missing; choose of {', '.join(ANALYSES)}, or all")
        needs = {figure_class(name).needs: name for name in reversed(self.names)}
        if self.model is None and (self.every or needs.keys() - {NOTHING}):
            raise UserError(
                f"--model: missing; {needs.get(TEXT) or needs.get(MODEL) or '--what all'} needs a model, or --run"
            )
        if TEXT in needs and self.text is None and self.images is None:
            raise UserError(
                f"--text: missing; {needs[TEXT]} needs a file of source lines, or --images for a classifier"
            )
        for option, needed in _GO_WITH.items():
            if getattr(self, option) is not None and getattr(self, needed) is None:
                raise UserError(f"--{option}: given without --{needed}; give --{needed} too, or leave it out")
        if self.documents is None and self.images is None:
            for name in self.names:
                if figure_class(name).of_documents:
                    raise UserError(f"--documents: missing; {name} needs a file that names the document of each line")
        require_sizes(**{name: getattr(self, name) for name in _SIZES})
        if not all(0 < percentage <= 100 for percentage in self.top_p):
            raise UserError(f"--top_p: {list(self.top_p)} must be percentages above 0 and up to 100")
        if not all(0 < percentage < float("inf") for percentage in self.ppl_increase):
            raise UserError(f"--ppl_increase: {list(self.ppl_increase)} must be percentages above 0")

    @property
    def folder(self) -> Path:
        """Where the files go.

        Raises:
            UserError: neither an output nor a model's folder to write into.
        """
        if self.output is not None:
            return Path(self.output)
        if self.model is not None and Path(self.model).is_dir():
            return Path(self.model) / "analysis"
        raise UserError("--output: missing; without a model's folder, say where to write the results")


_GO_WITH = {"image_labels": "images", "target_text": "text", "documents": "target_text", "max_length": "documents"}
_SIZES = ("batch_tokens", "num_beams", "maps", "map_tokens", "sparsity_tokens")


def analyze(options: AnalysisOptions) -> Analysed:
    """Takes the figures that `options.what` names and writes `<what>.json`, `<what>.csv` and pictures of each.

    Raises:
        UserError: options that do not fit together, files or a model that cannot be read, a model of which a figure
            cannot be taken.
    """
    options.check()
    session = _Session(options)
    session.write(NOTHING, Subject(), {})
    if session.figures[MODEL] or session.figures[TEXT]:
        of_model = _of_translations
        if is_image_classifier(options.model):
            of_model = _of_images
        elif is_decoder_only(options.model):
            of_model = _of_language
        of_model(options, session)
    return session.done


class _Session:
    """One call of `analyze`: its figures by what they need, and what every file says."""

    def __init__(self, options: AnalysisOptions) -> None:
        self.options, self.done = options, Analysed()
        figures = [make_figure(name, options) for name in options.names]
        self.figures = {need: [figure for figure in figures if figure.needs == need] for need in (NOTHING, MODEL, TEXT)}

    def refuse(
        self, kind: str, options: Sequence[str], has: Callable[[Figure | type[Figure]], bool] | None = None
    ) -> None:
        """Refuses options, and figures that cannot be taken of this kind of model; of all, these are left out."""
        for name in options:
            if getattr(self.options, name) is not None:
                raise UserError(f"--{name}: {self.options.model} is {kind}; leave it out")
        figures = [] if has is None else [*self.figures[MODEL], *self.figures[TEXT]]
        lacking = [figure.name for figure in figures if not has(figure)]
        if lacking and not self.options.every:
            known = ", ".join(name for name in ANALYSES if has(figure_class(name)))
            raise UserError(f"--what: {lacking[0]} cannot be taken of {self.options.model}, {kind}; choose of {known}")
        self.figures = {
            need: [figure for figure in held if figure.name not in lacking] for need, held in self.figures.items()
        }

    def prepare(self, model: PreTrainedModel) -> dict[str, Any]:
        """Puts the model on its device, and checks the figures on a text. Returns what every file says of the model.

        A figure that cannot be taken of the model is an error, or, of all, left out with a note.
        """
        model.to(device_of(self.options.device)).eval()
        for figure in list(self.figures[TEXT]):
            try:
                figure.require(model)
            except UserError as error:
                if not self.options.every:
                    raise
                self.figures[TEXT].remove(figure)
                self.done.notes.append(f"{figure.name} is left out: {error}")
        return {"model": model_facts(self.options.model, model.config)}

    def observe(self, model: PreTrainedModel, stream: Generator[AnyBatch]) -> None:
        """One pass over the text for all figures that watch it."""
        watches = [figure.watch(model) for figure in self.figures[TEXT]]
        attention = [watch.attention for watch in watches if watch.attention is not None]
        names = ("on_scores", "on_update", "on_batch", "on_logits")
        hooks = {name: _each([hook for watch in watches if (hook := getattr(watch, name))]) for name in names}
        if attention or any(hooks.values()):
            # Closed at once where a figure cannot be taken, so that the error stands below the progress bar.
            with closing(stream):
                observe(model, stream, attention=attention, **hooks)

    def write(self, need: str, subject: Subject, facts: dict[str, Any]) -> None:
        for figure in self.figures[need]:
            written = figure.write(subject, self.options.folder, f"{figure.name}: {_short(self.options.model)}", facts)
            self.done.files += written.files
            self.done.summaries += written.summaries
            self.done.notes += written.notes


def _of_images(options: AnalysisOptions, session: _Session) -> None:
    kind = "a classifier of pictures"
    session.refuse(kind, ("target_text", "documents", "context"), lambda each: each.of_images)
    if options.images is None:
        raise UserError(f"--images: {options.model} is {kind}; give --images and no --text")
    session.refuse(kind, ("text",))
    model = load_image_classifier(options.model, attn_implementation="eager")
    facts = session.prepare(model)
    pictures = read_pictures(options.images, options.image_labels, options.model, model)
    facts["device"] = str(model.device)
    facts["pictures"] = {"images": options.images, "image_labels": options.image_labels, **pictures.facts}
    session.observe(model, image_batches(pictures, model, batch_tokens=options.batch_tokens))
    session.write(TEXT, Subject(model), facts)


def _of_language(options: AnalysisOptions, session: _Session) -> None:
    kind = "a decoder alone, which translates nothing"
    session.refuse(kind, ("documents", "target_text", "images"), lambda each: each.of_decoders)
    model, tokenizer = load_language_model(options.model, attn_implementation="eager")
    facts = session.prepare(model)
    text = read_causal_text(options.text, model, tokenizer, context=options.context)
    facts |= {"device": str(model.device), "text": {"source_file": options.text, **text.facts}}
    session.observe(model, causal_batches(text, model.device, batch_tokens=options.batch_tokens))
    session.write(TEXT, Subject(model, tokenizer), facts)


def _of_translations(options: AnalysisOptions, session: _Session) -> None:
    session.refuse("a translation model", ("images", "context"))
    files = (options.text, options.target_text, options.documents)
    lines, skipped = read_lines(*files) if session.figures[TEXT] else (None, {})
    if lines is None and options.text is not None:
        session.done.notes.append("these are properties of the weights alone; --text is not read")
    model, tokenizer = load_model_and_tokenizer(options.model, attn_implementation="eager")
    facts = session.prepare(model)
    session.write(MODEL, Subject(model), facts)
    if not session.figures[TEXT]:
        return
    if options.documents is not None:
        text = pack_text(lines, model, tokenizer, max_length=options.max_length)
    else:
        most = [figure.most_pairs for figure in session.figures[TEXT]]
        if None not in most:  # no need to translate what no figure looks at
            lines = lines.select(range(min(max(most), len(lines))))
        text = encode_text(lines, model, tokenizer, num_beams=options.num_beams)
    if options.target_text is None:
        session.done.notes.append("no --target_text: the decoder reads the model's own translation")
    read = {"source_file": options.text, "target_file": options.target_text}
    read |= {"documents_file": options.documents} if options.documents is not None else {}
    facts["device"] = str(model.device)
    facts["text"] = {**read, **text.facts, "skipped": {**skipped, **text.facts["skipped"]}}
    session.observe(model, batches(text.pairs, model.device, batch_tokens=options.batch_tokens))
    session.write(TEXT, Subject(model, tokenizer, text.pairs, text.documents), facts)


def _each(callbacks: list[Callable[..., None]]) -> Callable[..., None] | None:
    """One function that calls all of them; None if there are none."""

    def call(*arguments: Any) -> None:  # what a hook returns would take the place of the module's output
        for callback in callbacks:
            callback(*arguments)

    return call if callbacks else None


def _short(name: str | None) -> str:
    """The last part of a path or id, for a title."""
    return re.split(r"[/\\]", str(name).rstrip("/\\"))[-1]
