"""`reluformer publish`: a finished run, to the Hub."""

from __future__ import annotations

from reluformer.commands.parsing import LICENSE_HELP, Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.publishing.publish`.
    """
    parser = Parser(
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
    parser.add_argument("--license", metavar="NAME", help=LICENSE_HELP)
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
