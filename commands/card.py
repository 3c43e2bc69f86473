"""`reluformer card`: the model card of a run or of any saved model."""

from pathlib import Path

from reluformer.commands.parsing import Parser, add_card_options, add_folder_options
from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer card",
        description="Writes the model card of a run or of any saved model anew, from what is measured in its folder.",
    )
    add_folder_options(parser)
    add_card_options(parser)
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="where the model is, for the examples")
    where = "default: README.md in the folder; elsewhere, pictures are copied to FILE's <stem>_files/"
    parser.add_argument("--output", metavar="FILE", help=where)
    options = parser.parse_args(arguments)
    if options.output is not None and Path(options.output).is_dir():
        raise UserError(f"--output: {options.output!r} is a folder; give a file")

    from reluformer.hub_cards.card import write_card

    print(write_card(**vars(options)))
    return 0
