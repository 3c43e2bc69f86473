"""`reluformer kernel`: the attention as a folder for the Hub."""

from __future__ import annotations

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    from reluformer.hub_cards.kernel import kernel_command

    return kernel_command(Parser, arguments)
