"""`reluformer analyze`: the wanted analyses of a model, each with its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from reluformer.analysis.analyses import ANALYSES, DOCUMENTS, INPUT, MODEL, NOTHING, PAIRS, TEXT
from reluformer.analysis.inputs import AnalysisOptions, Subject, read_subject
from reluformer.analysis.results import Measured, model_facts, write_measured
from reluformer.configuration.errors import UserError

_MISSING = {
    MODEL: "--model: missing; {} needs a model, or --run",
    INPUT: "--text: missing; {} needs a text, or --images for a classifier of pictures",
    TEXT: "--text: missing; {} needs a model of language and a text",
    PAIRS: "--text: missing; {} needs a translation model and source lines",
    DOCUMENTS: "--documents: missing; {} needs a translation model, and a file that names the document of each line",
}


@dataclass
class Analysed:
    """What was written, and what a reader should know. summaries: one line for each analysis."""

    files: list[Path] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def analyze(options: AnalysisOptions) -> Analysed:
    """Takes the analyses that `options.what` names and writes `<what>.json`, `<what>.csv` and pictures of each.

    Of `all`, one that cannot be taken of the model is left out with a note.

    Raises:
        UserError: options that do not fit together, files or a model that cannot be read, a model of which an analysis cannot
            be taken.
    """
    takes_all = list(options.what) == ["all"]
    _check(options, takes_all)
    folder = _folder(options)
    subject = read_subject(options)
    names = [
        name for name, each in ANALYSES.items() if takes_all and each.needs != NOTHING and subject.allows(each.needs)
    ]
    names = names or [name for name in ANALYSES if name in options.what]
    for name in names:
        if not subject.allows(needs := ANALYSES[name].needs):
            raise UserError(_MISSING[MODEL if subject.model is None else needs].format(name))
    facts = dict(subject.facts)
    if subject.model is not None:
        model = options.model or options.run
        facts |= {"model": model_facts(model, subject.model.config), "device": str(subject.model.device)}
    done = Analysed(notes=list(subject.notes))
    for name in names:
        try:
            measured = measure(name, subject)
        except UserError as error:
            if not takes_all:
                raise
            done.notes.append(f"{name} is left out: {error}")
            continue
        title = f"{name}: {Path(options.model or options.run or '').name}"
        done.files += write_measured(measured, folder / name, title, facts)
        done.summaries.append(f"{name}: {measured.summary}")
        done.notes += measured.notes
    return done


def measure(name: str, subject: Subject) -> Measured:
    """The numbers of one analysis out of `ANALYSES`."""
    module, function = ANALYSES[name].function.split(".")
    return getattr(import_module(f"reluformer.analysis.{module}"), function)(subject)


def _check(options: AnalysisOptions, takes_all: bool) -> None:
    unknown = [name for name in options.what if name not in ANALYSES and not takes_all]
    if unknown or not options.what:
        raise UserError(
            f"--what: {', '.join(unknown) or 'nothing'} is unknown; choose of {', '.join(ANALYSES)}, or all"
        )
    if options.model is not None and options.run is not None:
        raise UserError("--model: --run says it already; leave one of the two out")
    if takes_all and options.model is None and options.run is None:
        raise UserError(_MISSING[MODEL].format("--what all"))
    if not all(0 < percentage <= 100 for percentage in options.top_p):
        raise UserError(f"--top_p: {list(options.top_p)} must be percentages above 0 and up to 100")


def _folder(options: AnalysisOptions) -> Path:
    """Where the files go."""
    model = options.model or options.run
    if options.output is None and (model is None or not Path(model).is_dir()):
        raise UserError("--output: missing; without a model's folder, say where to write the results")
    return Path(options.output or Path(model) / "analysis")
