"""`reluformer card`: the model card of a run or of any saved model."""

from __future__ import annotations

from pathlib import Path

from reluformer.commands.parsing import Parser, add_card_options, add_folder_options
from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.card.write_card`.
    """
    parser = Parser(
        prog="reluformer card",
        description="Writes the model card of a run or of any saved model anew, from what is measured in its folder.",
    )
    add_folder_options(parser)
    add_card_options(parser)
    parser.add_argument("--repo-id", "--repo_id", metavar="OWNER/NAME", help="where the model is, for the examples")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="default: README.md in the folder; elsewhere, pictures are copied to FILE's <stem>_files/",
    )
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.card import write_card

    if options.output is not None and Path(options.output).is_dir():
        raise UserError(f"--output: {options.output!r} is a folder; give a file")
    told = {name: getattr(options, name) for name in ("license", "language", "dataset", "repo_id", "output")}
    print(write_card(options.model if options.run is None else options.run, **told))
    return 0
