"""`reluformer publish` and `reluformer card`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reluformer.training.errors import UserError

_LICENSE_HELP = (
    "of the weights, by the Hub's name, for example cc-by-4.0; default: the one that the card in the folder has, if any"
)


def publish_command(parser_class: type[argparse.ArgumentParser], arguments: list[str]) -> int:
    """The command, with arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.publishing.publish`.
    """
    parser = parser_class(
        prog="reluformer publish",
        description="Uploads a finished run to the Hub in one commit: weights, configuration, tokenizer, the model's code, card, "
        "training curve and attention map. Checkpoints, logs, translations and the recipe stay here.",
    )
    parser.add_argument(
        "--run", required=True, metavar="FOLDER", help="folder of a finished run, for example runs/demo"
    )
    parser.add_argument("--repo-id", "--repo_id", required=True, metavar="OWNER/NAME", help="made if there is none")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="check and list what would be uploaded; uses no network"
    )
    parser.add_argument("--license", metavar="NAME", help=_LICENSE_HELP)
    parser.add_argument(
        "--without-evaluation",
        "--without_evaluation",
        action="store_true",
        help="publish a run that was not evaluated; its card has no scores",
    )
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.publishing import publish

    publish(
        options.run,
        options.repo_id,
        private=True if options.private else None,
        dry_run=options.dry_run,
        license=options.license,
        without_evaluation=options.without_evaluation,
    )
    return 0


def card_command(parser_class: type[argparse.ArgumentParser], arguments: list[str]) -> int:
    """The command, with arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.card.write_card`.
    """
    parser = parser_class(
        prog="reluformer card", description="Writes the model card of a run anew, from what is measured in its folder."
    )
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder, for example runs/demo")
    parser.add_argument("--license", metavar="NAME", help=_LICENSE_HELP)
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
    print(write_card(options.run, license=options.license, repo_id=options.repo_id, output=options.output))
    return 0
