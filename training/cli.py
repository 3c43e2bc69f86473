"""The command line `reluformer`: train, evaluate, translate, analyze, convert, study, card, publish, kernel and space.

Libraries that take seconds to import are imported inside the commands, so that `reluformer --help` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from reluformer.training.errors import PeerLost, TrainingStopped, UserError, one_line
from reluformer.training.long_sources import LONG_SOURCES
from reluformer.training.text_lines import check_output, output, read_lines, texts_of_arguments, write_lines

# Those of an interruption are what a shell tells of a process that the signal ended: 128 + SIGINT, 128 + SIGTERM.
EXIT_OK, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_STOPPED = 0, 2, 130, 143
EXIT_PEER_LOST = 74  # EX_IOERR of sysexits.h
EXIT_BROKEN_PIPE = 141  # of a program that a closed pipe ends, to a shell
# What the machine refuses, whatever the command: one line with the file, not a traceback.
_REFUSALS_OF_THE_SYSTEM = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EISDIR", "ENAMETOOLONG", "ENOSPC", "ENOTDIR", "EPERM", "EROFS")
    if hasattr(errno, name)  # Windows has no EDQUOT
}
# What `Translator` takes where nothing is said, for help texts: importing it takes seconds.
DECODING = {"num_beams": "5", "length_penalty": "1.0", "batch_tokens": "4096"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; None takes the process' own, and ends the process where a launcher of several
            has started it (`reluformer.training.launch.end_worker`).

    Returns:
        Exit status: 0, 2 for what a person must change (one line on stderr), 74 when another process of the training was
        lost, 130 when interrupted, 141 when whoever reads the output has closed it, 143 when a training was stopped by
        SIGTERM and has saved a checkpoint.
    """
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # what a help text left; a closed pipe is found here, not when Python ends
    except BrokenPipeError:
        if not _leave_closed_pipes():
            raise
        status = EXIT_BROKEN_PIPE
    if argv is None:
        from reluformer.training.launch import end_worker

        end_worker(status)
    return status


