"""`reluformer evaluate`: translates a split of a run's data, and scores it."""

from pathlib import Path

from reluformer.commands.parsing import DECODING, Parser, add_decoding_options
from reluformer.configuration.errors import UserError


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(prog="reluformer evaluate", description="Translates a split of a run's data, and scores it.")
    parser.add_argument("--run", required=True, metavar="FOLDER", help="run folder, for example runs/demo")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    add_decoding_options(parser, default="the recipe's")
    parser.add_argument(
        "--data.text",
        dest="text",
        choices=("plain", "moses"),
        help="moses: Moses has tokenised the corpus, so scores are of the detokenised text; the run's recipe keeps "
        "what is given, and has the default",
    )
    parser.add_argument("--samples", type=int, help="translations printed beside their references")
    options = parser.parse_args(arguments)
    if (options.samples or 0) < 0:
        raise UserError(f"--samples: {options.samples} must be at least 0")

    from reluformer.configuration.recipe_checks import check_recipe
    from reluformer.configuration.recipe_parser import load_recipe
    from reluformer.configuration.scores import SCORES
    from reluformer.hub_cards.card import write_card
    from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE, read_record, write_kind_of_text
    from reluformer.training.scoring.evaluation import evaluate_split
    from reluformer.training.train import headline
    from reluformer.translating.translation import Translator

    folder = Path(options.run)
    if not (folder / RECIPE_FILE).is_file():
        raise UserError(f"--run: {options.run!r} is not a run folder (no {RECIPE_FILE} in it)")
    recipe = load_recipe(folder / RECIPE_FILE)
    recipe.training.output_dir = str(folder)  # the folder may have been moved since
    decoding = (*DECODING, "long_sources")
    for name in (*decoding, "samples"):
        if (value := getattr(options, name)) is not None:
            setattr(recipe.evaluation, name, value)
    read_record(folder)  # a damaged one is found now, not when everything is translated
    if options.text is not None:
        recipe.data.text = options.text
        if SCORES[recipe.evaluation.headline].text not in (None, options.text):
            recipe.evaluation.headline = "bleu"
        check_recipe(recipe)
    how = {name: getattr(recipe.evaluation, name) for name in decoding}
    how |= {name: getattr(options, name) for name in ("attn_implementation", "device")}
    how["compute"] = options.compute or "float32"
    scores = evaluate_split(recipe, options.split, Translator.from_pretrained(folder, **how))
    if options.text is not None:
        write_kind_of_text(folder, recipe)
    if (folder / RECORD_FILE).is_file():  # the card of a finished run shows its figures
        write_card(folder)
    print(headline(recipe, options.split, scores))
    return 0
