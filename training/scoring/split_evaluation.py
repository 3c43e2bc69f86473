"""One split of a run's corpus, translated and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reluformer.configuration.recipe import Recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.data.documents import pack_split
from reluformer.training.run.progress import say
from reluformer.training.scoring.evaluation import evaluate_run, print_samples, read_translations
from reluformer.training.scoring.metrics import describe_scores
from reluformer.training.translation import Translator


def evaluate_split(
    recipe: Recipe, split: str, run: Translator | Path, *, command: str | None = None, **options: Any
) -> dict[str, Any]:
    """Translates and scores a split, prints scores and samples, writes both into the run folder.

    Args:
        recipe: of the run.
        split: "train", "validation" or "test".
        run: the model in memory, or the run folder.
        options: of `Translator.from_pretrained`, with a run folder only.
    """
    pairs, report = load_split(recipe.data, split)
    say(recipe, report.summary())
    translator = run if isinstance(run, Translator) else Translator.from_pretrained(run, **options)
    if recipe.data.packing is not None:
        pairs = pack_split(recipe.data, split, pairs, translator.tokenizer)
        say(recipe, pairs.report.summary())
    scores = evaluate_run(
        translator,
        pairs,
        split=split,
        folder=recipe.run_folder,
        dataset_name=report.name,
        language=recipe.data.target_language,
        text=recipe.data.text,
        command=command,
        recipe_name=recipe.name,
        seed=recipe.training.seed,
    )
    rows = read_translations(recipe.run_folder / f"translations.{split}.tsv")
    if recipe.evaluation.samples:
        print_samples(*zip(*rows, strict=True), recipe.evaluation.samples)
    say(recipe, f"{split}: {describe_scores(scores)}")
    return scores
