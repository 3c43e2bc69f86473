"""`reluformer card`: the model card of a run or of any saved model."""

from reluformer.commands.parsing import Parser, add_card_options, add_folder_options


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer card",
        description="Writes README.md, the model card of a run or of any saved model, anew from what is measured in "
        "its folder.",
    )
    add_folder_options(parser)
    add_card_options(parser)
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="where the model is, for the examples")
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.card import write_card

    print(write_card(**vars(options), keep_scores=True))
    return 0
