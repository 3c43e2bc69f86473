"""Makes a folder of models/ of a finished run: what its repository on the Hub would hold but for the model's code, with
a card of measured figures. With `--twin`, the run of the same recipe with softmax attention, the card compares the two.

    python -m benchmarks.ship --run runs/tatoeba_de_en_variants --output models/tatoeba-de-en

A folder that is there already keeps its files, and is measured anew. Where `python -m benchmarks.javascript` has
installed transformers.js, that is measured, too. Without the runs, the ONNX graphs of a folder that is there are made
anew from its weights, and what depends on them is measured, with the test split of `python -m
benchmarks.tatoeba_split`:

    python -m benchmarks.ship --output models/tatoeba-de-en

A copy of a folder with the model's code beside the weights, to be uploaded:

    python -m benchmarks.ship --output models/tatoeba-de-en --published build/tatoeba-de-en

Seconds are measured on an idle machine alone; a busy one leaves them out of figures and card, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load, metadata_save
from sacrebleu.metrics import CHRF

from benchmarks import doubt, javascript, near_training, robustness
from benchmarks.markdown import table
from reluformer.configuration.recipe import DataConfig
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, load_recipe
from reluformer.export.exporting import export
from reluformer.export.running import load_translator
from reluformer.hub_cards.card import PICTURES, machine_of, render_card
from reluformer.hub_cards.publishing import copy_with_code
from reluformer.hub_cards.space import SYSTEM_OF_GRAPHS
from reluformer.records.records import run_record, write_json
from reluformer.training.data.corpus import load_split
from reluformer.training.run.run_folder import CARD_FILE, RECIPE_FILE
from reluformer.training.scoring.metrics import score_translations
from reluformer.translating.loading import load_model_and_tokenizer
from reluformer.translating.readers import text_lines
from reluformer.translating.shipped import FIGURES_FILE
from reluformer.translating.translation import Translator

EXAMPLES = {
    "de": ("Wo ist der Bahnhof?", "Ich habe heute leider keine Zeit.", "Kannst du mir bitte helfen?"),
    "en": ("Where is the station?", "I'm sorry, I don't have time today.", "Can you help me, please?"),
}
_COMPARED, _TIMED, _SHOWN = 500, 200, 10  # sentences
_BUSY = 0.5  # processes that computed in the last minute: from so many on, seconds are not worth noting down
_HEADING, _NEXT_HEADING = "## As it comes with the package\n", "## Limits\n"
_SECTION = """{heading}
It is a model of sentences. `Translator` and `reluformer translate` split a text into them, and Transformers' own classes take a text as
it is: several sentences at once are translated worse, without a warning, and so are other languages.

The package serves the model by its own code, and the folder holds none. `python -m benchmarks.ship --output {folder} --published
FOLDER` in a checkout copies it with the model's code beside the weights: once uploaded, it loads with Transformers alone.

