"""Recipes of language modelling: sources of texts, a run and its folder, going on after an interruption, wrong input."""

import json
import math

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from reluformer import ReLUFormerDecoderConfig
from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import LanguageRecipe
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.data.text_sources import split_documents
from reluformer.training.language_trainer import LanguageTrainer, perplexities
from reluformer.training.language_training import build_language_config

from .interruptions import assert_gone_on_as, train_until_killed
from .tiny_texts import text, write_recipe


@pytest.fixture
def recipe_file(tmp_path):
    return write_recipe(tmp_path)


def test_a_run_leaves_everything_in_its_folder_and_a_pipeline_takes_it(recipe_file, capsys):
    folder = train(load_recipe(recipe_file))
    printed = capsys.readouterr().out
    assert "train: 14 of 15 documents kept; skipped 1 × is not UTF-8 text (first: first/latin1.txt)" in printed
    assert "the last 7 tokens fill none and are left out" in printed and "· perplexity " in printed
    assert printed.strip().splitlines()[-1].endswith(" on 5 held-out documents (test)")
    wanted = {"recipe.yaml", "model.safetensors", "tokenizer.json", "training_record.json", "README.md"}
    wanted |= {"evaluation.test.json", "documents.test.tsv", "training_curve.png", "attention_map.png"}
    assert {path.name for path in folder.iterdir()} >= wanted
    record = json.loads((folder / "training_record.json").read_text())
    assert record["updates"] == 8 and record["averaged_checkpoints"] == ["checkpoint-6", "checkpoint-8"]
    assert record["target_tokens_per_update"] == 4 * 15  # of 16 tokens, the first is not predicted
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert {"cross_entropy", "grad_norm"} <= logs[0].keys()
    evaluated = next(entry for entry in logs if "eval_loss" in entry)
    assert evaluated["eval_perplexity"] == pytest.approx(math.exp(evaluated["eval_cross_entropy"]))
    assert f"| Perplexity per token | {evaluation_of(folder)['perplexity']:.2f} |" in (folder / "README.md").read_text()

    continued = pipeline("text-generation", model=str(folder))("alpha", max_new_tokens=4, do_sample=False)
    assert continued[0]["generated_text"].startswith("alpha")


def evaluation_of(folder, split="test"):
    return json.loads((folder / f"evaluation.{split}.json").read_text())


