"""`reluformer space`: a page that shows the attention of every head."""

from __future__ import annotations

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    from reluformer.hub_cards.space.command import space_command

    return space_command(Parser, arguments)
