"""Rows on pictures and on language models: what they read, how they are scored, and a run from the row to its
result."""

import dataclasses
import gzip
import itertools
import json
import math
from importlib.metadata import version

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.studies import pictures, texts, training
from benchmarks.studies.parser import STUDIES_FOLDER, load_rows
from benchmarks.studies.running import Runner
from benchmarks.studies.scores import perplexity_statistics
from benchmarks.studies.tasks import Places, Task, read_result
from reluformer import ReLUFormerForCausalLM, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError

from ...conftest import random_tokens, tiny_model

WORDS = ("alpha", "beta", "gamma", "delta")


def tiny_tokenizer():
    lines = (" ".join(words) for words in itertools.permutations(WORDS))
    return texts.train_byte_tokenizer(iter([*lines] * 4), vocab_size=280, max_length=16)


def test_every_token_is_predicted_once_and_documents_keep_their_own():
    tokenizer, documents = tiny_tokenizer(), [("a", "alpha beta"), ("b", "gamma <|endoftext|>"), ("c", "delta")]
    contexts = texts.Contexts.of(iter(documents), tokenizer, 8)
    ids = [[*tokenizer(text, split_special_tokens=True)["input_ids"], 0] for _, text in documents]
    assert contexts.tokens.tolist() == [0, *itertools.chain(*ids)], "what looks like a special token is text"
    assert contexts.documents == [(n, len(t.encode()), len(i)) for (n, t), i in zip(documents, ids, strict=True)]
    rows = [contexts[number] for number in range(len(contexts))]
    predicted = [token for row in rows for token in row["labels"].tolist() if token != -100]
    assert predicted + contexts.rest[0, 1:].tolist() == contexts.tokens[1:].tolist()
    assert all(row["labels"][0] == -100 and torch.equal(row["input_ids"][1:], row["labels"][1:]) for row in rows)


def test_the_score_of_a_split_is_the_loss_of_its_tokens(tmp_path):
    text = STUDIES_FOLDER / "smoke_corpus"
    data = {"max_length": 16, "test": {"paths": str(text / "test.en"), "documents": str(text / "test.doc")}}
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    recipe = {"data": data, "model": sizes, "tokenizer": {"vocab_size": 280}, "evaluation": {"batch_size": 3}}
    model = ReLUFormerForCausalLM(texts.build_config(recipe, tokenizer)).eval()
    found = texts.evaluate(recipe, "test", model, tmp_path)
    contexts, nats = texts.Contexts.of(texts.documents(data, "test"), tokenizer, 16), 0.0
    for start in range(0, len(contexts.tokens) - 1, 15):
        ids = contexts.tokens[start : start + 16].long()
        nats += cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="sum").item()
    assert found["tokens"] == len(contexts.tokens) - 1
    assert math.log(found["perplexity"]) == pytest.approx(nats / found["tokens"], rel=1e-5)
    statistics = perplexity_statistics(tmp_path / "documents.test.tsv", "test", 16)
    assert math.log(statistics["score"]) == pytest.approx(nats / found["tokens"], rel=1e-5)
    assert math.log(statistics["per_byte"]) == pytest.approx(nats / len((text / "test.en").read_bytes()), rel=1e-5)


def test_a_document_stays_in_its_split_where_others_come_or_go():
    shares = {"validation": 0.3, "test": 0.2, "seed": 1}
    splits = [texts.split_of(str(number), shares) for number in range(2000)]
    counts = {split: splits.count(split) / 2000 for split in set(splits)}
    assert counts == pytest.approx({"train": 0.5, "validation": 0.3, "test": 0.2}, abs=0.04)
    found = [texts.split_of(f"accelerate/{name}.py", {"test": 0.5}) for name in "abcd"]
    assert found == ["train", "test", "test", "train"], "as in the committed results"


def test_documents_are_lines_of_a_file_or_files_of_packages(tmp_path):
    with gzip.open(tmp_path / "text.gz", "wb") as file:
        file.write("über\nzwei\ndrei\n\nfünf\n".encode() + b"\xff\n")
    (tmp_path / "names").write_text("a\na\nb\nc\nd\ne\n", encoding="utf-8")
    source = {"paths": str(tmp_path / "text.gz"), "documents": str(tmp_path / "names")}
    found = list(texts.documents({"train": source}, "train"))
    assert found == [("a", "über\nzwei\n"), ("b", "drei\n"), ("c", "\n"), ("d", "fünf\n")], "the last is not UTF-8"
    assert [name for name, _ in texts.documents({"train": {**source, "only": ["b", "d"]}}, "train")] == ["b", "d"]
    files = texts.package_files({"names": ["click"], "exclude": []})
    assert "click/core.py" in files and list(files) == sorted(files)
    assert texts.package_files({"names": ["click"], "exclude": ["click"]}) == {}


