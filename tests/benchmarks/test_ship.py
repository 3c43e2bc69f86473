"""A finished run becomes a folder of models/, and the card of it tells what was measured, wherever JavaScript runs,
too."""

import json
import os
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer import Translator
from reluformer.translating.shipped import DEFAULT_MODEL, FIGURES_FILE, MODELS
from reluformer.translating.translation import ScoredTranslation

from ..conftest import demo_tokenizer, tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from benchmarks import doubt, javascript, near_training, robustness, ship


def test_samples_are_of_each_tenth_by_quality():
    wanted = [f"a fairly long sentence of number {number}" for number in range(40)]
    found = [text[: number + 2] for number, text in enumerate(wanted)]
    scores = [score for *_, score in ship.samples(wanted, found, wanted)]
    assert len(scores) == 10 and scores == sorted(scores) and scores[0] < 20 < 80 < scores[-1]


SCORES = {"bleu": 31.25, "chrf": 50, "exact_match": 20, "bleu_signature": "b", "chrf_signature": "c"}


@pytest.fixture
def figures():
    return {
        "machine": {"cpu": "A processor", "torch_threads": 2},
        "scores": [{"system": "ours", "test": "Tatoeba", "sentences": 2000, **SCORES}],
        "seconds": {"`Translator`": 0.0123},
        "javascript": {"Node": {"sentences": 500, "seconds": 0.02, "others": [("a|b", "c", "d")]}},
        "samples": [("a|b", "c", "d", 12.3)],
    }


def test_the_card_tells_what_was_measured(figures, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(2_500_000))
    text = ship.section(tmp_path, figures)
    for line in (
        "Weights in bfloat16: 2.5 MB.",
        "| ours | 31.2 | 50.0 | 20.0 |",
        "| transformers.js in Node, greedy | 0.0200 |",
        "one by one, on A processor, 2 threads: 200 of them, and 500 in JavaScript. In Node, 499 of 500 translations",
        "“a|b”: “c” in Python, “d” there.",
        r"| a\|b | c | d | 12 |",
    ):
        assert line in text


def test_the_threshold_of_doubt_is_the_highest_below_which_half_of_the_translations_are_bad():
    for _ in range(20):
        scores = np.round(np.random.normal(-1, 0.5, 60), 1)  # some are equal
        bad = np.random.random(60) < 1 / (1 + np.exp(5 * (scores + 1.4)))

        def is_half_bad(threshold, scores=scores, bad=bad):
            return (scores < threshold).any() and bad[scores < threshold].mean() >= 0.5

        wanted = max(filter(is_half_bad, scores), default=None)
        assert doubt.threshold_of(scores, bad) == wanted
        counts = doubt.counts_of(scores, bad, wanted)
        below = np.full(60, False) if wanted is None else scores < wanted
        assert counts == {
            "translations": 60,
            "bad": bad.sum(),
            "doubtful": below.sum(),
            "doubtful_and_bad": sum(below[index] and bad[index] for index in range(60)),
        }
    assert doubt.threshold_of(np.array([-4, -3, -2, -1]), np.array([True, False, True, False])) == -1
    assert doubt.threshold_of(np.array([-2.0, -1.0]), np.array([False, True])) is None


def test_the_threshold_of_doubt_is_chosen_by_tatoeba_for_greedy_translations_of_whole_texts(tmp_path, monkeypatch):
    asked = []

    def load(folder, **options):
        asked.append((folder, options))
        return lambda texts: [ScoredTranslation(*each) for each in texts]

    monkeypatch.setattr(doubt, "load_translator", load)
    near, far = "We are here now.", "Nothing."  # chrF 35 and less, of "They were here."
    tatoeba = [("They were here.", -1.0), (near, -2.0), (far, -3.0)]
    multi30k = [(far, -1.5), ("They were here.", -4.0)]
    texts = {
        name: (rows, ["They were here."] * len(rows)) for name, rows in (("Tatoeba", tatoeba), ("Multi30k", multi30k))
    }
    measured = doubt.measure(tmp_path, texts)
    assert asked == [(tmp_path / "onnx", {"num_beams": 1, "split": "none", "scores": True})]
    assert measured == {
        "bad_below_chrf": 40,
        "threshold": -1.0,
        "Tatoeba": {"translations": 3, "bad": 2, "doubtful": 2, "doubtful_and_bad": 2},
        "Multi30k": {"translations": 2, "bad": 1, "doubtful": 2, "doubtful_and_bad": 1},
    }


def test_every_source_is_varied_and_three_are_a_text_that_is_translated_whole_or_by_sentences():
    sources, asked = [f"Grün {number}." for number in range(6)], []

    def translator(texts, progress, split=None):
        asked.append((texts, split))
        return texts

    scores = robustness.scores_of_variants(translator, sources, sources)
    assert list(scores) == list(robustness.WORDS) and scores["plain"]["chrf"] > scores["upper"]["chrf"]
    texts = dict(zip(robustness.WORDS, asked, strict=True))
    three = ["Grün 0. Grün 1. Grün 2.", "Grün 3. Grün 4. Grün 5."]
    assert texts[robustness.WHOLE] == (three, "none") and texts[robustness.SPLIT] == (three, "sentences")
    assert [text for text, _ in asked[:5]] == [
        sources,
        [source.lower() for source in sources],
        [source.upper() for source in sources],
        [source.removesuffix(".") for source in sources],
        [source.replace("ü", "ue") for source in sources],
    ]


