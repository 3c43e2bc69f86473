"""What the verbs have in common: their parser, and the options that several of them take."""

from __future__ import annotations

import argparse
import re
from typing import Any

from reluformer.configuration.errors import UserError
from reluformer.translating.source_encoding import LONG_SOURCES

# What `Translator` takes, and what it takes where nothing is said, for help texts: importing it takes seconds.
COMPUTE = ("float32", "int8")
DECODING = {"num_beams": "5", "length_penalty": "1.0", "batch_tokens": "4096"}


class Parser(argparse.ArgumentParser):
    """argparse, with mistakes as `UserError` rather than usage and exit. `--repo-id` is `--repo_id`; after `--` all is
    text."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        end = [*args, "--"].index("--")
        options = [
            re.sub(r"^--\w[\w-]*(?==|$)", lambda name: "--" + name[0][2:].replace("-", "_"), word)
            for word in args[:end]
        ]
        return super().parse_known_args([*options, *args[end:]], namespace)

    def error(self, message: str) -> None:
        raise UserError(f"{message}; see `{self.prog} --help`")


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    """Adds --run and --model, of which one must be given, as `folder`."""
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--run", dest="folder", metavar="FOLDER", help="folder of a finished run, for example runs/demo")
    add("--model", dest="folder", metavar="FOLDER", help="the same, or the folder of any saved model")


def add_card_options(parser: argparse.ArgumentParser) -> None:
    """Adds what only a person knows of a model."""
    add, default = parser.add_argument, "default: what the recipe or the card in the folder says, if anything"
    add("--license", metavar="NAME", help=f"of the weights, by the Hub's name, for example cc-by-4.0; {default}")
    add("--language", nargs="+", metavar="CODE", help=f"ISO 639 codes of source and target, such as de en; {default}")
    add("--dataset", metavar="ID", help=f"on the Hub, of what the model was trained and evaluated on; {default}")


def add_decoding_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds options that are None unless they are given; the help names `default`, or else those of `Translator`."""
    add, defaults = parser.add_argument, {**DECODING, "long_sources": "error"}
    if default is not None:
        defaults = dict.fromkeys(defaults, default)
    add("--num_beams", type=int, help=f"width of the beam; default: {defaults['num_beams']}")
    add("--length_penalty", type=float, help=f"exponent of the length; default: {defaults['length_penalty']}")
    add("--batch_tokens", type=int, help=f"source tokens decoded at once; default: {defaults['batch_tokens']}")
    add(
        "--long_sources",
        choices=LONG_SOURCES,
        help="sources with more tokens than the model has positions: refuse the whole text, or split them at "
        f"the ends of sentences; default: {defaults['long_sources']}",
    )
    add(
        "--compute",
        choices=COMPUTE,
        help="on a CPU, the type of the matrix products: int8 is faster; default: float32, which changes no "
        "translation",
    )
    add("--attn_implementation", help="how attention is computed; default: the model's")
    add("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
