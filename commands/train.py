"""`reluformer train`: a recipe, to a finished run."""

from __future__ import annotations

from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    from reluformer.configuration.recipe_parser import build_recipe, parse_namespace, recipe_parser

    parser = recipe_parser("reluformer train")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete what an earlier run of this name wrote, and train anew"
    )
    if not arguments:
        raise UserError("train: give a recipe with --config; see `reluformer train --help`")
    options = parse_namespace(parser, arguments)

    from reluformer.training.launch import check_environment, joining, leaving

    check_environment(options.expected_world_size)
    with joining():  # the training arguments join the process group as soon as they are made
        recipe = build_recipe(parser, options)

    from reluformer.training.training import train

    with leaving():
        train(recipe, overwrite=options.overwrite)
    return 0
