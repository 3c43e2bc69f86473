"""`reluformer publish`: a finished run or any saved model, to the Hub."""

from reluformer.commands.parsing import Parser, add_card_options, add_folder_options


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer publish",
        description="Uploads a finished run or any saved model to the Hub in one commit: weights, configuration, "
        "tokenizer, the "
        "model's code, card, training curve and attention map. Checkpoints, logs, translations and the recipe stay "
        "here.",
    )
    add_folder_options(parser)
    add = parser.add_argument
    add("--repo_id", required=True, metavar="OWNER/NAME", help="made if there is none")
    add("--private", action="store_true", help="make the repository private")
    add("--dry_run", action="store_true", help="check and list what would be uploaded; uses no network")
    add("--without_evaluation", action="store_true", help="publish a model of which no score is known")
    add_card_options(parser)
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.publishing import publish

    publish(**vars(options))
    return 0
