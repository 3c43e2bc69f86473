"""A finished run becomes a folder of models/, and the card of it tells what was measured, wherever JavaScript runs, too."""

import shutil
from itertools import product

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer import Translator
from reluformer.training.shipped import DEFAULT_MODEL, MODELS

from ..conftest import demo_tokenizer, tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from benchmarks import javascript, ship


def test_samples_are_of_each_tenth_by_quality():
    wanted = [f"a fairly long sentence of number {number}" for number in range(40)]
    found = [text[: number + 2] for number, text in enumerate(wanted)]
    scores = [score for *_, score in ship.samples(wanted, found, wanted)]
    assert len(scores) == 10 and scores == sorted(scores) and scores[0] < 20 < 80 < scores[-1]


def test_the_card_tells_what_was_measured(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(2_500_000))
    scores = {"bleu": 31.25, "chrf": 50, "exact_match": 20, "bleu_signature": "b", "chrf_signature": "c"}
    figures = {
        "machine": {"cpu": "A processor", "torch_threads": 2},
        "scores": [{"system": "ours", "test": "Tatoeba", "sentences": 2000, **scores}],
        "seconds": {"`Translator`": 0.0123},
        "javascript": {"Node": {"sentences": 500, "seconds": 0.02, "others": [("a|b", "c", "d")]}},
        "samples": [("a|b", "c", "d", 12.3)],
    }
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


@pytest.mark.slow
def test_the_folder_loads_in_every_way(tmp_path):
    tokenizer = demo_tokenizer(50)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_model(
        vocab_size=len(tokenizer), max_position_embeddings=256, decoder_start_token_id=tokenizer.bos_token_id, **ids
    )
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    ship.write_model(tmp_path / "run", tmp_path / "model")
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert plain.dtype == torch.bfloat16
    assert (tmp_path / "model" / "modeling_reluformer.py").is_file()
    text = "Größe: zwölf"
    ids = [AutoTokenizer.from_pretrained(tmp_path / name)(text)["input_ids"] for name in ("run", "model", "model/onnx")]
    assert ids[0] == ids[1] == ids[2]
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
