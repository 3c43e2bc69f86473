"""What the verbs have in common: their parser, and the options of decoding."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from reluformer.configuration.errors import UserError
from reluformer.training.scoring.long_sources import LONG_SOURCES

# What `Translator` takes, and what it takes where nothing is said, for help texts: importing it takes seconds.
COMPUTE = ("float32", "bfloat16", "int8", "auto")
DECODING = {"num_beams": "5", "length_penalty": "1.0", "batch_tokens": "4096"}


class Parser(argparse.ArgumentParser):
    """argparse, with mistakes as `UserError` rather than usage and exit."""

    def error(self, message: str) -> None:
        raise UserError(f"{message}; see `{self.prog} --help`")


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    """Adds --run and --model, of which one must be given."""
    folder = parser.add_mutually_exclusive_group(required=True)
    folder.add_argument("--run", metavar="FOLDER", help="folder of a finished run, for example runs/demo")
    folder.add_argument(
        "--model",
        metavar="FOLDER",
        help="folder of any saved model: output_dir of a plain Seq2SeqTrainer, or of save_pretrained; of a run, "
        "the same as --run",
    )


def add_card_options(parser: argparse.ArgumentParser) -> None:
    """Adds what only a person knows of a model."""
    default = "default: what the recipe or the card in the folder says, if anything"
    parser.add_argument(
        "--license", metavar="NAME", help=f"of the weights, by the Hub's name, for example cc-by-4.0; {default}"
    )
    parser.add_argument(
        "--language",
        nargs="+",
        metavar="CODE",
        help=f"of ISO 639, the source's and the target's, for example de en; {default}",
    )
    parser.add_argument(
        "--dataset", metavar="ID", help=f"on the Hub, of what the model was trained and evaluated on; {default}"
    )


def add_decoding_options(parser: argparse.ArgumentParser, defaults: Mapping[str, str]) -> None:
    """Adds the options without their defaults, which the help names: the caller must know which of them were given."""
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
    parser.add_argument(
        "--compute",
        choices=COMPUTE,
        help="on a CPU, the type of the matrix products: auto is the fastest; default: float32, which changes no translation",
    )
    parser.add_argument("--attn_implementation", help="how attention is computed; default: the model's")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
