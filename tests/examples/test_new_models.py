"""The programs that train the package's classifier of pictures and its language model by the plain Trainer."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForCausalLM, AutoTokenizer, pipeline

from examples import train_language_model, train_vit

from ..tiny_texts import text


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of dark and of bright pictures."""
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for number in range(count):
            name, most = ("dark", 90) if number % 2 else ("bright", 255)
            path = folder / split / name / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(most // 2, most, (9, 11), dtype=np.uint8)).save(path)
    return folder


@pytest.mark.parametrize("attention", ["relu_vit", "softmax_vit"])
def test_a_classifier_learns_and_comes_back_with_its_processor(attention, pictures, tmp_path):
    sizes = ["--image_size", "8", "--patch_size", "4", "--hidden_size", "16", "--layers", "1", "--heads", "2"]
    given = ["--dataset", str(pictures), "--output_dir", str(tmp_path), "--attention", attention, *sizes]
    found = train_vit.main([*given, "--epochs", "12", "--batch_size", "8", "--learning_rate", "0.01"])
    assert found["eval_accuracy"] == 1.0
    assert AutoImageProcessor.from_pretrained(tmp_path).size == {"height": 8, "width": 8}
    (best, _) = pipeline("image-classification", model=str(tmp_path))(str(pictures / "test" / "bright" / "00.png"))
    assert best["label"] == "bright"
    said = json.loads((tmp_path / "config.json").read_text())["attention_activation"]
    assert said == attention.removesuffix("_vit")


@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_a_language_model_trains_and_its_perplexity_is_without_the_regulariser(attention, tmp_path):
    for number in range(0, 24, 2):
        (tmp_path / f"{number:02}.txt").write_text(text(number), encoding="utf-8")
    sizes = ["--vocab_size", "290", "--context", "16", "--hidden_size", "16", "--layers", "1", "--heads", "2"]
    given = ["--texts", str(tmp_path / "*.txt"), "--output_dir", str(tmp_path / "lm"), *sizes]
    given += ["--held_out", "3", "--attention", attention, "--max_steps", "30", "--learning_rate", "0.01"]
    found = train_language_model.main(given)
    assert 1 < found["perplexity_per_byte"] < found["perplexity"] < 100, "290 tokens, of which it knows few"
    model, tokenizer = (kind.from_pretrained(tmp_path / "lm") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.attention_activation == attention
    held_out = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("*.txt"))[-3:]]
    rows = train_language_model.in_contexts(held_out, tokenizer, 16)
    ids, labels = (torch.tensor(rows[name]) for name in ("input_ids", "labels"))
    output = model.eval()(ids, labels=labels)
    loss = output.loss if output.cross_entropy is None else output.cross_entropy
    assert math.exp(loss.item()) == pytest.approx(found["perplexity"], rel=1e-3)
