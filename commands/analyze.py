"""`reluformer analyze`: the figures of a model on a text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reluformer.commands.parsing import Parser
from reluformer.configuration.analyses import ANALYSES
from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer analyze",
        description="Measures a model on a text and writes a table (JSON and CSV) and a picture of each figure. "
        "variance-simulation needs no model, anisotropy no text.",
    )
    parser.add_argument(
        "--what",
        required=True,
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(ANALYSES)}; one or several; all: what can be taken of the model and the text",
    )
    parser.add_argument(
        "--run", metavar="FOLDER", help="a finished run, in place of --model and --text: on its test split"
    )
    parser.add_argument("--model", metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    parser.add_argument(
        "--text", metavar="FILE", help="source text, one sentence or document a line; for a decoder alone, any text"
    )
    parser.add_argument(
        "--target_text", "--target-text", metavar="FILE", help="its translations; default: the model's own"
    )
    parser.add_argument("--documents", metavar="FILE", help="the document of each line; its lines are packed to texts")
    parser.add_argument("--output", metavar="FOLDER", help="default: analysis in the folder of the model")
    _add_sizes(parser)
    options = parser.parse_args(arguments)

    from reluformer.analysis.analyze import AnalysisOptions, analyze
    from reluformer.analysis.texts import run_text

    given = {name: value for name, value in vars(options).items() if value is not None}
    if (run := given.pop("run", None)) is not None:
        if double := {"model", "text", "target_text", "documents", "images"} & given.keys():
            raise UserError(f"--{min(double)}: --run says it already; leave one of the two out")
        given |= {"model": run, **run_text(run, Path(given.get("output", Path(run) / "analysis")))}
    analysed = analyze(AnalysisOptions(**given))
    for note in analysed.notes:
        print(f"reluformer: note: {note}", file=sys.stderr)
    for line in (*analysed.summaries, *(f"written: {path}" for path in analysed.files)):
        print(line)
    return 0


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch_tokens", type=int, help="tokens with padding computed at once; default: 2048")
    parser.add_argument("--num_beams", type=int, help="width of the beam for the model's own translation; default: 5")
    parser.add_argument("--top_p", type=float, nargs="+", metavar="P", help="percentages; default: 0.1 to 100")
    parser.add_argument("--maps", type=int, help="pairs that attention-maps draws, from the first; default: 1")
    parser.add_argument("--map_tokens", type=int, help="tokens of each side on a map, from the first; default: 40")
    parser.add_argument(
        "--context", type=int, help="tokens of a context of a decoder-only model; default: its positions, at most 1024"
    )
    parser.add_argument(
        "--max_length", type=int, help="with --documents: most tokens of a packed text; default: the model's positions"
    )
    parser.add_argument("--images", metavar="PATH", help="for a classifier: a folder of class folders, or an IDX file")
    parser.add_argument("--image_labels", metavar="FILE", help="the labels of an IDX file of pictures")
    parser.add_argument(
        "--ppl_increase", type=float, nargs="+", metavar="P", help="of ppl-sparsity, percentages; default: 1"
    )
    parser.add_argument(
        "--sparsity_tokens", type=int, help="most tokens that ppl-sparsity reads, but one batch; default: 2048"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", metavar="N", help="of variance-simulation; default: 1 to 1024"
    )
    parser.add_argument("--samples", type=int, help="of variance-simulation; default: 50000")
    parser.add_argument("--seed", type=int, help="of variance-simulation; default: 0")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
