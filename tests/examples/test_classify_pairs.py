"""The program that trains a BERT with ReLU attention runs on a few sentences, and its model comes back."""

import random
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from examples import classify_pairs

WORDS = (
    ["the", "a", "man", "dog", "street", "red", "walks", "in"],
    ["I", "you", "do", "not", "know", "why", "Tom", "ever"],
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[str]:
    """Two corpora of different sentences of 6 to 12 words."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("texts")
    for number, words in enumerate(WORDS):
        lines = [" ".join(draw.choices(words, k=draw.randint(6, 12))) + " ." for _ in range(400)]
        (folder / f"{number}.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n", encoding="utf-8")
    return [str(folder / "0.txt"), str(folder / "1.txt")]


def test_the_classifier_trains_and_comes_back(texts, tmp_path):
    found = classify_pairs.main(
        ["--texts", *texts, "--output_dir", str(tmp_path), "--examples", "256", "--held_out", "32"]
    )
    assert 0 <= found["eval_accuracy"] <= 1 and found["eval_loss"] > 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config._attn_implementation == "reluformer"
    assert model.config.reluformer["regularization_weight"] == 0.01 and model.config.reluformer["gamma"] == 16.0


def test_the_label_is_the_corpus_of_the_first_sentence(texts):
    found = classify_pairs.build_examples(texts, 100, seed=0)
    corpora = [set(Path(path).read_text(encoding="utf-8").lower().splitlines()) for path in texts]
    kinds = [tuple(0 if each[side] in corpora[0] else 1 for side in ("first", "second")) for each in found]
    assert [each["label"] for each in found] == [first for first, _ in kinds]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(classify_pairs.KINDS, 25)
    assert len({each[side] for each in found for side in ("first", "second")}) == 200, "a sentence occurs twice"
    with pytest.raises(SystemExit, match="are needed"):
        classify_pairs.build_examples(texts, 100_000, seed=0)