def test_texts_in_other_scripts_are_counted_that_come_out_as_they_are_or_empty():
    counts = robustness.foreign_texts(lambda texts: ["made up", " ", *texts[2:]])
    assert counts == {"texts": 200, "unchanged": 198, "empty": 1}


def test_the_card_says_what_a_doubtful_translation_is(figures, tmp_path):
    counts = {"translations": 200, "bad": 30, "doubtful": 40, "doubtful_and_bad": 24}
    measured = {"bad_below_chrf": 40, "threshold": -1.234, "Tatoeba": counts, "Multi30k": counts | {"bad": 100}}
    text = " ".join(ship.section(tmp_path, figures | {"doubt": measured}).split())
    assert "mean log-probability below -1.23 is doubtful" in text
    assert "which the limit was chosen on, 20 % are below it, and 60 % of those are bad, where 15 % of all are." in text
    assert "On captions, 20 % are below it, and 60 % of those are bad, where 50 % of all are." in text
    assert "doubtful" not in ship.section(tmp_path, figures | {"doubt": measured | {"threshold": None}})


def test_a_test_sentence_is_near_a_training_sentence_but_for_one_word():
    training = ["Tom kam gestern nach Hause.", "Wo ist der Bahnhof?", "Ja."]
    near = [
        "tom kam  heute nach Hause.",
        "Tom kam nach Hause.",
        "Wo ist denn der Bahnhof?",
        "Nein.",
        "Ist der Bahnhof?",
    ]
    far = ["Tom kam heute nach Berlin.", "der ist Wo Bahnhof?", "Tom ging heute gestern nach Hause.", "Wo ist"]
    assert near_training.near_ones(near + far, training) == set(range(len(near)))


def test_near_sentences_are_scored_apart_and_the_card_says_it(tmp_path):
    words = ["ein", "Hund", "läuft", "schnell", "über", "die", "große", "nasse", "Wiese"]
    near = [" ".join([*words, str(number)]) for number in range(3)]
    far = [
        "Niemand hat gestern so viele Bücher gelesen wie ich",
        "Wir haben heute leider überhaupt keine Zeit für dich",
    ]
    found = near_training.measure(near + far, (near + far, [*near, "no", "no"]), [" ".join(words)])
    assert (found["sentences"], found["near"]) == (5, 3)
    assert found["bleu_near"] == pytest.approx(100) and found["bleu_others"] < 1
    text = ship.near_training_words({"near_training": found})
    assert "60 % of the test sources" in text and "has 100.0 BLEU with 5 beams, and 0." in text
    assert ship.near_training_words({}) == ""


def test_the_card_tells_of_a_twin_only_where_there_is_one(figures, tmp_path):
    twin = figures["scores"][0] | {"system": "softmax twin, greedy"}
    alone, compared = (
        ship.section(tmp_path, figures | {"scores": scores})
        for scores in (figures["scores"], [*figures["scores"], twin])
    )
    assert "softmax" not in alone and "\nThe model was trained once, with one seed" in alone
    assert "The softmax\ntwin has the same recipe" in compared and "\nBoth models were trained once" in compared


def test_the_card_tells_what_the_model_makes_of_text_as_people_type_it(figures, tmp_path):
    scores = {name: {"tokenized_lowercase_bleu": bleu} for name, bleu in (("plain", 51.26), ("lower", 48.04))}
    measured = {"pairs": 2000, "scores": scores, "foreign": {"texts": 200, "unchanged": 130, "empty": 0}}
    text = ship.section(tmp_path, figures | {"robustness": measured})
    for line in (
        "Tatoeba's 2,000 validation sources",
        "| as they are | 51.3 |\n| in lower case | 48.0 |\n",
        "Of 200 texts",
        "130 come",
    ):
        assert line in text
    assert "type them" not in ship.section(tmp_path, figures)


def test_a_busy_machine_gives_no_seconds_and_the_rest_of_the_card(figures, tmp_path):
    del figures["javascript"]["Node"]["seconds"]
    text = ship.section(tmp_path, figures | {"seconds": {}})
    assert "way to translate" not in text and "one by one" not in text
    assert "\n\nIn Node, 499 of 500 translations" in text


@pytest.mark.parametrize("name", ["tatoeba-de-en", "tatoeba-en-de"])
def test_the_card_of_a_model_that_comes_with_the_package_follows_from_its_figures(name, tmp_path):
    if not (MODELS / name / "onnx").is_dir():
        pytest.skip(f"{MODELS / name / 'onnx'} is not there: a clone has it, and a wheel does not")
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    figures = json.loads((MODELS / name / FIGURES_FILE).read_text(encoding="utf-8"))
    assert ship.section(MODELS / name, figures) in card
    folder = Path("models") / name
    assert f'"{folder.as_posix()}")' in card and ship.of_a_published_copy(card, folder) == card


