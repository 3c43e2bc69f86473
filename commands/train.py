"""`reluformer train`: a recipe, to a finished run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from reluformer.configuration.errors import UserError

if TYPE_CHECKING:
    from reluformer.configuration.recipe import Recipe
    from reluformer.training.train import FinishedRun

FLAGS = {
    "--overwrite": "empty the folder of an earlier run of this name, and train anew",
    "--print_config": "print the recipe once it is checked, and end",
}


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    from reluformer.configuration.recipe_parser import parse_recipe, recipe_parser, recipe_text

    if not arguments:
        raise UserError("train: give a recipe, such as `reluformer train mine.yaml`; see `reluformer train --help`")
    if {"-h", "--help"} & {*arguments}:
        parser = recipe_parser()
        for flag, what in FLAGS.items():
            parser.add_argument(flag, action="store_true", help=what)
        parser.print_help()
        return 0
    recipes = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options = [word for word in arguments[len(recipes) :] if word not in FLAGS]
    recipe = parse_recipe([*(word for path in recipes for word in ("--config", path)), *options])
    if "--print_config" in arguments:
        from reluformer.training.train import check

        check(recipe)
        print(recipe_text(recipe), end="")
    else:
        train_and_document(recipe, overwrite="--overwrite" in arguments)
    return 0


def train_and_document(recipe: Recipe, *, overwrite: bool = False) -> Path:
    """`reluformer.training.train.train`, then training curve, attention map and card; returns the run folder."""
    from reluformer.training.train import train

    train(recipe, overwrite=overwrite, document=_document)
    return recipe.run_folder


def _document(run: FinishedRun) -> None:
    """Draws the training curve and an attention map, writes the card, and tells the scores that the recipe is about."""
    from reluformer.analysis.curves import plot_training_curve
    from reluformer.hub_cards.card import write_card
    from reluformer.training.train import headline

    folder, training = run.recipe.run_folder, run.recipe.training
    if not plot_training_curve(run.log_history, folder / "training_curve.png"):
        updates, every = run.log_history[-1]["step"], f"{training.logging_strategy.value} {training.logging_steps:g}"
        tqdm.write(f"no training curve: nothing was logged in {updates} updates (logging: {every})")
    _draw_attention(run, folder / "attention_map.png")
    write_card(folder)
    tqdm.write(f"everything of this run is in {folder}/")
    for split, scores in run.scores.items():
        tqdm.write(headline(run.recipe, split, scores))


_READABLE_TOKENS = 20  # a side: the names of more lie over each other in the picture


def _draw_attention(run: FinishedRun, path: Path) -> None:
    """Of the longest readable pair among the first 1,000, else of the first that the model has positions for, if
    any."""
    from reluformer.analysis.attention_maps import plot_attention_map
    from reluformer.training.data.encoding import first_encoded_pairs

    pairs, positions = run.pairs, run.model.config.max_position_embeddings
    first, length = pairs.select(range(min(1_000, len(pairs)))), min(_READABLE_TOKENS, positions)
    readable = first_encoded_pairs(first, run.tokenizer, max_length=length, at_most=len(first))
    fitting = readable or first_encoded_pairs(pairs, run.tokenizer, max_length=positions, at_most=1)
    if len(fitting):
        pair = max(fitting, key=lambda pair: len(pair["source"]))
        plot_attention_map(run.model, run.tokenizer, pair["source"], pair["target"], path)
