"""Makes a folder of models/ of a finished run: what its repository on the Hub would hold, with a card of measured figures.

    python -m benchmarks.ship --run runs/tatoeba_de_en --twin runs/tatoeba_de_en_softmax --output models/tatoeba-de-en

A folder that is there already keeps its files, and is measured anew. Where `python -m benchmarks.javascript` has installed
transformers.js, that is measured, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load, metadata_save
from sacrebleu.metrics import CHRF

from benchmarks import javascript, near_training
from benchmarks.markdown import table
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.export.exporting import export
from reluformer.export.running import load_translator
from reluformer.hub_cards.card import PICTURES, render_card
from reluformer.training.data.corpus import load_split
from reluformer.training.loading import load_model_and_tokenizer
from reluformer.training.run.records import run_record, write_json
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE
from reluformer.training.scoring.metrics import score_translations
from reluformer.training.translation import Translator

FIGURES = "figures.json"
EXAMPLES = {
    "de": ("Wo ist der Bahnhof?", "Ich habe heute leider keine Zeit.", "Kannst du mir bitte helfen?"),
    "en": ("Where is the station?", "I'm sorry, I don't have time today.", "Can you help me, please?"),
}
_COMPARED, _TIMED, _SHOWN = 500, 200, 10  # sentences
_SECTION = """## As it comes with the package

It was trained on single sentences. `Translator` and `reluformer translate` split a text into them; give Transformers' own classes
one at a time: several at once are translated worse, without a warning, and so are other languages.

