"""`reluformer publish`: a finished run or any saved model, to the Hub."""

from __future__ import annotations

from reluformer.commands.parsing import Parser, add_card_options, add_folder_options


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status.

    Raises:
        UserError: see `reluformer.hub_cards.publishing.publish`.
    """
    parser = Parser(
        prog="reluformer publish",
        description="Uploads a finished run or any saved model to the Hub in one commit: weights, configuration, tokenizer, the "
        "model's code, card, training curve and attention map. Checkpoints, logs, translations and the recipe stay here.",
    )
    add_folder_options(parser)
    parser.add_argument("--repo-id", "--repo_id", required=True, metavar="OWNER/NAME", help="made if there is none")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="check and list what would be uploaded; uses no network"
    )
    add_card_options(parser)
    parser.add_argument(
        "--without-evaluation",
        "--without_evaluation",
        action="store_true",
        help="publish a model of which no score is known; its card has none",
    )
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.publishing import publish

    publish(
        options.model if options.run is None else options.run,
        options.repo_id,
        private=options.private,
        dry_run=options.dry_run,
        license=options.license,
        language=options.language,
        dataset=options.dataset,
        without_evaluation=options.without_evaluation,
    )
    return 0
