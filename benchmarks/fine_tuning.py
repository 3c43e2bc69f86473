"""What a model to start from is worth: captions of Multi30k, from a model of the package and from new weights.

    python -m benchmarks.fine_tuning                     # data/multi30k and data/tatoeba; 4 to 8 hours of one core
    python -m benchmarks.fine_tuning --pairs 500 2000    # 1 or 2

`reluformer init` writes the recipes of both, for the first 500, 2,000, 8,000 and 29,000 pairs. Both train for the same
number of updates: what `init` takes for fine-tuning, at most MOST_UPDATES. Each has two rates with the first seed; the
better one by BLEU on the validation split is trained with the second seed, too. LoRA takes as many updates, in batches
of sentences. The scores are BLEU of greedy translations by `Translator`: of Multi30k's test split, and of 1,000 of
Tatoeba's validation pairs, which show what a model forgets.

Writes results/fine-tuning-cpu.json as it goes. What is finished, in runs/fine_tuning or in that file, is not trained
again; delete both after a change of the model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.markdown import mean_and_each, table
from benchmarks.measurement_file import RESULTS, read_result
from reluformer.records.records import run_record, write_json
from reluformer.training.scoring.metrics import score_translations
from reluformer.translating.readers import text_lines
from reluformer.translating.translation import Translator

BASE, LANGUAGES = "tatoeba-de-en", ("de", "en")
RUNS = Path("runs/fine_tuning")
PAIRS = (500, 2_000, 8_000, 29_000)
SEEDS = (1, 2)
RATES = {"base": (0.0005, 0.001), "new": (0.001, 0.003), "lora": (0.001, 0.003)}
LORA_PAIRS = 2_000
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
LORA_RANK, LORA_BATCH = 16, 128  # sentences
MOST_UPDATES = 1_000
TATOEBA_PAIRS = 1_000
FACTS = ("start", "pairs", "updates", "rate", "seed")  # of a training
SCORES = "scores.json"
RESULT = "fine-tuning-cpu.json"
STARTS = {"new": "from new weights", "base": f"from `{BASE}`", "lora": f"LoRA on `{BASE}`"}
TEXTS = {"test": "captions", "tatoeba": "Tatoeba"}
# What is shown; new weights knew nothing of Tatoeba that they could forget.
COLUMNS = [(start, text) for text in TEXTS for start in STARTS if (start, text) != ("new", "tatoeba")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="default: data")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: benchmarks/results/")
    parser.add_argument("--pairs", type=int, nargs="+", default=PAIRS, help="how many, default: 500 2000 8000 29000")
    parser.add_argument("--quick", action="store_true", help="two updates, few sentences; means nothing")
    options = parser.parse_args(arguments)
    texts = read_texts(options.data, at_most=20 if options.quick else None)
    restore_scores(read_result(options.output / RESULT))
    updates, rows, before = {}, [], scores_of(BASE, texts)
    for pairs in PAIRS[:1] if options.quick else options.pairs:
        recipes = {start: write_recipe(start, pairs, options.data) for start in ("base", "new")}
        by_init = yaml.safe_load(recipes["base"].read_text(encoding="utf-8"))["training"]["max_steps"]
        updates[pairs] = 2 if options.quick else min(MOST_UPDATES, by_init)
        for start in ("base", "new", *(("lora",) if pairs == LORA_PAIRS or options.quick else ())):
            rows += runs_of(start, pairs, updates[pairs], recipes.get(start), texts)
            command = f"python -m benchmarks.fine_tuning --pairs {' '.join(map(str, updates))}"
            record = run_record(command, None, SEEDS[0])
            result = {**record, "base": BASE, "before": before, "updates": updates, "rows": rows}
            print(write_json(options.output / RESULT, result), flush=True)
    return 0


def run_folder(row: Mapping[str, Any]) -> Path:
    """Of a training, by its facts."""
    return RUNS / "_".join(str(row[fact]) for fact in FACTS)


def restore_scores(result: Mapping[str, Any] | None) -> None:
    """Gives a new checkout the scores of the trainings in a result file."""
    for row in result["rows"] if result else ():
        write_json(run_folder(row) / SCORES, row["scores"])


def chosen_scores(result: Mapping[str, Any], start: str, text: str) -> dict[int, list[float]]:
    """BLEU on a text at the rate that validation chose: number of pairs → each seed's."""
    scores: dict[int, list[float]] = {}
    for row in result["rows"]:
        if row["start"] == start and row["chosen"]:
            scores.setdefault(row["pairs"], []).append(row["scores"][text])
    return scores


def scores_table() -> str:
    """For docs/fine_tuning.md: captions, and Tatoeba's sentences, by where the training started."""
    result = read_result(RESULTS / RESULT)
    titles = [f"{TEXTS[text]}, {STARTS[start]}" for start, text in COLUMNS]
    scores = [chosen_scores(result, *column) for column in COLUMNS]
    before = [f"{result['before'][text]:.1f}" if start == "base" else "" for start, text in COLUMNS]
    rows = [["none", "0", *before]]
    for pairs, updates in result["updates"].items():
        cells = [mean_and_each(each[int(pairs)], "{:.1f}") if int(pairs) in each else "" for each in scores]
        rows.append([f"{int(pairs):,}", f"{updates:,}", *cells])
    return "\n".join(table(["pairs", "updates", *titles], rows, numbers=True)) + "\n"