Weights in bfloat16: {weights:.1f} MB. They are loaded as float32, by `Translator` and by Transformers' own classes, and were
measured so. In `onnx/`, graphs with 8-bit weights: {graphs:.1f} MB, which onnxruntime and
[transformers.js](https://huggingface.co/docs/transformers.js) run. All figures of this section are of these files. The softmax
twin has the same recipe but for its attention, and does not come with the package.

{scores}

{signatures}
Both models were trained once, with one seed: a difference of a BLEU is within what seeds do. Multi30k describes pictures, another
domain than Tatoeba's everyday sentences, and nothing of it was trained on.
{near_training}
{seconds}

These are the means of test sentences, one by one, on {machine}: {timed} of them, and {compared} in JavaScript. {same}

Ten of the {tests:,} test sentences: the one in the middle of each tenth, from the worst tenth to the best by chrF:

{samples}

Trained on sentences by [Tatoeba](https://tatoeba.org) and its contributors,
[CC BY 2.0 FR](https://creativecommons.org/licenses/by/2.0/fr/), in the selection of
[manythings.org](https://www.manythings.org/anki/) of May 2018. If you pass the weights on, name them, too.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the finished run")
    parser.add_argument("--twin", type=Path, required=True, help="folder of the run with softmax attention")
    parser.add_argument("--output", type=Path, required=True, help="folder to write, models/NAME")
    parser.add_argument("--multi30k", type=Path, default=Path("data/multi30k"), help="default: data/multi30k")
    options = parser.parse_args(arguments)
    if not options.output.exists():
        write_model(options.run, options.output)
    figures = measure(options.run, options.twin, options.output, options.multi30k)
    write_json(options.output / FIGURES, figures)
    write_card(options.run, options.output, figures)
    print(f"{options.output}: {_megabytes(options.output.rglob('*')):.1f} MB")
    return 0


def write_model(run: Path, folder: Path) -> None:
    """Weights, tokenizer, code and pictures of a run, and its ONNX graphs."""
    folder.mkdir(parents=True)
    model, tokenizer = load_model_and_tokenizer(run)
    model.bfloat16().save_pretrained(folder)
    load_as_float32(folder)
    tokenizer.save_pretrained(folder)
    export(folder, folder / "onnx", int8=True)
    for path in folder.rglob("tokenizer.json"):  # a third of it is indentation
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")), ensure_ascii=False, separators=(",", ":")))
    (folder / "model.safetensors").chmod(0o644)  # else a wheel holds a file that its owner alone may read
    for name in PICTURES:
        if (run / name).is_file():
            shutil.copy(run / name, folder)


def load_as_float32(folder: Path) -> None:
    """Lets config.json say float32, though the weights are stored in bfloat16: the Auto classes compute in what it says."""
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# What is measured


def measure(run: Path, twin: Path, folder: Path, multi30k: Path) -> dict[str, Any]:
    """Scores, seconds, translations of JavaScript beside those of Python, and samples; each as the card tells it."""
    data = load_recipe(run / RECIPE_FILE).data
    tatoeba, _ = load_split(data, "test")
    languages = data.source_language, data.target_language
    tests = {
        "Tatoeba": (list(tatoeba["source"]), list(tatoeba["target"])),
        "Multi30k": tuple(_lines(multi30k / f"test2016.{language}.gz") for language in languages),
    }
    ours, of_twin = (Translator.from_pretrained(each, device="cpu", split="none") for each in (folder, twin))
    systems: dict[str, Callable[[list[str]], list[str]]] = {
        "this model, 5 beams": ours,
        "this model, greedy": lambda texts: ours(texts, num_beams=1),
        "this model, 8-bit ONNX, greedy": lambda texts: javascript.in_python(folder / "onnx", texts),
        "softmax twin, 5 beams": of_twin,
        "softmax twin, greedy": lambda texts: of_twin(texts, num_beams=1),
    }
    scores, translated = [], {}
    for system, translate in systems.items():
        for test, (sources, references) in tests.items():
            print(f"{system}: {test}", flush=True)
            translated[system, test] = translate(sources)
            scores.append({"system": system, "test": test, **score_translations(translated[system, test], references)})
    sources, references = tests["Tatoeba"]
    return {
        **run_record(None, run.name, None),
        "scores": scores,
        "seconds": seconds_of_a_sentence(folder, ours, sources[:_TIMED]),
        "javascript": beside_javascript(folder / "onnx", sources[:_COMPARED]),
        "near_training": near_training.measure(ours, tests["Tatoeba"], load_split(data, "train")[0]["source"]),
        "samples": samples(sources, translated["this model, 5 beams", "Tatoeba"], references),
    }


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")


def seconds_of_a_sentence(folder: Path, translator: Translator, texts: list[str]) -> dict[str, float]:
    """In Python, sentence by sentence, by the name of the way."""
    model, tokenizer = translator.model, translator.tokenizer
    graphs = load_translator(folder / "onnx", num_beams=1, split="none")
    ways: dict[str, Callable[[str], Any]] = {
        "`generate` of Transformers, greedy": lambda text: model.generate(
            **tokenizer(text, return_tensors="pt"), num_beams=1, length_penalty=None
        ),
        "`Translator`, greedy": lambda text: translator(text, num_beams=1),
        "`Translator`, 5 beams": translator,
        '`Translator`, greedy, `compute="int8"`': lambda text: translator(text, num_beams=1, compute="int8"),
        "8-bit ONNX, greedy": graphs,
    }
    found = {}
    for way, translate in ways.items():
        translate(texts[0])
        start = time.perf_counter()
        for text in texts:
            translate(text)
        found[way] = (time.perf_counter() - start) / len(texts)
    return found


def beside_javascript(graphs: Path, texts: list[str]) -> dict[str, Any]:
    """By the name of the place: seconds of a sentence, and (source, Python's, JavaScript's) where they differ."""
    if not javascript.INSTALLED.is_dir():
        return {}
    wanted, found = javascript.in_python(graphs, texts), {}
    for place, translate in (("Node", javascript.in_node), ("Chromium", javascript.in_chromium)):
        print(f"transformers.js in {place}", flush=True)
        result = translate(graphs, texts)
        rows = zip(texts, wanted, result["translations"], strict=True)
        others = [row for row in rows if row[1] != row[2]]
        found[place] = {"sentences": len(texts), "seconds": result["seconds"] / len(texts), "others": others}
    return found


def samples(sources: list[str], translations: list[str], references: list[str]) -> list[tuple[str, str, str, float]]:
    """Source, translation, reference and chrF of the sentence in the middle of each tenth, the worst tenth first."""
    rows = list(zip(sources, translations, references, strict=True))
    scored = [(*row, CHRF().sentence_score(row[1], [row[2]]).score) for row in rows]
    scored.sort(key=lambda row: row[3])
    return [scored[(2 * tenth + 1) * len(scored) // (2 * _SHOWN)] for tenth in range(_SHOWN)]


# The card


def write_card(run: Path, folder: Path, figures: dict[str, Any]) -> None:
    """The run's card, for the folder in a clone, with the section of what was measured of the folder's own files."""
    card = render_card(run, license="cc-by-2.0", repo_id=folder.as_posix())
    before, limits, after = card.partition("## Limits\n")
    path = folder / CARD_FILE
    path.write_text(f"{before}{section(folder, figures)}{limits}{after}", encoding="utf-8")
    language = load_recipe(run / RECIPE_FILE).data.source_language
    metadata_save(path, metadata_load(path) | {"widget": [{"text": text} for text in EXAMPLES[language]]})


def write_section(folder: Path, figures: dict[str, Any]) -> None:
    """The section of a card that is there, anew: the rest of it is of the run, which may be gone."""
    path = folder / CARD_FILE
    before, title, rest = path.read_text(encoding="utf-8").partition(_SECTION.partition("\n")[0] + "\n")
    _, limits, after = rest.partition("## Limits\n")
    if not (title and limits):
        raise ValueError(f"{path} has no section of what comes with the package")
    path.write_text(f"{before}{section(folder, figures)}{limits}{after}", encoding="utf-8")


def near_training_words(figures: dict[str, Any]) -> str:
    """How far the test text is from the training text; see `near_training.py`. Nothing, where that was not measured."""
    found = figures.get("near_training")
    if found is None:
        return ""
    share = 100 * found["near"] / found["sentences"]
    scores = f"{found['bleu_near']:.1f} BLEU with 5 beams, and {found['bleu_others']:.1f} on the others"
    return (
        f"\nTatoeba has many sentences that are almost alike. {share:.0f} % of the test sources are those of a training pair\n"
        f"but for one word at most; on these this model has {scores}.\n"
    )


def section(folder: Path, figures: dict[str, Any]) -> str:
    scores = {(each["system"], each["test"]): each for each in figures["scores"]}
    systems, tests = dict.fromkeys(system for system, _ in scores), dict.fromkeys(test for _, test in scores)
    names = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "% equal"}
    titles = [f"{test}: {name}" for test in tests for name in names.values()]
    rows = [[system, *(f"{scores[system, test][name]:.1f}" for test in tests for name in names)] for system in systems]
    ways = {**figures["seconds"]}
    ways |= {f"transformers.js in {place}, greedy": each["seconds"] for place, each in figures["javascript"].items()}
    seconds = [[way, f"{each:.4f}"] for way, each in ways.items()]
    machine, any_scores = figures["machine"], figures["scores"][0]
    return _SECTION.format(
        weights=_megabytes(folder.glob("*.safetensors")),
        graphs=_megabytes(folder.glob("onnx/*.onnx")),
        scores=_table(["", *titles], rows, numbers=True),
        signatures="".join(f"{name}: `{any_scores[f'{name}_signature']}`.\n" for name in ("bleu", "chrf")),
        near_training=near_training_words(figures),
        seconds=_table(["way to translate", "seconds a sentence"], seconds, numbers=True),
        timed=_TIMED,
        compared=_COMPARED,
        machine=f"{machine['cpu']}, {machine['torch_threads']} threads",
        same=_same(figures["javascript"]),
        tests=any_scores["sentences"],
        samples=_table(
            ["source", "translation", "reference", "chrF"],
            [[*texts, f"{score:.0f}"] for *texts, score in figures["samples"]],
        ),
    )


def _table(*columns: Any, **options: Any) -> str:
    return "\n".join(table(*columns, **options))


def _megabytes(paths: Iterable[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def _same(found: dict[str, Any]) -> str:
    """How many translations of JavaScript are Python's, and the others."""
    lines = []
    for place, each in found.items():
        count, others = each["sentences"], each["others"]
        lines.append(
            f"In {place}, {count - len(others)} of {count} translations by the 8-bit graphs are those of Python."
        )
        lines += [f"“{source}”: “{python}” in Python, “{other}” there." for source, python, other in others]
    return " ".join(lines)


if __name__ == "__main__":
    sys.exit(main())
