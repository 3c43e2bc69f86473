"""The programs that train models of other families: each runs on a few sentences, with ReLU attention and with softmax."""

import ast
import random
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from examples import classify_pairs, train_llama

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


def given(texts: list[str], folder: Path, attention: str, *more: str) -> list[str]:
    return ["--texts", *texts, "--output_dir", str(folder), "--attention", attention, *more]


@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_the_classifier_trains_and_comes_back(attention, texts, tmp_path):
    size = ("--examples", "256", "--held_out", "32", "--epochs", "1")
    found = classify_pairs.main(given(texts, tmp_path, attention, *size))
    assert (found["examples"], found["updates"]) == (256, 2)
    assert 0 <= found["bag_of_words_accuracy"] <= 1 and 0 <= found["accuracy"] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    if attention == "relu":
        assert model.config._attn_implementation == "reluformer"
        assert model.config.reluformer["regularization_weight"] == 0.01
        assert found["attention"]["gamma"] == 8.0
    else:
        assert model.config._attn_implementation == "sdpa" and found["attention"] == "softmax"


@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_the_language_model_trains_and_comes_back(attention, texts, tmp_path):
    size = ("--lines", "300", "--held_out", "2", "--max_steps", "2")
    found = train_llama.main(given(texts[:1], tmp_path, attention, *size))
    assert found["updates"] == 2 and found["training_tokens"] == 2 * 8 * 128
    assert found["frequency_loss"] > 0 and found["validation_loss"] > 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (model.config._attn_implementation == "reluformer") is (attention == "relu")
    assert attention == "softmax" or model.config.reluformer["gamma"] == 16.0


def test_the_label_is_the_corpus_of_the_first_sentence(texts):
    found = classify_pairs.build_examples(texts, 100, seed=0)
    assert (
        found == classify_pairs.build_examples(texts, 100, seed=0) != classify_pairs.build_examples(texts, 100, seed=1)
    )
    corpora = [set(Path(path).read_text(encoding="utf-8").lower().splitlines()) for path in texts]
    kinds = [tuple(0 if each[side] in corpora[0] else 1 for side in ("first", "second")) for each in found]
    assert [each["label"] for each in found] == [first for first, _ in kinds]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(classify_pairs.KINDS, 25)
    assert len({each[side] for each in found for side in ("first", "second")}) == 200, "a sentence occurs twice"


@pytest.mark.parametrize("program", [classify_pairs, train_llama])
def test_too_few_lines_are_named(program, texts, tmp_path):
    size, files = ("--examples", texts) if program is classify_pairs else ("--lines", texts[:1])
    with pytest.raises(SystemExit, match="are needed"):
        program.main(given(files, tmp_path, "relu", size, "100000"))


@pytest.mark.parametrize("program", [classify_pairs, train_llama])
def test_a_program_takes_one_name_from_this_package(program):
    tree = ast.parse(Path(program.__file__).read_text(encoding="utf-8"))
    ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "reluformer"]
    assert [alias.name for node in ours for alias in node.names] == ["use_relu_attention"]
