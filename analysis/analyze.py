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
from reluformer.analysis import variance_simulation as simulation
from reluformer.analysis.causal_texts import causal_batches, read_causal_text
from reluformer.analysis.collection import AnyBatch, observe
from reluformer.analysis.figure import MODEL, NOTHING, TEXT, Analysed, Figure, Subject, figure_class, make_figure
from reluformer.analysis.pictures import image_batches, read_pictures
from reluformer.analysis.result_files import model_facts
from reluformer.analysis.texts import AnalysisText, batches, encode_text, pack_text, read_lines, require_sizes
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
        text = self.text is not None or self.images is not None
        return [
            name
            for name in ANALYSES
            if (kind := figure_class(name)).needs == MODEL
            or (kind.needs == TEXT and text and (self.documents is not None or not kind.of_documents))
        ]

    def check(self) -> None:
        """Raises a `UserError` for what is missing, unknown or out of range."""
        if self.every and self.model is None:
            raise UserError("--model: missing; --what all needs a model, or --run")
        unknown = [] if self.every else [name for name in self.what if name not in ANALYSES]
        if unknown or not self.what:
            raise UserError(
                f"--what: {', '.join(unknown) or 'nothing'} is unknown; choose of {', '.join(ANALYSES)}, or all"
            )
        if self.model is None and (needed := [name for name in self.names if figure_class(name).needs != NOTHING]):
            raise UserError(f"--model: missing; {needed[0]} needs a model")
        on_text = [name for name in self.names if figure_class(name).needs == TEXT]
        if self.text is None and self.images is None and on_text:
            pictures = ", or --images for a classifier" if figure_class(on_text[0]).of_images else ""
            raise UserError(f"--text: missing; {on_text[0]} needs a file of source lines{pictures}")
        if self.images is None and self.image_labels is not None:
            raise UserError("--image_labels: given without --images; give the pictures too")
        if self.text is None and self.target_text is not None:
            raise UserError("--target_text: given without --text; give the source lines too")
        self._check_documents()
        names = ("batch_tokens", "num_beams", "maps", "map_tokens", "sparsity_tokens")
        require_sizes(**{name: getattr(self, name) for name in names})
        if not self.top_p or not all(0 < percentage <= 100 for percentage in self.top_p):
            raise UserError(f"--top_p: {list(self.top_p)} must be percentages above 0 and up to 100")
        if not self.ppl_increase or not all(0 < percentage < float("inf") for percentage in self.ppl_increase):
            raise UserError(f"--ppl_increase: {list(self.ppl_increase)} must be percentages above 0")
        if self.output is not None and Path(self.output).is_file():
            raise UserError(f"--output: {self.output!r} is a file; give a folder")

    def _check_documents(self) -> None:
        if self.documents is None:
            of_documents = [name for name in self.names if figure_class(name).of_documents]
            if of_documents and self.images is None:
                raise UserError(
                    f"--documents: missing; {of_documents[0]} needs a file that names the document of each line"
                )
            if self.max_length is not None:
                raise UserError("--max_length: given without --documents; lines are not packed, so leave it out")
            return
        if self.text is None:
            raise UserError("--documents: given without --text; give the source lines too")
        if self.target_text is None:
            raise UserError("--target_text: missing; documents are read with their translations, line by line")
        if self.max_length is not None and self.max_length < 2:
            raise UserError(f"--max_length: {self.max_length} tokens of a packed document; give at least 2")

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


def analyze(options: AnalysisOptions) -> Analysed:
    """Takes the figures that `options.what` names and writes `<what>.json`, `<what>.csv` and pictures of each.

    Raises:
        UserError: options that do not fit together, files or a model that cannot be read, a model of which a figure
            cannot be taken.
    """
    options.check()
    return _Session(options).run()


