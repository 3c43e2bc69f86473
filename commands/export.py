"""`reluformer export`: a model as ONNX graphs."""

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer export",
        description="Writes a model as ONNX graphs (encoder, decoder with cache) with its tokenizer and settings, and compares "
        "them with PyTorch. Needs pip install 'reluformer[onnx]'.",
    )
    add = parser.add_argument
    add("--model", dest="source", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    add("--output", dest="target", required=True, metavar="FOLDER", help="folder to write")
    add("--int8", action="store_true", help="8-bit weights: smaller, and translations change a little")
    add("--attentions", action="store_true", help="attention weights as further outputs of the graphs")
    add("--opset", type=int, default=18, metavar="N", help="version of ONNX's operators; default: 18")
    add("--overwrite", action="store_true", help="replace an exported model that is in FOLDER already")
    options = parser.parse_args(arguments)

    from reluformer.export.exporting import export

    done = export(**vars(options))
    for name, size in done.sizes.items():
        print(f"{done.folder / name}: {size / 1e6:.1f} MB")
    found = done.difference
    allowed = "" if options.int8 else f"; rounding allows {found.allowed:.1g}"
    print(f"largest difference from PyTorch: {found.largest:.1g} in logits up to {found.scale:.3g}{allowed}")
    return 0
