"""`reluformer analyze`: the analyses of a model on a text or on pictures."""

import sys

from reluformer.analysis.analyses import ANALYSES
from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer analyze",
        description="Measures a model on a text and writes a table (JSON and CSV) and a picture of each analysis. "
        "anisotropy needs no text.",
    )
    add, names = parser.add_argument, f"{', '.join(ANALYSES)}; one or several; all: what can be taken of the model"
    add("--what", required=True, nargs="+", choices=[*ANALYSES, "all"], metavar="NAME", help=names)
    add("--model", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    add("--text", metavar="FILE", help="source lines, or text for a decoder-only model; default: a run's test split")
    add("--target_text", metavar="FILE", help="its translations; default: the model's own")
    add("--documents", metavar="FILE", help="the document of each line; its lines are packed to texts")
    add("--max_length", type=int, help="with --documents: most tokens of a packed text; default: the model's positions")
    add("--context", type=int, help="tokens of a context of a decoder-only model; default: its positions, at most 1024")
    add("--images", metavar="PATH", help="for a classifier: a folder of pictures")
    add("--output", metavar="FOLDER", help="default: analysis in the folder of the model")
    add("--device", help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
    options = vars(parser.parse_args(arguments))

    from reluformer.analysis.analyze import AnalysisOptions, analyze

    analysed = analyze(AnalysisOptions(**options))
    for note in analysed.notes:
        print(f"reluformer: note: {note}", file=sys.stderr)
    for line in (*analysed.summaries, *(f"written: {path}" for path in analysed.files)):
        print(line)
    return 0