def test_the_perplexity_is_that_of_the_whole_stream_by_hand(recipe_file):
    recipe = load_recipe(recipe_file)
    folder = train(recipe)
    evaluation = evaluation_of(folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    documents = [each for each in split_documents(recipe.data, "test").read() if each.text]
    stream, owners = [tokenizer.eos_token_id], []
    for number, document in enumerate(documents):
        ids = tokenizer.backend_tokenizer.encode(document.text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == document.text
        stream += [*ids, tokenizer.eos_token_id]
        owners += [number] * (len(ids) + 1)
    # what looks like the end token in a text is text
    assert "<|endoftext|>" in documents[0].text and stream.count(tokenizer.eos_token_id) == len(documents) + 1
    nats = []
    for place in range(1, len(stream)):
        start = (place - 1) // 15 * 15
        with torch.no_grad():
            logits = model(torch.tensor([stream[start:place]])).logits[0, -1].double()
        nats.append(float(-logits.log_softmax(-1)[stream[place]]))
    size = sum(len(document.text.encode()) for document in documents)
    assert (evaluation["tokens"], evaluation["bytes"]) == (len(nats), size)
    assert evaluation["perplexity"] == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)
    assert evaluation["perplexity_per_byte"] == pytest.approx(math.exp(sum(nats) / size), rel=1e-5)
    assert evaluation["bits_per_byte"] == pytest.approx(sum(nats) / size / math.log(2), rel=1e-5)
    rows = [line.split("\t") for line in (folder / "documents.test.tsv").read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == [document.name for document in documents]
    for number, row in enumerate(rows):
        own = [value for value, owner in zip(nats, owners, strict=True) if owner == number]
        assert int(row[2]) == len(own) and float(row[3]) == pytest.approx(sum(own), rel=1e-5)


def test_the_validation_during_training_is_the_same_figure(recipe_file):
    options = ["--evaluation.splits", "[validation]", "--averaging.last_checkpoints", "0"]
    folder = train(parse_recipe(["--config", str(recipe_file), *options]))
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    last = [entry for entry in logs if "eval_loss" in entry][-1]
    evaluation = evaluation_of(folder, "validation")
    for name in ("perplexity", "perplexity_per_byte", "bits_per_byte"):
        assert last[f"eval_{name}"] == pytest.approx(evaluation[name], rel=1e-4)


def test_a_run_that_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(recipe_file, tmp_path, monkeypatch):
    whole = train(load_recipe(recipe_file))
    options = ["--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]
    train_until_killed(LanguageTrainer, 7, options, monkeypatch)
    changed = next((tmp_path / "texts" / "second").glob("*.txt"))
    content = changed.read_text()
    changed.write_text(content + "more")
    with pytest.raises(UserError, match=rf"trained with another content of .*{changed.name} \(data\.corpus\)"):
        train(parse_recipe(options))
    changed.unlink()
    with pytest.raises(UserError, match=rf"trained with second/{changed.name}, which is gone"):
        train(parse_recipe(options))
    changed.write_text(content)
    with pytest.raises(UserError, match="per_device_train_batch_size 4, the recipe says 5"):
        train(parse_recipe([*options, "--training.per_device_train_batch_size", "5"]))
    warnings = []
    monkeypatch.setattr("transformers.trainer.logger.warning", lambda message, *args, **_: warnings.append(message))
    folder = train(parse_recipe(options))
    assert not any("missing keys" in message for message in warnings)  # lm_head is tied to the embedding
    assert_gone_on_as(folder, whole, "checkpoint-6")


def test_a_run_goes_on_in_another_folder(recipe_file, tmp_path):
    kept = ["--training.save_total_limit", "9", "--averaging.last_checkpoints", "0"]
    options = ["--config", str(recipe_file), *kept, "--training.output_dir"]
    whole = train(parse_recipe([*options, str(tmp_path / "whole")]))
    resumed = ["--training.resume_from_checkpoint", str(whole / "checkpoint-6")]
    folder = train(parse_recipe([*options, str(tmp_path / "elsewhere"), *resumed]))
    for name in ("model.safetensors", "tokenizer.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("name", ["sdpa", "flash"])
def test_an_evaluation_by_an_attention_that_cannot_compute_it_is_refused_before_training(recipe_file, name):
    options = ["--model.attention_activation", "relu", "--evaluation.attn_implementation", name]
    with pytest.raises(UserError, match=rf'^evaluation.attn_implementation: Specified `attn_implementation="{name}"`'):
        train(parse_recipe(["--config", str(recipe_file), *options]))


def test_it_learns_with_relu_attention_and_the_regulariser(recipe_file, capsys):
    options = ["--training.max_steps", "80", "--training.eval_strategy", "no", "--averaging.last_checkpoints", "0"]
    arms = ["--model.preset", "llama_relu", "--model.attention_gamma", "4", "--model.regularization_weight", "0.02"]
    folder = train(parse_recipe(["--config", str(recipe_file), *options, *arms]))
    assert evaluation_of(folder)["perplexity"] < 12  # of 290 pieces
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert logs[0]["loss"] == pytest.approx(logs[0]["cross_entropy"] + 0.02 * logs[0]["regularization"], rel=1e-3)
    capsys.readouterr()
    assert cli.main(["evaluate", "--run", str(folder), "--split", "validation"]) == 0
    assert "on 5 held-out documents (validation)" in capsys.readouterr().out
    assert cli.main(["evaluate", "--run", str(folder), "--num_beams", "3"]) == 2
    assert "--num_beams: is for translations" in capsys.readouterr().err


def test_a_run_starts_from_a_model_with_its_tokenizer(recipe_file, tmp_path):
    first = train(load_recipe(recipe_file))
    options = ["--config", str(recipe_file), "--initialize_from", str(first), "--name", "second"]
    options += [
        "--tokenizer.vocab_size",
        "8000",
        "--training.output_dir",
        str(tmp_path / "second"),
        "--training.max_steps",
        "2",
    ]
    second = train(
        parse_recipe([*options, "--averaging.last_checkpoints", "0", "--model.attention_activation", "relu"])
    )
    assert json.loads((second / "config.json").read_text())["attention_activation"] == "relu"
    assert (second / "tokenizer.json").read_text() == (first / "tokenizer.json").read_text()


def test_files_a_data_set_and_lines_give_the_same_documents(recipe_file, tmp_path):
    texts = sorted((tmp_path / "texts").rglob("[0-9]*.txt"))
    rows = [{"content": path.read_text(encoding="utf-8")} for path in texts]
    datasets.DatasetDict({"all": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "set")
    lines = [line for row in rows for line in row["content"].splitlines(keepends=True)]
    names = [path.stem for path, row in zip(texts, rows, strict=True) for _ in row["content"].splitlines()]
    (tmp_path / "lines.txt").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    common = ["--config", str(recipe_file), "--data.corpus", "null", "--data.split", "null"]
    lined = ["--data.train.paths", str(tmp_path / "lines.txt"), "--data.train.documents", str(tmp_path / "names.txt")]
    origins = [
        [*common, "--data.train.paths", str(tmp_path / "texts"), "--data.train.pattern", "[0-9]*.txt"],
        [*common, "--data.train.paths", json.dumps([str(path) for path in texts])],
        [*common, "--data.train.dataset.path", str(tmp_path / "set"), "--data.train.dataset.split", "all",
         "--data.train.dataset.column", "content"],
        [*common, *lined],
    ]  # fmt: skip
    small = ["--evaluation.splits", "[]", "--training.eval_strategy", "no"]
    found = [list(split_documents(parse_recipe([*each, *small]).data, "train").read()) for each in origins]
    for documents in found:
        assert [document.text for document in documents] == [row["content"] for row in rows]
    assert [document.name for document in found[3]] == [path.stem for path in texts]
    only = [*common, *lined, "--data.train.only", '["07", "08"]', *small]
    assert [each.name for each in split_documents(parse_recipe(only).data, "train").read()] == ["07", "08"]


def test_splits_follow_from_names_and_seed_alone(recipe_file, tmp_path):
    def names(data):
        return {
            split: {each.name for each in split_documents(data, split).read()}
            for split in ("train", "validation", "test")
        }

    data = load_recipe(recipe_file).data
    before = names(data)
    assert sum(map(len, before.values())) == 26 and all(before.values())
    assert not before["train"] & before["test"] and not before["validation"] & before["test"]
    (tmp_path / "texts" / "new.txt").write_text("new")
    after = names(data)
    assert all(before[split] <= after[split] for split in before)
    data.split.seed = 2
    assert names(data) != after


def test_perplexities_by_hand():
    found = perplexities(math.log(8), tokens=10, text_bytes=30)
    assert found == pytest.approx({"perplexity": 8, "perplexity_per_byte": 2, "bits_per_byte": 1})
    assert perplexities(1000.0, 1, 1)["perplexity"] == math.inf


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data.corpus.paths", "nowhere"], "file not found: nowhere"),
        (["--data.corpus.paths", "nowhere", "--data.homepage", "https://a.example"], "are to be had at https://a.example"),
        (["--data.corpus.pattern", "*.rst"], "holds no file '*.rst'"),
        (["--data.corpus.pattern", "empty.txt"], "empty corpus: no document of the training split"),
        (["--data.max_length", "33"], "data.max_length: 33 is more than model.max_position_embeddings 32"),
        (["--data.max_length", "1"], "a context of 1 predicts nothing"),
        (["--data.split.test", "0"], "evaluation.splits: the recipe's data has no test split"),
        (["--data.split.test", "0.9"], "leaves nothing to train on"),
        (["--data.split.test", "-1"], "must be a share"),
        (["--data.train.paths", "x"], "exactly one of corpus, train/validation/test"),
        (["--data.corpus.packages.names", "[torch]"], "data.corpus: give exactly one of paths, packages, dataset"),
        (["--data.corpus.documents", "x", "--data.corpus.paths", "[a, b]"], "names the documents of one file"),
        (["--data.corpus.only", "[x]"], "data.corpus.documents names no file"),
        (["--model.vocab_size", "300"], "model.vocab_size: follows from the tokenizer"),
        (["--model.hidden_sise", "3"], "did you mean hidden_size"),
        (["--model.preset", "gpt3"], "gpt3"),
        (["--tokenizer.vocab_size", "258"], "leaves no room for BPE merges"),
        (["--tokenizer.path", "nowhere"], "tokenizer.path: nowhere: its tokenizer cannot be loaded: no such folder here"),
        (["--tokenizer.path", "runs/nowhere"], "tokenizer.path: 'runs/nowhere': no such folder"),
        (["--training.label_smoothing_factor", "0.1"], "label_smoothing_factor"),
        (["--evaluation.splits", "[dev]"], "'dev'"),
        (["--evaluation.batch_size", "0"], "evaluation.batch_size: 0 must be at least 1"),
        (["--batching.tokens_per_batch", "3"], "batching"),
        (["--initialize_from", "nowhere"], "tokenizer: comes with the model of initialize_from"),
    ],
)  # fmt: skip
def test_wrong_recipes_are_refused_in_one_line(recipe_file, arguments, named, capsys):
    assert cli.main(["train", "--config", str(recipe_file), *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("reluformer: error: ") and named in said


def test_texts_shorter_than_a_context_are_refused(tmp_path):
    (tmp_path / "short.txt").write_text("abab abab")
    recipe = load_recipe(
        write_recipe(
            tmp_path,
            data={"train": {"paths": str(tmp_path / "short.txt")}, "max_length": 16},
            evaluation={"splits": []},
            training={"eval_strategy": "no"},
        )
    )
    with pytest.raises(UserError, match="are less than one context of 16; give more text"):
        train(recipe)


def test_the_recipes_of_the_package():
    paper = load_recipe("gpt2_normalization_free")
    assert isinstance(paper, LanguageRecipe)
    config = build_language_config(paper)
    shape = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.max_position_embeddings)
    assert shape == (12, 768, 12, 128) and config.normalization == "none" and config.final_norm
    assert (config.hidden_act, config.attention_activation, config.scale_residual_init) == ("relu", "softmax", False)
    training = paper.training
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 512
    assert training.max_steps * 512 * paper.data.max_length == pytest.approx(2.1e9, rel=0.01)
    for name in ("code_decoder_tiny", "europarl_decoder_tiny"):
        relu, softmax = (build_language_config(load_recipe(each)).to_dict() for each in (name, f"{name}_softmax"))
        differing = {key for key in relu if relu[key] != softmax[key]}
        assert differing <= {"attention_activation", "attention_scaling", "regularization_weight"}
        assert relu["attention_activation"] == "relu" and softmax["attention_activation"] == "softmax"
    assert isinstance(config, ReLUFormerDecoderConfig)


def test_the_papers_recipe_runs_in_a_small_size(tmp_path):
    rows = datasets.Dataset.from_list([{"content": text(number)} for number in range(6)])
    datasets.DatasetDict({"train": rows, "validation": rows.select([0])}).save_to_disk(tmp_path / "set")
    sizes = ["--model.hidden_size", "24", "--model.num_hidden_layers", "1"]
    batches = ["--training.max_steps", "1", "--training.per_device_train_batch_size", "2"]
    splits = [
        "--data.train.dataset.path",
        str(tmp_path / "set"),
        "--data.validation.dataset.path",
        str(tmp_path / "set"),
    ]
    options = [
        "--data.validation.dataset.split",
        "validation",
        "--tokenizer.path",
        "null",
        "--tokenizer.vocab_size",
        "300",
    ]
    place = ["--training.output_dir", str(tmp_path / "run"), "--training.use_cpu", "true"]
    workers = ["--training.dataloader_num_workers", "0"]
    arguments = ["--config", "gpt2_normalization_free", *sizes, *batches, *splits, *options, *place, *workers]
    folder = train(parse_recipe(arguments))
    assert evaluation_of(folder, "validation")["documents"] == 1
