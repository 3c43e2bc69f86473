"""`reluformer card`: the model card of a run."""

from __future__ import annotations

from pathlib import Path

from reluformer.commands.parsing import LICENSE_HELP, Parser
from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.card.write_card`.
    """
    parser = Parser(
        prog="reluformer card", description="Writes the model card of a run anew, from what is measured in its folder."
    )
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder, for example runs/demo")
    parser.add_argument("--license", metavar="NAME", help=LICENSE_HELP)
    parser.add_argument("--repo-id", "--repo_id", metavar="OWNER/NAME", help="where the model is, for the examples")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="default: README.md in the folder; elsewhere, pictures are copied to FILE's <stem>_files/",
    )
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.card import write_card
    from reluformer.hub_cards.publishing import check_repo_id

    if options.repo_id is not None:
        check_repo_id(options.repo_id)
    if options.output is not None and Path(options.output).is_dir():
        raise UserError(f"--output: {options.output!r} is a folder; give a file")
    print(write_card(options.run, license=options.license, repo_id=options.repo_id, output=options.output))
    return 0
