"""`reluformer convert`: a MarianMT, ViT, GPT-2 or Llama checkpoint, or another attention for a ReLUFormer."""

import sys

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer convert",
        description="Writes a MarianMT, ViT, GPT-2 or Llama checkpoint as a ReLUFormer that computes the same, or a "
        "model "
        "with another attention and the same weights.",
    )
    add = parser.add_argument
    add("--from", dest="source", required=True, metavar="PATH_OR_ID", help="such a checkpoint, or a ReLUFormer's")
    add("--to", dest="target", required=True, metavar="FOLDER", help="folder to write")
    add(
        "--attention",
        metavar="NAME",
        help="a preset (reluformer, vanilla, …) or an activation (relu, softmax, …); default: the source's, unchanged. "
        "Another one keeps the weights and needs fine-tuning: recipe finetune_from_marian",
    )
    add("--overwrite", action="store_true", help="replace a model that is in FOLDER already")
    options = parser.parse_args(arguments)

    from reluformer.training.conversion import convert

    model, notes = convert(**vars(options))
    for note in notes:
        print(f"reluformer: note: {note}", file=sys.stderr)
    print(f"{options.target}: {model.num_parameters():,} parameters, {model.config.attention_activation} attention")
    return 0