def _run(arguments: list[str]) -> int:
    try:
        chosen = _main_parser().parse_args(arguments[:1])
        status = _COMMANDS[chosen.command](arguments[1:])
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"reluformer: error: {one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except TrainingStopped as stop:
        print(f"reluformer: {stop}", file=sys.stderr)
        return EXIT_STOPPED
    except PeerLost as loss:
        print(f"reluformer: {loss}", file=sys.stderr, flush=True)
        return EXIT_PEER_LOST
    except KeyboardInterrupt as interrupt:
        print(": ".join(["reluformer: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse: --help, --version and --print_config
        return stop.code if isinstance(stop.code, int) else EXIT_OK
    except RuntimeError as error:
        from reluformer.attention_compiled import CompiledAttentionError

        if not isinstance(error, CompiledAttentionError):
            raise
        print(f"reluformer: error: {one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except OSError as error:
        if error.errno not in _REFUSALS_OF_THE_SYSTEM:
            raise
        named = "" if error.filename is None else f"{error.filename}: "
        print(f"reluformer: error: {one_line(f'{named}{error.strerror}')}", file=sys.stderr)
        return EXIT_USER_ERROR


def _leave_closed_pipes() -> bool:
    """Whether stdout or stderr is a pipe that nobody reads; what is still to be written to it goes nowhere.

    Python writes it when it ends, and would report the closed pipe once more.
    """
    closed = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
    for stream in closed:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    return bool(closed)


def _has_no_reader(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (AttributeError, io.UnsupportedOperation):  # Windows, or a stream that is no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class _Parser(argparse.ArgumentParser):
    """argparse, with mistakes as `UserError` rather than usage and exit."""

    def error(self, message: str) -> None:
        raise UserError(f"{message}; see `{self.prog} --help`")


def _main_parser() -> argparse.ArgumentParser:
    from importlib.metadata import version

    parser = _Parser(
        prog="reluformer",
        description="Trains, evaluates and uses ReLUFormer models (arXiv 2302.06461).",
        epilog="`reluformer <command> --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"reluformer {version('reluformer')}")
    parser.add_argument(
        "command",
        choices=list(_COMMANDS),
        help="train: a model after a recipe · evaluate: a run on one of its splits · translate: text with a model · "
        "analyze: attention and feed-forward memories of a model · convert: a MarianMT checkpoint to a ReLUFormer · "
        "study: the tables and figures of the paper · card: the model card of a run · publish: a run on the Hub · "
        "kernel: the attention as a folder for the Hub · space: a page that shows the attention of every head",
    )
    return parser


def _train(arguments: list[str]) -> int:
    from reluformer.configuration.recipe_parser import build_recipe, parse_namespace, recipe_parser

    parser = recipe_parser("reluformer train")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete what an earlier run of this name wrote, and train anew"
    )
    if not arguments:
        raise UserError("train: give a recipe with --config; see `reluformer train --help`")
    options = parse_namespace(parser, arguments)

    from reluformer.training.launch import check_environment, joining, leaving

    check_environment(options.expected_world_size)
    with joining():  # the training arguments join the process group as soon as they are made
        recipe = build_recipe(parser, options)

    from reluformer.training.training import train

    with leaving():
        train(recipe, overwrite=options.overwrite)
    return EXIT_OK


def _evaluate(arguments: list[str]) -> int:
    parser = _Parser(prog="reluformer evaluate", description="Translates and scores a split of a run's corpus.")
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder, for example runs/demo")
    parser.add_argument("--split", default="test", choices=["train", "validation", "test"], help="default: test")
    _add_decoding_options(parser, dict.fromkeys((*DECODING, "long_sources"), "the recipe's"))
    parser.add_argument("--samples", type=int, help="translations printed beside their references")
    options = parser.parse_args(arguments)

    from reluformer.configuration.recipe_parser import load_recipe
    from reluformer.hub_cards.card import write_card
    from reluformer.training.run_folder import RECIPE_FILE, RECORD_FILE
    from reluformer.training.training import evaluate_split, headline

    folder = Path(options.run)
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(f"--run: {options.run!r} is not a run folder (no {RECIPE_FILE} in it)")
    recipe = load_recipe(folder / RECIPE_FILE)
    recipe.training.output_dir = str(folder)  # the folder may have been moved since
    evaluation = recipe.evaluation
    for name in ("num_beams", "length_penalty", "batch_tokens", "long_sources", "samples", "attn_implementation"):
        if getattr(options, name) is not None:
            setattr(evaluation, name, getattr(options, name))
    recipe.check()
    scores = evaluate_split(
        recipe,
        options.split,
        folder,
        num_beams=evaluation.num_beams,
        length_penalty=evaluation.length_penalty,
        batch_tokens=evaluation.batch_tokens,
        long_sources=evaluation.long_sources,
        attn_implementation=evaluation.attn_implementation,
        device=options.device,
    )
    if (folder / RECORD_FILE).is_file():  # the card of a finished run shows its figures
        write_card(folder)
    print(headline(recipe, options.split, scores))
    return EXIT_OK


def _translate(arguments: list[str]) -> int:
    parser = _Parser(prog="reluformer translate", description="Translates text: arguments, a file, or standard input.")
    parser.add_argument("text", nargs="*", help="texts to translate")
    parser.add_argument("--model", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    parser.add_argument("--input", metavar="FILE", help="one sentence a line; - is standard input, the default")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    _add_decoding_options(parser, {**DECODING, "long_sources": "error"})
    options = parser.parse_args(arguments)
    if options.text and options.input:
        raise UserError("translate: give texts or --input, not both")
    if options.output is not None:
        check_output(options.output)
    texts = texts_of_arguments(options.text) or read_lines(options.input or "-")

    from reluformer.training.translation import Translator

    names = ("num_beams", "length_penalty", "batch_tokens", "long_sources", "attn_implementation", "device")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    translator = Translator.from_pretrained(options.model, **given)
    # The bar goes to stderr; a person who gave a text or two, or sees each line as it is done, has no need of it.
    progress = not options.text and (options.output is not None or not sys.stdout.isatty())
    translations = translator.stream(texts, progress=progress)  # all texts are checked before a file is opened
    with output(options.output) as stream:
        write_lines(translations, stream, len(texts))
    return EXIT_OK


def _analyze(arguments: list[str]) -> int:
    parser = _Parser(
        prog="reluformer analyze",
        description="Measures a model on a text and writes a table (JSON and CSV) and a picture of each figure. "
        "variance-simulation needs no model, anisotropy no text.",
    )
    parser.add_argument(
        "--what",
        required=True,
        nargs="+",
        metavar="NAME",
        help="entropy, variance-ratio, top-p, anisotropy, attention-maps, variance-simulation; one or several",
    )
    parser.add_argument("--model", metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    parser.add_argument("--text", metavar="FILE", help="source text, one sentence or document a line")
    parser.add_argument(
        "--target_text", "--target-text", metavar="FILE", help="its translations; default: the model's own"
    )
    parser.add_argument("--output", metavar="FOLDER", help="default: analysis in the folder of the model")
    _add_analysis_sizes(parser)
    options = parser.parse_args(arguments)

    from reluformer.analysis.analyze import AnalysisOptions, analyze

    given = {name: value for name, value in vars(options).items() if value is not None}
    analysed = analyze(AnalysisOptions(**given))
    for note in analysed.notes:
        print(f"reluformer: note: {note}", file=sys.stderr)
    for line in (*analysed.summaries, *(f"written: {path}" for path in analysed.files)):
        print(line)
    return EXIT_OK


def _add_analysis_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch_tokens", type=int, help="tokens with padding computed at once; default: 2048")
    parser.add_argument("--num_beams", type=int, help="width of the beam for the model's own translation; default: 5")
    parser.add_argument("--top_p", type=float, nargs="+", metavar="P", help="percentages; default: 0.1 to 100")
    parser.add_argument("--maps", type=int, help="pairs that attention-maps draws, from the first; default: 1")
    parser.add_argument("--map_tokens", type=int, help="tokens of each side on a map, from the first; default: 40")
    parser.add_argument(
        "--lengths", type=int, nargs="+", metavar="N", help="of variance-simulation; default: 1 to 1024"
    )
    parser.add_argument("--samples", type=int, help="of variance-simulation; default: 50000")
    parser.add_argument("--seed", type=int, help="of variance-simulation; default: 0")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")


def _convert(arguments: list[str]) -> int:
    parser = _Parser(
        prog="reluformer convert",
        description="Writes a MarianMT checkpoint as a ReLUFormer that computes the same, or a model with another "
        "attention and the same weights.",
    )
    parser.add_argument(
        "--from", dest="source", required=True, metavar="PATH_OR_ID", help="MarianMT checkpoint, or a ReLUFormer's"
    )
    parser.add_argument("--to", dest="target", required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument(
        "--attention",
        metavar="NAME",
        help="a preset (reluformer, vanilla, …) or an activation (relu, softmax, …); default: the source's, unchanged. "
        "Another one keeps the weights and needs fine-tuning: recipe finetune_from_marian",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is in FOLDER already")
    options = parser.parse_args(arguments)

    from reluformer.training.conversion import convert

    conversion = convert(options.source, options.target, attention=options.attention, overwrite=options.overwrite)
    for note in conversion.notes:
        print(f"reluformer: note: {note}", file=sys.stderr)
    config, parameters = conversion.model.config, conversion.model.num_parameters()
    print(f"{conversion.folder}: {parameters:,} parameters, {config.attention_activation} attention")
    return EXIT_OK


def _study(arguments: list[str]) -> int:
    from reluformer.training.study_command import study_command

    return study_command(_Parser, arguments)


def _card(arguments: list[str]) -> int:
    from reluformer.training.hub_commands import card_command

    return card_command(_Parser, arguments)


def _publish(arguments: list[str]) -> int:
    from reluformer.training.hub_commands import publish_command

    return publish_command(_Parser, arguments)


def _kernel(arguments: list[str]) -> int:
    from reluformer.hub_cards.kernel import kernel_command

    return kernel_command(_Parser, arguments)


def _space(arguments: list[str]) -> int:
    from reluformer.hub_cards.space.command import space_command

    return space_command(_Parser, arguments)


def _add_decoding_options(parser: argparse.ArgumentParser, defaults: Mapping[str, str]) -> None:
    """Defaults are told, not set: who reads the options has to know which of them were given."""
    parser.add_argument("--num_beams", type=int, help=f"width of the beam; default: {defaults['num_beams']}")
    parser.add_argument(
        "--length_penalty", type=float, help=f"exponent of the length; default: {defaults['length_penalty']}"
    )
    parser.add_argument(
        "--batch_tokens", type=int, help=f"source tokens decoded at once; default: {defaults['batch_tokens']}"
    )
    parser.add_argument(
        "--long_sources",
        choices=LONG_SOURCES,
        help="sources with more tokens than the model has positions: refuse the whole text, truncate them, or split them at "
        f"the ends of sentences; default: {defaults['long_sources']}",
    )
    parser.add_argument("--attn_implementation", help="how attention is computed; default: the model's")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "translate": _translate,
    "analyze": _analyze,
    "convert": _convert,
    "study": _study,
    "card": _card,
    "publish": _publish,
    "kernel": _kernel,
    "space": _space,
}

if __name__ == "__main__":
    sys.exit(main())
