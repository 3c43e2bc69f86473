"""`reluformer evaluate`: translates, classifies or predicts a split of a run's data, and scores it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reluformer.commands.parsing import DECODING, Parser, add_decoding_options
from reluformer.configuration.errors import UserError
from reluformer.configuration.splits import SPLITS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from reluformer.configuration.image_recipe import ImageRecipe
    from reluformer.configuration.language_recipe import LanguageRecipe
    from reluformer.configuration.recipe import Recipe


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer evaluate",
        description="Translates, classifies or predicts a split of a run's data, and scores it.",
    )
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder, for example runs/demo")
    parser.add_argument("--split", default="test", choices=SPLITS, help="default: test")
    add_decoding_options(parser, dict.fromkeys((*DECODING, "long_sources"), "the recipe's"))
    parser.add_argument("--samples", type=int, help="translations printed beside their references")
    options = parser.parse_args(arguments)

    from reluformer.configuration.image_recipe import ImageRecipe
    from reluformer.configuration.language_recipe import LanguageRecipe
    from reluformer.configuration.recipe_parser import load_recipe
    from reluformer.hub_cards.card import write_card
    from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE
    from reluformer.training.training import headline

    folder = Path(options.run)
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(f"--run: {options.run!r} is not a run folder (no {RECIPE_FILE} in it)")
    recipe = load_recipe(folder / RECIPE_FILE)
    recipe.training.output_dir = str(folder)  # the folder may have been moved since
    evaluated = {ImageRecipe: _classify, LanguageRecipe: _predict}.get(type(recipe), _translate)
    scores = evaluated(recipe, options)
    if (folder / RECORD_FILE).is_file():  # the card of a finished run shows its figures
        write_card(folder)
    print(headline(recipe, options.split, scores))
    return 0


def _translate(recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    from reluformer.training.scoring.split_evaluation import evaluate_split

    evaluation = recipe.evaluation
    for name in ("num_beams", "length_penalty", "batch_tokens", "long_sources", "samples", "attn_implementation"):
        if getattr(options, name) is not None:
            setattr(evaluation, name, getattr(options, name))
    recipe.check()
    return evaluate_split(
        recipe,
        options.split,
        recipe.run_folder,
        num_beams=evaluation.num_beams,
        length_penalty=evaluation.length_penalty,
        batch_tokens=evaluation.batch_tokens,
        long_sources=evaluation.long_sources,
        attn_implementation=evaluation.attn_implementation,
        device=options.device,
    )


def _classify(recipe: ImageRecipe, options: argparse.Namespace) -> dict[str, Any]:
    from reluformer import ReLUFormerForImageClassification
    from reluformer.training.scoring.image_evaluation import evaluate_image_split

    model = _loaded(ReLUFormerForImageClassification, recipe, options, "a run on pictures")
    return evaluate_image_split(recipe, options.split, model)


def _predict(recipe: LanguageRecipe, options: argparse.Namespace) -> dict[str, Any]:
    from reluformer import ReLUFormerForCausalLM
    from reluformer.training.loading import load_tokenizer
    from reluformer.training.scoring.language_evaluation import evaluate_language_split

    model = _loaded(ReLUFormerForCausalLM, recipe, options, "the run of a language model")
    return evaluate_language_split(recipe, options.split, model, load_tokenizer(recipe.run_folder))


def _loaded(
    model_class: type[PreTrainedModel], recipe: ImageRecipe | LanguageRecipe, options: argparse.Namespace, what: str
) -> PreTrainedModel:
    """The model of a run that translates nothing, on its device; what: the run is, for the message."""
    from reluformer.training.loading import device_of, load_whole

    for name in ("num_beams", "length_penalty", "batch_tokens", "long_sources", "samples"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: is for translations; {recipe.run_folder} is {what}, leave it out")
    if options.attn_implementation is not None:
        recipe.evaluation.attn_implementation = options.attn_implementation
    recipe.check()
    device = device_of(options.device)
    chosen = recipe.evaluation.attn_implementation
    return load_whole(model_class, recipe.run_folder, attn_implementation=chosen).to(device)