def test_sources_of_other_releases_than_those_measured_are_refused(tmp_path):
    packages = {"names": ["click"], "listed": tmp_path / "some.txt"}
    packages["listed"].write_text(f"click=={version('click')}\n", encoding="utf-8")
    assert "click/core.py" in texts.package_files(packages)
    packages["listed"].write_text("click==0.1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"needs click==0\.1; pip install -r .*some\.txt"):
        texts.package_files(packages)


def config(**fields):
    return ReLUFormerVisionConfig.from_preset(
        "relu_vit", image_size=8, patch_size=4, num_labels=3, hidden_size=16, num_attention_heads=2, **fields
    )


@pytest.fixture
def recipe():
    return {"data": load_rows("smoke").rows["vit_softmax_L49"].recipe["data"], "training": {"seed": 1}}


def test_pixel_values_are_those_of_the_image_processor(recipe):
    given = pictures.Pictures(recipe, "test", config(num_channels=3))
    raw = pictures.read_idx(recipe["data"]["test"]["images"], 3)
    processed = pictures.image_processor(config(num_channels=3))(
        list(raw[..., None].repeat(3, -1)), return_tensors="pt"
    )
    torch.testing.assert_close(torch.stack([row["pixel_values"] for row in given]), processed["pixel_values"])
    grey = pictures.Pictures(recipe, "test", config(num_channels=1))[0]["pixel_values"]
    torch.testing.assert_close(grey[0], torch.from_numpy(raw[0] / 127.5 - 1).float())


def test_training_pictures_are_changed_as_the_recipe_says(recipe):
    recipe["augmentation"] = {"horizontal_flip": True, "random_labels": 0.5, "random_resized_crop": [0.2, 0.6]}
    plain, changed = (pictures.Pictures(recipe, "train", config(), training=on) for on in (False, True))
    drawn = np.mean(plain.labels != changed.labels)
    assert 0.2 < drawn < 0.45, "half are drawn anew, of which a third is as it was"
    boxes = [pictures._random_box((40, 30), (0.2, 0.6)) for _ in range(200)]
    areas = [(right - left) * (low - top) / 1200 for left, top, right, low in boxes]
    assert 0.15 < min(areas) < 0.25 and 0.55 < max(areas) < 0.65 and all(b[2] <= 40 and b[3] <= 30 for b in boxes)
    shares = pictures.Pictures(recipe, "train", config(problem_type="multi_label_classification"))
    mixed = pictures._mixed([shares[number] for number in range(6)], alpha=0.4)
    torch.testing.assert_close(mixed["labels"].sum(1), torch.ones(6))


def test_accuracy_and_calibration():
    logits = torch.eye(7)[[0, 1, 2, 3]] + torch.arange(7) * 0.01
    found = pictures.accuracies(pictures._hits(logits, torch.tensor([0, 1, 6, 0])))
    assert found == {"accuracy": 50.0, "top_5_accuracy": 75.0}
    sure = torch.tensor([[20.0, 0.0], [20.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert pictures.calibration_error(sure, torch.tensor([0, 1, 0, 0])) == pytest.approx(100 * (0.5 + 0.5) / 2)


def run(name, tmp_path, **changes):
    row = dataclasses.replace(load_rows("smoke").rows[name], **changes)
    task = Task(row, 1, Places.of("smoke", tmp_path / "runs", tmp_path / "results"))
    assert Runner("smoke", say=lambda line: None).run([task]) == []
    return task, read_result(task)


def test_a_language_model_is_trained_scored_and_analysed(tmp_path, started):
    task, result = run("lm_relu_attention_free_relu_lambda_0.01", tmp_path)
    evaluation = result["evaluations"]["test"]
    assert result["perplexity"]["score"] == pytest.approx(evaluation["perplexity"], rel=1e-6)
    assert result["analyses"]["entropy-share"]["table"] and result["analyses"]["ffn-sparsity"]["table"]
    assert result["training_seconds"] > 0 and result["cpu_seconds"] > 0 and result["training"]["updates"] == 4
    evaluated = [entry for entry in result["log_history"] if "eval_perplexity" in entry]
    assert evaluated[0]["eval_perplexity"] == pytest.approx(math.exp(evaluated[0]["eval_cross_entropy"]))
    text = (STUDIES_FOLDER / "smoke_corpus" / "test.en").read_text(encoding="utf-8")
    written = (task.run_folder / "analysis" / "text-4000" / "text.txt").read_text(encoding="utf-8")
    assert [line for line in written.splitlines() if line] == text.splitlines()


@pytest.mark.slow
def test_a_schedule_of_zeros_reaches_the_model_and_a_run_goes_on_at_its_checkpoint(tmp_path, started):
    task, result = run("zeros_prosparse_0.01", tmp_path, analyses=())
    assert json.loads((task.run_folder / "config.json").read_text())["ffn_threshold"] == 0.01
    for name in ("training_record.json", "model.safetensors", "evaluation.test.json"):
        (task.run_folder / name).unlink()
    task.result_file.unlink()
    (task.run_folder / "checkpoint-4" / "trainer_state.json").unlink(missing_ok=True)  # killed while it was written
    again = run("zeros_prosparse_0.01", tmp_path, analyses=())[1]
    assert again["perplexity"]["score"] == pytest.approx(result["perplexity"]["score"], rel=1e-6)


def test_a_classifier_is_trained_scored_and_analysed(tmp_path, started):
    task, result = run("zeros_vit_top_k_labels_0.4", tmp_path)
    evaluation = result["evaluations"]["test"]
    assert result["accuracy"]["score"] == pytest.approx(evaluation["accuracy"])
    assert [row["std"] for row in evaluation["noise"]] == [0.25, 0.5] and evaluation["calibration_error"] >= 0
    assert result["analyses"]["ffn-sparsity"]["table"] and result["log_history"][0]["images_per_update"] == 12
    assert (task.run_folder / "preprocessor_config.json").is_file()


def test_gamma_of_each_head_is_set_so_that_its_rows_have_the_mean_sum():
    model = tiny_model(attention_gamma=5.0, attention_gamma_learnable=True, encoder_layers=2)
    batch = {name: random_tokens(3, 6, seed=seed) for seed, name in enumerate(("input_ids", "labels"))}
    training.set_gamma(model, [dict(zip(batch, pair, strict=True)) for pair in zip(*batch.values(), strict=True)], 0.4)
    found = model(**batch, output_attentions=True)
    for weights in (*found.encoder_attentions, *found.decoder_attentions, *found.cross_attentions):
        torch.testing.assert_close(weights.sum(-1).mean((0, 2)), torch.full((weights.shape[1],), 0.4))
