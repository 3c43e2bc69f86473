"""The command line: its verbs, and how their errors are reported.

Each verb is a file of this folder with a function `run`. Libraries that take seconds to import are imported inside
these, so that `reluformer --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import TrainingStopped, UserError, one_line, write_failure

# What a shell tells of a process that SIGINT, SIGPIPE or SIGTERM ended is 128 + the signal.
EXIT_OK, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE, EXIT_STOPPED = 0, 2, 130, 141, 143
# Every verb, and what it does.
VERBS = {
    "init": "writes a recipe for your own sentence pairs",
    "train": "trains a model from a recipe",
    "evaluate": "scores a run on one of its splits",
    "translate": "translates text",
    "models": "lists the models that come with the package",
    "analyze": "measures attention and feed-forward networks of a model",
    "convert": "turns a MarianMT, ViT, GPT-2 or Llama checkpoint into a ReLUFormer",
    "export": "writes a model as ONNX graphs, for onnxruntime",
    "card": "writes the card of a run or a saved model",
    "publish": "uploads a run or a saved model to the Hub",
    "kernel": "writes the attention as a kernel for the Hub",
    "space": "opens a page that translates and shows the attention of every head",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; None takes the process' own, and ends a process of several
            (`end_worker`).

    Returns:
        Exit status: 0, 2 for what a person must change (one line on stderr), 130 when interrupted, 141 when whoever
        reads the output has closed it, 143 when a training was stopped by SIGTERM and has saved a checkpoint.
    """
    if argv is None and not sys.stderr.isatty():
        # A file would hold every state of their bars. The libraries read this when they are imported.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if argv is None and not sys.stdout.isatty() and "PYTHONIOENCODING" not in os.environ:
        sys.stdout.reconfigure(encoding="utf-8")  # as texts are read, whatever the locale
    status = exit_status(partial(_run, list(sys.argv[1:] if argv is None else argv)))
    if argv is None and "WORLD_SIZE" in os.environ:
        from reluformer.training.run.interruptions import end_worker

        end_worker(status)
    return status


def _run(arguments: list[str]) -> int:
    try:
        verb = _main_parser().parse_args(arguments[:1]).command
        # these may do without Transformers; `translate` registers the models where it does not
        if verb not in ("translate", "models") and not {"-h", "--help"} & {*arguments}:
            import_module("reluformer.modeling_reluformer.registration").register()
        return import_module(f"reluformer.commands.{verb}").run(arguments[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "reluformer"):
            raise
        extra = "train"
        if verb == "space":
            extra = "space"
        elif package.startswith("onnx"):
            extra = "onnx"
        raise UserError(
            f"{verb}: needs the package {package!r}, which is not installed; pip install 'reluformer[{extra}]' brings "
            "what the command needs"
        ) from error
    except SystemExit as stop:  # argparse: --help and --version
        return stop.code or EXIT_OK


def exit_status(run: Callable[[], int]) -> int:
    """What `run` returns; for an error that the user can mend, one line on stderr and the status of its kind (see
    [`main`])."""
    try:
        status = run()
        sys.stdout.flush()  # a closed pipe is found here, not when Python ends
        return status
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except UserError as error:
        print(f"reluformer: error: {one_line(error)}", file=sys.stderr)
        return EXIT_USER_ERROR
    except TrainingStopped as stop:
        print(f"reluformer: {stop}", file=sys.stderr)
        return EXIT_STOPPED
    except KeyboardInterrupt as interrupt:
        print(": ".join(["reluformer: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and not isinstance(error, FileNotFoundError):
            # A file that the system refuses, whatever the command. One that a user named and that is missing is a
            # `UserError`.
            print(f"reluformer: error: {error.filename}: {error.strerror}", file=sys.stderr)
        elif (reason := write_failure(error)) is not None:
            _silence_stdout_that_takes_no_more()
            print(f"reluformer: error: a file cannot be written: {reason}; free space where it goes", file=sys.stderr)
        else:
            raise
        return EXIT_USER_ERROR


def _silence_stdout_that_takes_no_more() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()


def _silence_stdout() -> None:
    """Python would report once more, when it ends, that what was printed last cannot be written."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _main_parser() -> argparse.ArgumentParser:
    from importlib.metadata import version

    parser = Parser(
        prog="reluformer",
        description="Trains, evaluates and uses ReLUFormer models (arXiv 2302.06461).",
        epilog="`reluformer <command> --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"reluformer {version('reluformer')}")
    parser.add_argument("command", choices=list(VERBS), help=" · ".join(map(": ".join, VERBS.items())))
    return parser