def read_texts(data: Path, at_most: int | None) -> dict[str, tuple[list[str], list[str]]]:
    """Sources and references by the name of the text."""
    files = {
        "validation": data / "multi30k" / "val.{}.gz",
        "test": data / "multi30k" / "test2016.{}.gz",
        "tatoeba": data / "tatoeba" / "val.{}.gz",
    }
    limits = {"tatoeba": TATOEBA_PAIRS}
    texts = {}
    for name, path in files.items():
        sides = [list(text_lines(Path(str(path).format(language)))) for language in LANGUAGES]
        texts[name] = tuple(side[: at_most or limits.get(name)] for side in sides)
    return texts


def write_recipe(start: str, pairs: int, data: Path) -> Path:
    """By `reluformer init`, for the first pairs of Multi30k."""
    folder = RUNS / f"{pairs}"
    folder.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        for split in ("train", "val"):
            lines = list(text_lines(data / "multi30k" / f"{split}.{language}.gz"))
            kept = lines[:pairs] if split == "train" else lines
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    recipe = folder / f"{start}.yaml"
    recipe.unlink(missing_ok=True)
    source, target = (str(folder / f"train.{language}") for language in LANGUAGES)
    command = ["init", "--source", source, "--target", target, "--output", str(recipe)]
    command += ["--validation", *(str(folder / f"val.{language}") for language in LANGUAGES)]
    reluformer(*command, *(["--base", BASE] if start == "base" else []))
    return recipe


def reluformer(*arguments: str) -> None:
    """A command of the package, in a process of its own."""
    subprocess.run([sys.executable, "-m", "reluformer", *arguments], check=True)


def runs_of(start: str, pairs: int, updates: int, recipe: Path | None, texts: Any) -> list[dict[str, Any]]:
    """Both rates with the first seed, then the better one by validation with the other seeds."""
    first = [run(start, pairs, updates, rate, SEEDS[0], recipe, texts) for rate in RATES[start]]
    best = max(first, key=lambda row: row["scores"]["validation"])["rate"]
    more = [run(start, pairs, updates, best, seed, recipe, texts) for seed in SEEDS[1:]]
    return [{**row, "chosen": row["rate"] == best} for row in (*first, *more)]


def run(
    start: str, pairs: int, updates: int, rate: float, seed: int, recipe: Path | None, texts: Any
) -> dict[str, Any]:
    """Trains and scores, unless it was done before."""
    facts = dict(zip(FACTS, (start, pairs, updates, rate, seed), strict=True))
    folder = run_folder(facts)
    scores = folder / SCORES
    if not scores.exists():
        if recipe is None:
            train_with_lora(folder, RUNS / f"{pairs}", updates, rate, seed)
        else:
            train_by_recipe(folder, recipe, updates, rate, seed)
        write_json(scores, scores_of(str(folder), texts))
    row = {**facts, "scores": json.loads(scores.read_text(encoding="utf-8"))}
    print(json.dumps(row), flush=True)
    return row


def train_by_recipe(folder: Path, recipe: Path, updates: int, rate: float, seed: int) -> None:
    """As `init` wrote it but for updates, rate and seed; its own translations are left out, since ours follow."""
    settings = {
        "name": folder.name,
        "training.output_dir": str(folder),
        "training.max_steps": updates,
        "training.warmup_steps": updates // 10,
        "training.learning_rate": rate,
        "training.lr_scheduler_type": "cosine",
        "training.seed": seed,
        "training.eval_strategy": "no",
        "training.save_steps": 200,
        "evaluation.splits": "[]",
    }
    overrides = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in settings.items())
    is_begun = any(folder.glob("checkpoint-*"))  # then the same command goes on
    reluformer("train", "--config", str(recipe), *overrides, *([] if is_begun else ["--overwrite"]))


def train_with_lora(folder: Path, data: Path, updates: int, rate: float, seed: int) -> None:
    """By PEFT and Seq2SeqTrainer; the adapter is merged into the model that is saved."""
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    translator = Translator.from_pretrained(BASE)
    model, tokenizer = translator.model, translator.tokenizer
    adapted = get_peft_model(
        model, LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=list(LORA_MODULES), r=LORA_RANK, lora_alpha=32)
    )
    sources, targets = (list(text_lines(data / f"train.{language}")) for language in LANGUAGES)
    pairs = Dataset.from_dict({"source": sources, "target": targets}).map(
        lambda rows: tokenizer(rows["source"], text_target=rows["target"]),
        batched=True,
        remove_columns=["source", "target"],
    )
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        max_steps=updates,
        learning_rate=rate,
        lr_scheduler_type="cosine",
        warmup_steps=updates // 10,
        per_device_train_batch_size=LORA_BATCH,
        seed=seed,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    torch.manual_seed(seed)
    Seq2SeqTrainer(adapted, arguments, train_dataset=pairs, data_collator=collator, processing_class=tokenizer).train()
    adapted.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scores_of(model: str, texts: Any) -> dict[str, float]:
    """BLEU of each text, case-sensitive."""
    translator = Translator.from_pretrained(model, device="cpu", num_beams=1, split="none")
    return {
        name: score_translations(translator(sources), list(references))["bleu"]
        for name, (sources, references) in texts.items()
    }


if __name__ == "__main__":
    sys.exit(main())