class _Session:
    """One call of `analyze`: the order of the steps, and what every file says."""

    def __init__(self, options: AnalysisOptions) -> None:
        self.options, self.done = options, Analysed()
        figures = [make_figure(name, options) for name in options.names]
        self.figures = {
            needs: [figure for figure in figures if figure.needs == needs] for needs in (NOTHING, MODEL, TEXT)
        }

    def run(self) -> Analysed:
        if self.figures[NOTHING]:
            self._write(self.figures[NOTHING], self.options.folder, Subject(), {})
        if self.figures[MODEL] or self.figures[TEXT]:
            self._of_model()
        return self.done

    def _of_model(self) -> None:
        if is_image_classifier(self.options.model):
            self._of_image_classifier()
        elif self.options.images is not None:
            raise UserError(f"--images: {self.options.model} is no classifier of pictures; give --text")
        elif is_decoder_only(self.options.model):
            self._of_language_model()
        else:
            self._of_translation_model()

    def _of_image_classifier(self) -> None:
        options = self.options
        self._refuse_what_is_lacking("a classifier of pictures", lambda figure: figure.of_images)
        if options.images is None or options.text is not None:
            raise UserError(f"--images: {options.model} is a classifier of pictures; give --images and no --text")
        model = load_image_classifier(options.model, attn_implementation="eager")
        folder = options.folder
        model.to(device_of(options.device)).eval()
        on_text = self._fitting(model)
        pictures = read_pictures(options.images, options.image_labels, options.model, model)
        read = {"images": options.images, "image_labels": options.image_labels, **pictures.facts}
        facts = {"model": model_facts(options.model, model.config), "device": str(model.device), "pictures": read}
        self._observe(model, image_batches(pictures, model, batch_tokens=options.batch_tokens))
        self._write(on_text, folder, Subject(model), facts)

    def _of_language_model(self) -> None:
        options = self.options
        self._refuse_what_is_lacking("a decoder alone", lambda figure: figure.of_decoders)
        for name in ("documents", "target_text"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name}: {options.model} is a decoder alone, which translates nothing; leave it out")
        model, tokenizer = load_language_model(options.model, attn_implementation="eager")
        folder = options.folder
        model.to(device_of(options.device)).eval()
        text = read_causal_text(options.text, model, tokenizer, context=options.context)
        read = {"source_file": options.text, **text.facts}
        facts = {"model": model_facts(options.model, model.config), "device": str(model.device), "text": read}
        on_text = self._fitting(model)
        self._observe(model, causal_batches(text, model.device, batch_tokens=options.batch_tokens))
        self._write(on_text, folder, Subject(model, tokenizer), facts)

    def _fitting(self, model: PreTrainedModel) -> list[Figure]:
        """The figures on a text. One that cannot be taken of the model is an error, or, of all, left out with a note."""
        for figure in list(self.figures[TEXT]):
            try:
                figure.require(model)
            except UserError as error:
                if not self.options.every:
                    raise
                self.figures[TEXT].remove(figure)
                self.done.notes.append(f"{figure.name} is left out: {error}")
        return self.figures[TEXT]

    def _refuse_what_is_lacking(self, kind: str, has: Callable[[Figure | type[Figure]], bool]) -> None:
        if self.options.every:
            self.figures = {needs: [each for each in every if has(each)] for needs, every in self.figures.items()}
            return
        if lacking := [each.name for each in (*self.figures[MODEL], *self.figures[TEXT]) if not has(each)]:
            known = ", ".join(name for name in ANALYSES if has(figure_class(name)))
            raise UserError(f"--what: {lacking[0]} cannot be taken of {self.options.model}, {kind}; choose of {known}")

    def _of_translation_model(self) -> None:
        options, on_text = self.options, self.figures[TEXT]
        if options.context is not None:
            raise UserError(f"--context: is for decoder-only models, and {options.model} is none; leave it out")
        files = (options.text, options.target_text, options.documents)
        lines, skipped = read_lines(*files) if on_text else (None, {})
        if options.text is not None and not on_text:
            names = [figure.name for figure in self.figures[MODEL]]
            self.done.notes += [f"{name} is a property of the weights alone; --text is not read" for name in names]
        model, tokenizer = load_model_and_tokenizer(options.model, attn_implementation="eager")
        folder = options.folder  # not before: a model that does not exist is the first thing to say
        model.to(device_of(options.device)).eval()
        facts: dict[str, Any] = {"model": model_facts(options.model, model.config)}
        on_text = self._fitting(model)
        self._write(self.figures[MODEL], folder, Subject(model), facts)
        if on_text:
            if options.documents is not None:
                text = pack_text(lines, model, tokenizer, max_length=options.max_length)
            else:
                most = [figure.most_pairs for figure in on_text]
                if None not in most:  # no need to translate what no figure looks at
                    lines = lines.select(range(min(max(most), len(lines))))
                text = encode_text(lines, model, tokenizer, num_beams=options.num_beams)
            facts |= {"device": str(model.device), "text": self._text_facts(text, skipped)}
            stream = batches(text.pairs, model.device, batch_tokens=options.batch_tokens)
            self._observe(model, stream)
            self._write(on_text, folder, Subject(model, tokenizer, text.pairs, text.documents), facts)

    def _text_facts(self, text: AnalysisText, skipped: dict[str, int]) -> dict[str, Any]:
        if self.options.target_text is None:
            self.done.notes.append("no --target_text: the decoder reads the model's own translation")
        files = {"source_file": self.options.text, "target_file": self.options.target_text}
        if self.options.documents is not None:
            files["documents_file"] = self.options.documents
        return {**files, **text.facts, "skipped": {**skipped, **text.facts["skipped"]}}

    def _observe(self, model: PreTrainedModel, stream: Generator[AnyBatch]) -> None:
        """One pass over the text for all figures that watch it."""
        watches = [figure.watch(model) for figure in self.figures[TEXT]]
        attention = [watch.attention for watch in watches if watch.attention is not None]
        names = ("on_scores", "on_update", "on_batch", "on_logits")
        hooks = {name: _each([hook for watch in watches if (hook := getattr(watch, name))]) for name in names}
        if attention or any(hooks.values()):
            # Closed at once where a figure cannot be taken, so that the error stands below the progress bar.
            with closing(stream):
                observe(model, stream, attention=attention, **hooks)

    def _write(self, figures: list[Figure], folder: Path, subject: Subject, facts: dict[str, Any]) -> None:
        for figure in figures:
            title = f"{figure.name}: {_short(self.options.model)}"
            written = figure.write(subject, folder, title, facts)
            self.done.files += written.files
            self.done.summaries += written.summaries
            self.done.notes += written.notes


def _each(callbacks: list[Callable[..., None]]) -> Callable[..., None] | None:
    """One function that calls all of them; None if there are none."""

    def call(*arguments: Any) -> None:  # what a hook returns would take the place of the module's output
        for callback in callbacks:
            callback(*arguments)

    return call if callbacks else None


def _short(name: str | None) -> str:
    """The last part of a path or id, for a title."""
    return re.split(r"[/\\]", str(name).rstrip("/\\"))[-1]