Weights in bfloat16: {weights:.1f} MB. They are loaded as float32, by `Translator` and by Transformers' own classes, and were
measured so. In `onnx/`, graphs with 8-bit weights: {graphs:.1f} MB, which onnxruntime and
[transformers.js](https://huggingface.co/docs/transformers.js) run. All figures of this section are of these files.{of_twin}

{scores}

{signatures}
{once}, with one seed: a difference of a BLEU is within what seeds do. Multi30k describes pictures, another
domain than Tatoeba's everyday sentences, and nothing of it was trained on.
{robustness}{near_training}{doubt}
{seconds}{same}

Ten of the {tests:,} test sentences: the one in the middle of each tenth, from the worst tenth to the best by chrF:

{samples}

Trained on sentences by [Tatoeba](https://tatoeba.org) and its contributors,
[CC BY 2.0 FR](https://creativecommons.org/licenses/by/2.0/fr/), in the selection of
[manythings.org](https://www.manythings.org/anki/) of May 2018. If you pass the weights on, name them, too.

"""

_TWIN = "softmax twin"  # how the names of its systems begin
_OF_TWIN = """ The softmax
twin has the same recipe but for its attention, and does not come with the package."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of the finished run")
    parser.add_argument("--twin", type=Path, help="folder of the run with softmax attention")
    parser.add_argument("--output", type=Path, required=True, help="folder to write, models/NAME")
    parser.add_argument("--multi30k", type=Path, default=Path("data/multi30k"), help="default: data/multi30k")
    parser.add_argument(
        "--published", type=Path, help="new folder: copy --output with the model's code, and measure nothing"
    )
    options = parser.parse_args(arguments)
    folder, idle = options.output, os.getloadavg()[0] < _BUSY
    if options.twin is not None and options.run is None:
        parser.error("--twin is compared with --run, which is missing; without both, graphs are made anew")
    if options.published is not None:
        copy_with_code(folder, options.published)
        print(f"wrote {options.published}; now: hf upload OWNER/{folder.name} {options.published}")
        return 0
    if options.run is None:
        renew_graphs(folder)
        figures = measure_graphs(folder, options.multi30k, idle)
        renew_section(folder, figures)
    else:
        if not folder.exists():
            write_model(options.run, folder)
        figures = measure(options.run, options.twin, folder, options.multi30k, idle)
        write_card(options.run, folder, figures)
    write_json(folder / FIGURES_FILE, figures)
    print(f"{folder}: {_megabytes(folder.rglob('*')):.1f} MB")
    if not idle:
        print("Other programs were computing on this machine: no seconds were measured. Run it again when it is idle.")
    return 0


def write_model(run: Path, folder: Path) -> None:
    """Weights, tokenizer and pictures of a run, and its ONNX graphs; not the model's code, which the package has."""
    folder.mkdir(parents=True)
    model, tokenizer = load_model_and_tokenizer(run)
    model.bfloat16().save_pretrained(folder)
    for path in folder.glob("*.py"):
        path.unlink()
    _settle_config(folder)
    tokenizer.save_pretrained(folder)
    _compact_tokenizer(folder)
    (folder / "model.safetensors").chmod(0o644)  # else a wheel holds a file that its owner alone may read
    for name in PICTURES:
        if (run / name).is_file():
            shutil.copy(run / name, folder)
    renew_graphs(folder)


def renew_graphs(folder: Path) -> None:
    """Writes the ONNX graphs of a folder's weights, in place of those that are there."""
    shutil.rmtree(folder / "onnx", ignore_errors=True)
    export(folder, folder / "onnx", int8=True)
    _compact_tokenizer(folder / "onnx")


def _compact_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"  # a third of it is indentation
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")), ensure_ascii=False, separators=(",", ":")))


def _settle_config(folder: Path) -> None:
    """Lets config.json say float32, though the weights are stored in bfloat16: the Auto classes compute in what it
    says. It names no code, since the folder has none."""
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    del settings["auto_map"]
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# What is measured


Translate = Callable[[list[str]], list[str]]
Tests = dict[str, tuple[list[str], list[str]]]  # name → sources, references


def measure(run: Path, twin: Path | None, folder: Path, multi30k: Path, idle: bool) -> dict[str, Any]:
    """Scores, seconds, translations of JavaScript beside those of Python, and samples; each as the card tells it."""
    data = load_recipe(run / RECIPE_FILE).data
    tests = sentences_to_test(data, multi30k)
    ours = Translator.from_pretrained(folder, device="cpu", split="none")
    systems: dict[str, Translate] = {
        "this model, 5 beams": ours,
        "this model, greedy": lambda texts: ours(texts, num_beams=1),
        SYSTEM_OF_GRAPHS: lambda texts: javascript.in_python(folder / "onnx", texts),
    }
    if twin is not None:
        of_twin = Translator.from_pretrained(twin, device="cpu", split="none")
        systems[f"{_TWIN}, 5 beams"] = of_twin
        systems[f"{_TWIN}, greedy"] = lambda texts: of_twin(texts, num_beams=1)
    scores, translated = scores_of(systems, tests)
    sources, references = tests["Tatoeba"]
    validation = sentences_to_validate(data, multi30k)
    return {
        **run_record(None, run.name, None),
        "scores": scores,
        "seconds": seconds_of_a_sentence(folder, ours, sources[:_TIMED]) if idle else {},
        "javascript": beside_javascript(folder / "onnx", sources[:_COMPARED], idle),
        "doubt": doubt.measure(folder, validation),
        "robustness": robustness.measure(ours, *validation["Tatoeba"]),
        "near_training": near_training.measure(
            translated["this model, 5 beams", "Tatoeba"], tests["Tatoeba"], load_split(data, "train")[0]["source"]
        ),
        "samples": samples(sources, translated["this model, 5 beams", "Tatoeba"], references),
    }


def measure_graphs(folder: Path, multi30k: Path, idle: bool) -> dict[str, Any]:
    """The figures of a folder, of which those that its files give without the runs are measured anew: the scores of the
    graphs, seconds, and JavaScript beside Python."""
    figures = figures_of(folder)
    recipe, data = figures["recipe"], data_of(folder)
    tests = sentences_to_test(data, multi30k)
    sources, _ = tests["Tatoeba"]
    measured, _ = scores_of({SYSTEM_OF_GRAPHS: lambda texts: javascript.in_python(folder / "onnx", texts)}, tests)
    new = {(each["system"], each["test"]): each for each in measured}
    record = run_record(None, recipe, None)
    ours = Translator.from_pretrained(folder, device="cpu", split="none")
    return {
        **figures,
        **record,
        # of the scores of the other systems
        "other_scores": figures.get("other_scores") or {name: figures[name] for name in record},
        "scores": [new.get((each["system"], each["test"]), each) for each in figures["scores"]],
        "seconds": seconds_of_a_sentence(folder, ours, sources[:_TIMED]) if idle else {},
        "javascript": beside_javascript(folder / "onnx", sources[:_COMPARED], idle),
        "doubt": doubt.measure(folder, sentences_to_validate(data, multi30k)),
    }


def figures_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FIGURES_FILE).read_text(encoding="utf-8"))


def data_of(folder: Path) -> DataConfig:
    """Of the recipe that a model of models/ was trained by."""
    return load_recipe(RECIPES_FOLDER / f"{figures_of(folder)['recipe']}.yaml").data


def renew_figure(folder: Path, name: str, value: Any) -> None:
    """Puts one figure in the place of an older one, and into the section of the card."""
    figures = figures_of(folder) | {name: value}
    write_json(folder / FIGURES_FILE, figures)
    renew_section(folder, figures)


def sentences_to_test(data: DataConfig, multi30k: Path) -> Tests:
    return _sentences(data, "test", multi30k / "test2016")


def sentences_to_validate(data: DataConfig, multi30k: Path) -> Tests:
    return _sentences(data, "validation", multi30k / "val")


def _sentences(data: DataConfig, split: str, multi30k: Path) -> Tests:
    """Of Tatoeba by the recipe, and of Multi30k by its files without the names of the languages."""
    tatoeba, _ = load_split(data, split)
    languages = data.source_language, data.target_language
    return {
        "Tatoeba": (list(tatoeba["source"]), list(tatoeba["target"])),
        "Multi30k": tuple(list(text_lines(Path(f"{multi30k}.{language}.gz"))) for language in languages),
    }


def scores_of(
    systems: dict[str, Translate], tests: Tests
) -> tuple[list[dict[str, Any]], dict[tuple[str, str], list[str]]]:
    """Of each system on each test, and its translations."""
    scores, translated = [], {}
    for system, translate in systems.items():
        for test, (sources, references) in tests.items():
            print(f"{system}: {test}", flush=True)
            translated[system, test] = translate(sources)
            scores.append({"system": system, "test": test, **score_translations(translated[system, test], references)})
    return scores, translated


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
    seconds = {}
    for way, translate in ways.items():
        translate(texts[0])
        start = time.perf_counter()
        for text in texts:
            translate(text)
        seconds[way] = (time.perf_counter() - start) / len(texts)
    return seconds


def beside_javascript(graphs: Path, texts: list[str], idle: bool) -> dict[str, Any]:
    """By the name of the environment: (source, Python's, JavaScript's) where they differ, and on an idle machine the seconds
    of a sentence."""
    if not javascript.INSTALLED.is_dir():
        return {}
    wanted, figures = javascript.in_python(graphs, texts), {}
    for environment, translate in (("Node", javascript.in_node), ("Chromium", javascript.in_chromium)):
        print(f"transformers.js in {environment}", flush=True)
        result = translate(graphs, texts)
        rows = zip(texts, wanted, result["translations"], strict=True)
        others = [row for row in rows if row[1] != row[2]]
        figures[environment] = {"sentences": len(texts), "others": others}
        if idle:
            figures[environment]["seconds"] = result["seconds"] / len(texts)
    return figures


def samples(sources: list[str], translations: list[str], references: list[str]) -> list[tuple[str, str, str, float]]:
    """Source, translation, reference and chrF of the sentence in the middle of each tenth, the worst tenth first."""
    rows = list(zip(sources, translations, references, strict=True))
    scored = [(*row, CHRF().sentence_score(row[1], [row[2]]).score) for row in rows]
    scored.sort(key=lambda row: row[3])
    return [scored[(2 * tenth + 1) * len(scored) // (2 * _SHOWN)] for tenth in range(_SHOWN)]


# The card


def write_card(run: Path, folder: Path, figures: dict[str, Any]) -> None:
    """The run's card, for the folder in a clone, with the section of what was measured of the folder's own files."""
    card = of_a_published_copy(render_card(run, license="cc-by-2.0", repo_id=folder.as_posix()), folder)
    before, limits, after = card.partition(_NEXT_HEADING)
    path = folder / CARD_FILE
    path.write_text(f"{before}{section(folder, figures)}{limits}{after}", encoding="utf-8")
    language = load_recipe(run / RECIPE_FILE).data.source_language
    metadata_save(path, metadata_load(path) | {"widget": [{"text": text} for text in EXAMPLES[language]]})


def of_a_published_copy(card: str, folder: Path) -> str:
    """The card with a copy on the Hub where it tells of loading without the package: the folder itself holds no
    code."""
    return card.replace(f'"{folder.as_posix()}", trust_remote_code', f'"your-name/{folder.name}", trust_remote_code')


def renew_section(folder: Path, figures: dict[str, Any]) -> None:
    """Writes the section of a card that is there anew, and leaves the rest of it, which comes from the run."""
    path = folder / CARD_FILE
    card = of_a_published_copy(path.read_text(encoding="utf-8"), folder)
    before, after = card.partition(_HEADING)[0], card.partition(_NEXT_HEADING)[2]
    path.write_text(f"{before}{section(folder, figures)}{_NEXT_HEADING}{after}", encoding="utf-8")


def near_training_words(figures: dict[str, Any]) -> str:
    """How far the test text is from the training text; see `near_training.py`. Nothing, where that was not measured."""
    figure = figures.get("near_training")
    if figure is None:
        return ""
    share = 100 * figure["near"] / figure["sentences"]
    scores = f"{figure['bleu_near']:.1f} BLEU with 5 beams, and {figure['bleu_others']:.1f} on the others"
    return (
        f"\nTatoeba has many sentences that are almost alike. {share:.0f} % of the test sources are those of a "
        f"training pair\nbut for one word at most; on these this model has {scores}.\n"
    )


def doubt_words(figures: dict[str, Any]) -> str:
    """What `Translator(…, scores=True)` is worth as a sign of doubt; nothing where that was not measured."""
    measured = figures.get("doubt")
    if measured is None or measured["threshold"] is None:
        return ""
    sentences = []
    for name, text in (
        ("Tatoeba", "Tatoeba's validation pairs, which the limit was chosen on"),
        ("Multi30k", "captions"),
    ):
        counts = measured[name]
        shares = [
            f"{100 * counts[part] / max(counts[whole], 1):.0f} %"
            for part, whole in (("doubtful", "translations"), ("doubtful_and_bad", "doubtful"), ("bad", "translations"))
        ]
        sentences.append("On {}, {} are below it, and {} of those are bad, where {} of all are.".format(text, *shares))
    meaning = f"Bad means a chrF below {measured['bad_below_chrf']}."
    return (
        f"\nA translation whose tokens have a mean log-probability below {measured['threshold']:.2f} is doubtful "
        f"(8-bit graphs,\ngreedy; `Translator(…, scores=True)` gives it). {meaning} {' '.join(sentences)}\n"
    )


def robustness_words(figures: dict[str, Any]) -> str:
    """The table of `benchmarks.robustness`; nothing where that was not measured."""
    measured = figures.get("robustness")
    if measured is None:
        return ""
    rows = [
        [robustness.WORDS[name], f"{scores['tokenized_lowercase_bleu']:.1f}"]
        for name, scores in measured["scores"].items()
    ]
    foreign = measured["foreign"]
    return (
        f"\nTatoeba's {measured['pairs']:,} validation sources as people type them, translated with 5 beams. Every row but "
        f"the first changes all\nsources. Case does not count in the scores:\n\n"
        f"{_table(['sources', 'BLEU, lower-cased'], rows, numbers=True)}\n\n"
        f"Of {foreign['texts']} texts in other scripts and of emoji, {foreign['unchanged']} come out as they are, and the "
        "others as a sentence that is made up.\n"
    )


def section(folder: Path, figures: dict[str, Any]) -> str:
    scores = {(each["system"], each["test"]): each for each in figures["scores"]}
    systems, tests = dict.fromkeys(system for system, _ in scores), dict.fromkeys(test for _, test in scores)
    names = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "% equal"}
    titles = [f"{test}: {name}" for test in tests for name in names.values()]
    rows = [[system, *(f"{scores[system, test][name]:.1f}" for test in tests for name in names)] for system in systems]
    any_scores = figures["scores"][0]
    has_twin = any(system.startswith(_TWIN) for system in systems)
    return _SECTION.format(
        heading=_HEADING,
        folder=f"models/{folder.name}",
        weights=_megabytes(folder.glob("*.safetensors")),
        graphs=_megabytes(folder.glob("onnx/*.onnx")),
        scores=_table(["", *titles], rows, numbers=True),
        signatures="".join(f"{name}: `{any_scores[f'{name}_signature']}`.\n" for name in ("bleu", "chrf")),
        of_twin=_OF_TWIN if has_twin else "",
        once="Both models were trained once" if has_twin else "The model was trained once",
        robustness=robustness_words(figures),
        near_training=near_training_words(figures),
        doubt=doubt_words(figures),
        seconds=_seconds(figures),
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


def _seconds(figures: dict[str, Any]) -> str:
    """The table of seconds and its conditions; nothing where the machine was too busy to measure any."""
    if not figures["seconds"]:
        return ""
    ways = {**figures["seconds"]}
    ways |= {
        f"transformers.js in {environment}, greedy": each["seconds"]
        for environment, each in figures["javascript"].items()
    }
    rows = [[way, f"{each:.4f}"] for way, each in ways.items()]
    machine = machine_of({"machine": figures["machine"], "device": "cpu"})
    return (
        f"{_table(['way to translate', 'seconds a sentence'], rows, numbers=True)}\n\n"
        f"These are the means of test sentences, one by one, on {machine}: {_TIMED} of them, and {_COMPARED} in "
        "JavaScript. "
    )


def _same(results: dict[str, Any]) -> str:
    """How many translations of JavaScript are Python's, and the others."""
    lines = []
    for environment, each in results.items():
        count, others = each["sentences"], each["others"]
        lines.append(
            f"In {environment}, {count - len(others)} of {count} translations by the 8-bit graphs are those of Python."
        )
        lines += [f"“{source}”: “{python}” in Python, “{other}” there." for source, python, other in others]
    return " ".join(lines)


if __name__ == "__main__":
    sys.exit(main())
