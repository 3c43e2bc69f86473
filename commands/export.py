"""`reluformer export`: a model as ONNX graphs."""

from pathlib import Path

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer export",
        description="Writes a model as ONNX graphs (encoder, decoder with cache) with its tokenizer and settings, and "
        "compares "
        "them with PyTorch. Needs pip install 'reluformer[onnx]'.",
    )
    add = parser.add_argument
    add("--model", dest="source", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    add("--output", dest="target", required=True, metavar="FOLDER", help="new folder to write")
    add("--int8", action="store_true", help="8-bit weights: smaller, and translations change a little")
    add("--attentions", action="store_true", help="attention weights as further outputs of the graphs")
    options = parser.parse_args(arguments)

    from reluformer.export.exporting import export

    difference = export(**vars(options))
    for path in sorted(Path(options.target).glob("*.onnx")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    print(f"largest difference from PyTorch: {difference.largest:.1g} in logits up to {difference.scale:.3g}")
    return 0