def test_a_twin_without_a_run_is_refused(capsys):
    with pytest.raises(SystemExit):
        ship.main(["--twin", "runs/a", "--output", "models/a"])


@pytest.fixture
def folder(tmp_path):
    """What `write_model` makes of a tiny run."""
    tokenizer = demo_tokenizer(50)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_model(
        vocab_size=len(tokenizer), max_position_embeddings=256, decoder_start_token_id=tokenizer.bos_token_id, **ids
    )
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    ship.write_model(tmp_path / "run", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_the_graphs_of_a_folder_are_made_and_measured_anew(folder, figures, monkeypatch):
    """Without the runs: what does not depend on the graphs stays as it was."""
    others = [{"system": "softmax twin, greedy", "test": test, "sentences": 2, **SCORES} for test in ("Tatoeba", "b")]
    of_graphs = [each | {"system": ship.SYSTEM_OF_GRAPHS} for each in others]
    record = dict.fromkeys(("command", "date", "git_commit", "git_dirty", "seed", "versions"), "before")
    before = figures | record | {"recipe": "tatoeba_de_en", "scores": [*others, *of_graphs]}
    (folder / FIGURES_FILE).write_text(json.dumps(before))
    (folder / "README.md").write_text(f"top\n{ship._HEADING}\nold\n{ship._NEXT_HEADING}below\n")
    (folder / "onnx" / "encoder_model.onnx").write_bytes(b"damaged")
    tests = {test: (["eins", "zwei"], ["one", "two"]) for test in ("Tatoeba", "b")}
    monkeypatch.setattr(ship, "sentences_to_test", lambda data, multi30k: tests)
    monkeypatch.setattr(ship, "sentences_to_validate", lambda data, multi30k: tests)
    monkeypatch.setattr(doubt, "measure", lambda folder, texts: {"threshold": None})
    monkeypatch.setattr(javascript, "INSTALLED", folder / "none")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert ship.main(["--output", str(folder)]) == 0
    after = json.loads((folder / FIGURES_FILE).read_text())
    assert after["scores"][:2] == others
    assert [(each["test"], each["bleu"] == SCORES["bleu"]) for each in after["scores"][2:]] == [
        ("Tatoeba", False),
        ("b", False),
    ]
    assert after["other_scores"]["date"] == "before" != after["date"]
    assert len(after["seconds"]) == 5 and after["samples"] == [list(each) for each in figures["samples"]]
    card = (folder / "README.md").read_text()
    assert card == f"top\n{ship.section(folder, after)}{ship._NEXT_HEADING}below\n"


@pytest.mark.slow
def test_the_folder_loads_in_every_way(folder, tmp_path):
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert plain.dtype == torch.float32
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert not [*(tmp_path / "model").glob("*.py")] and "auto_map" not in json.loads(
        (tmp_path / "model" / "config.json").read_text(encoding="utf-8")
    )
    text = "Größe: zwölf"
    ids = [AutoTokenizer.from_pretrained(tmp_path / name)(text)["input_ids"] for name in ("run", "model", "model/onnx")]
    assert ids[0] == ids[1] == ids[2]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert Translator.from_pretrained(tmp_path / "model")(text) == Translator(plain.float(), tokenizer)(text)
    assert isinstance(javascript.in_python(tmp_path / "model" / "onnx", [text])[0], str)


WHO = ("Ich habe", "Du hast", "Tom hat", "Meine Schwester hat", "Wir haben", "Ihr habt", "Sie haben", "Niemand hat")
WHAT = ("gestern den Bahnhof", "noch nie einen Fehler", "ihre Adresse", "zwei Hunde", "das rote Buch", "den Schlüssel")
DONE = ("gesehen.", "gefunden.", "vergessen!", "verloren.", "gesucht?", "gekauft.", "gezählt.", "mitgebracht.")
AND = ("", " Warum?")
SENTENCES = [" ".join(words[:3]) + words[3] for words in product(WHO, WHAT, DONE, AND)][:500]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("where", "programs"), [("node", ["node"]), ("chromium", ["chromium", "chromedriver"])])
def test_transformers_js_translates_as_python_does(where, programs):
    sentences = SENTENCES[: 500 if where == "node" else 100]
    graphs = MODELS / DEFAULT_MODEL / "onnx"
    if not graphs.is_dir():
        pytest.skip(f"{graphs} is not there")
    if not javascript.INSTALLED.is_dir() or not all(map(shutil.which, programs)):
        pytest.skip(f"needs {', '.join(programs)}, and transformers.js by: python -m benchmarks.javascript")
    if where == "chromium":
        pytest.importorskip("selenium", reason="the browser is driven by the optional package selenium")
    found = getattr(javascript, f"in_{where}")(graphs, sentences)["translations"]
    wanted = javascript.in_python(graphs, sentences)
    others = [row for row in zip(sentences, wanted, found, strict=True) if row[1] != row[2]]
    assert len(others) <= len(sentences) / 250, others  # what rounding decides between two words as likely
