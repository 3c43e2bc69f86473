"""Recipes are parsed with types, layered, refused in one line, and written so that they read back."""

import dataclasses
import subprocess
import sys

import pytest
import yaml

from reluformer import ReLUFormerConfig
from reluformer.commands.main import main
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_checks import checkpoints_of
from reluformer.configuration.recipe_parser import (
    RECIPES_FOLDER,
    load_recipe,
    parse_recipe,
    recipe_names,
    recipe_to_dict,
    save_recipe,
)
from reluformer.training.run.model_building import build_config

SMALL = {
    "name": "small",
    "data": {"source_language": "de", "target_language": "en", "demo": {"train": 100}},
    "model": {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "training": {"max_steps": 10},
}


@pytest.fixture
def small(tmp_path):
    """Path of a recipe; called with sections, of one that has them too."""

    def write(name="small.yaml", **sections):
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**SMALL, **sections}), encoding="utf-8")
        return str(path)

    return write


def refusal(*arguments) -> str:
    with pytest.raises(UserError) as caught:
        parse_recipe(arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_is_parsed_and_names_a_model_that_exists(name, tmp_path, monkeypatch):
    recipe = load_recipe(RECIPES_FOLDER / f"{name}.yaml")
    assert recipe.name == name
    assert recipe.description
    assert str(recipe.run_folder) == f"runs/{name}"
    if recipe.initialize_from is not None:  # a model that its user converts first, in the current directory
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match="initialize_from"):
            build_config(recipe)
        ReLUFormerConfig.from_preset("vanilla").save_pretrained(recipe.initialize_from)
    build_config(recipe)
    first_line = (RECIPES_FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first_line.startswith("# ")
    assert f"reluformer train --config configuration/recipes/{name}.yaml" in first_line


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_where_its_corpus_is_to_be_had(name):
    data = load_recipe(name).data
    assert (data.homepage or "").startswith("https://") or data.demo is not None


def test_the_recipes_that_the_issue_asks_for_are_there():
    wanted = {"demo", "multi30k_en_de_tiny", "multi30k_en_de_tiny_softmax", "iwslt14_de_en", "wmt14_en_de"}
    assert wanted <= set(recipe_names())


def test_the_softmax_twin_differs_in_the_preset_alone():
    relu, softmax = (
        recipe_to_dict(load_recipe(name)) for name in ("multi30k_en_de_tiny", "multi30k_en_de_tiny_softmax")
    )
    assert relu["model"].pop("preset") == "reluformer"
    assert softmax["model"].pop("preset") == "vanilla"
    for recipe in (relu, softmax):
        for name in ("name", "description"):
            del recipe[name]
        del recipe["training"]["output_dir"]
    assert relu == softmax


@pytest.mark.parametrize(
    ("name", "heads", "ffn", "length_penalty"), [("iwslt14_de_en", 4, 1024, 1.1), ("wmt14_en_de", 8, 2048, 0.6)]
)
def test_the_papers_figures(name, heads, ffn, length_penalty):
    recipe = load_recipe(name)
    model, training = recipe.model, recipe.training
    assert (model["d_model"], model["encoder_layers"], model["decoder_layers"]) == (512, 6, 6)
    assert model["encoder_attention_heads"] == model["decoder_attention_heads"] == heads
    assert model["encoder_ffn_dim"] == model["decoder_ffn_dim"] == ffn
    assert (model["dropout"], model["attention_dropout"], model["label_smoothing"]) == (0.1, 0.1, 0.1)
    assert (training.adam_beta1, training.adam_beta2, training.warmup_steps) == (0.9, 0.98, 4000)
    assert (training.max_steps, recipe.batching.tokens_per_batch) == (100_000, 8192)
    assert training.lr_scheduler_type == "inverse_sqrt"
    assert (recipe.evaluation.num_beams, recipe.evaluation.length_penalty) == (5, length_penalty)


def test_options_override_the_file_with_their_types(small):
    recipe = parse_recipe(
        ["--config", small(), "--training.learning_rate", "1e-3", "--model.d_model", "32", "--data.demo.seed", "7"]
    )
    assert recipe.training.learning_rate == 1e-3
    assert recipe.training.max_steps == 10
    assert recipe.model == {"d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    assert (recipe.data.demo.train, recipe.data.demo.seed) == (100, 7)


def test_a_later_file_is_laid_over_an_earlier_one(small, tmp_path):
    layer = tmp_path / "layer.yaml"
    layer.write_text("name: twin\nmodel: {preset: vanilla}\ntraining: {seed: 3}\n", encoding="utf-8")
    recipe = load_recipe(small(), layer)
    assert recipe.name == "twin"
    assert recipe.model == {**SMALL["model"], "preset": "vanilla"}
    assert (recipe.training.max_steps, recipe.training.seed) == (10, 3)


@pytest.mark.parametrize("preset", ["vanilla", "softmax"])
def test_a_preset_of_softmax_leaves_out_what_the_recipe_below_says_of_relu(small, tmp_path, caplog, preset):
    of_relu = {"attention_activation": "relu", "attention_gamma": 4.0, "regularization_weight": 0.01}
    below = small(model={**SMALL["model"], **of_relu, "attn_implementation": "fused"})
    (tmp_path / "twin.yaml").write_text(f"base: small\nmodel: {{preset: {preset}}}\n", encoding="utf-8")
    for arguments in (["--config", below, "--model.preset", preset], ["--config", str(tmp_path / "twin.yaml")]):
        caplog.clear()
        recipe = parse_recipe(arguments)
        assert recipe.model == {**SMALL["model"], "preset": "vanilla"}
        assert build_config(recipe).attention_activation == "softmax"
        (record,) = caplog.records
        assert (
            "leaves out what belongs to ReLU: attention_activation=relu, attention_gamma=4.0, " in record.getMessage()
        )
    # what contradicts it in the same place is a mistake
    with pytest.raises(UserError, match=r"regularization_weight=0\.5"):
        build_config(parse_recipe([*arguments, "--model.preset", preset, "--model.regularization_weight", "0.5"]))


def test_a_recipe_reads_back_as_it_was_written(small, tmp_path):
    recipe = parse_recipe(["--config", small(), "--training.lr_scheduler_type", "inverse_sqrt", "--training.seed", "5"])
    save_recipe(recipe, tmp_path / "new" / "recipe.yaml")
    again = load_recipe(tmp_path / "new" / "recipe.yaml")
    assert recipe_to_dict(again) == recipe_to_dict(recipe)
    assert again.training.lr_scheduler_type == "inverse_sqrt"
    for section in ("data", "tokenizer", "batching", "evaluation", "averaging"):
        assert dataclasses.asdict(getattr(again, section)) == dataclasses.asdict(getattr(recipe, section))


def test_a_loss_that_is_not_finite_is_never_hidden(small):
    assert load_recipe(small()).training.logging_nan_inf_filter is False


def test_unknown_keys_are_refused_with_close_matches(small):
    assert "did you mean tokenizer.vocab_size?" in refusal("--config", small(tokenizer={"vocabsize": 3}))
    assert "'datta'" in refusal("--config", small(datta=None))
    assert "did you mean --training.max_steps or " in refusal("--config", small(), "--training.max_step", "3")
    for name in ("training.max_steps", "training.bf16", "training.output_dir", "model.d_model"):
        short = name.partition(".")[2]
        assert f"--{short} 1; did you mean --{name}?" in refusal("--config", small(), f"--{short}", "1")
    assert "'trian'" in refusal("--config", small(data={**SMALL["data"], "demo": {"trian": 3}}))
    for split, count in {"train": 0, "validation": -1}.items():
        assert f"data.demo.{split}: {count} pairs" in refusal("--config", small(), f"--data.demo.{split}", str(count))
    # An abbreviation that argparse would complete is a mistake too.
    assert "--training.warmup" in refusal("--config", small(), "--training.warmup", "3")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--training.max_steps", "many"], "training.max_steps"),
        (["--batching.tokens_per_batch", "1.5"], "batching.tokens_per_batch"),
        (["--evaluation.headline", "rouge"], "evaluation.headline"),
        (["--data.demo.train", "x"], "data.demo"),
    ],
)
def test_wrong_types_are_refused(small, arguments, named):
    assert named in refusal("--config", small(), *arguments)


def test_a_missing_recipe_names_those_there_are():
    message = refusal("--config", "nowhere.yaml")
    assert "nowhere.yaml" in message
    assert "demo" in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--training.label_smoothing_factor", "0.1"], "model.label_smoothing"),
        (["--training.eval_accumulation_steps", "2"], "an evaluation of texts sums the loss, and keeps no predictions"),
        (["--training.per_device_train_batch_size", "32"], "batching.tokens_per_batch"),
        (["--data.text", "moses", "--tokenizer.moses", "true"], "tokenizer.moses: would tokenise a second time"),
        (["--data.text", "moses", "--evaluation.headline", "moses_lowercase_bleu"], "choose tokenized_bleu or bleu"),
        (["--evaluation.headline", "tokenized_bleu"], "choose moses_lowercase_bleu or bleu"),
        (["--training.predict_with_generate", "true"], "evaluation.at_most"),
        (["--training.accelerator_config", '{"even_batches": false}'], "even_batches"),
        (["--data.train.source", "a", "--data.train.target", "b"], "exactly one of"),
        (["--data.demo", "null"], "none of them"),
        (["--data.max_length", "9000"], "batching.tokens_per_batch"),
        (["--evaluation.splits", "[dev]"], "'dev'"),
        (["--evaluation.num_beams", "0"], "evaluation.num_beams"),
        (["--averaging.last_checkpoints", "3"], "writes 1"),
        (
            ["--averaging.last_checkpoints", "2", "--training.save_steps", "2", "--training.save_total_limit", "1"],
            "keeps 1",
        ),
        (
            [
                *("--averaging.last_checkpoints", "2", "--training.save_steps", "2"),
                *("--training.eval_strategy", "steps", "--training.eval_steps", "2"),
                *("--training.load_best_model_at_end", "true"),
            ],
            "exclude each other",
        ),
        (["--name", "a/b"], "'a/b'"),
        (["--training.learning_rate", "-1"], "training.learning_rate: -1"),
        (["--training.max_steps", "0"], "training.max_steps: 0"),
    ],
)
def test_what_would_have_no_effect_or_cannot_work_is_refused(small, arguments, named):
    assert named in refusal("--config", small(), *arguments)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"d_modell": 16}, "did you mean d_model"),
        ({"preset": "relluformer"}, "reluformer"),
        ({"attention_activation": "tanh"}, "attention_activation='tanh'"),
        ({"d_model": "wide"}, "d_model"),
        ({"vocab_size": 100}, "tokenizer.vocab_size"),
        ({"preset": "vanilla", "attn_implementation": "fused"}, 'attn_implementation="fused"'),
        ({"max_position_embeddings": 8}, "data.max_length"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(small, model, named):
    with pytest.raises(UserError, match=named.replace(".", r"\.")) as caught:
        build_config(load_recipe(small(model=model)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("max_steps", "save_steps", "count"), [(10, 5, 2), (10, 3, 4), (10, 500, 1), (10, 0.25, 4)])
def test_checkpoints_are_counted_before_training(small, max_steps, save_steps, count):
    training = {"max_steps": max_steps, "save_steps": save_steps}
    assert checkpoints_of(load_recipe(small(training=training)).training) == count


def test_bfloat16_without_a_gpu_names_the_option_of_a_cpu(small, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    assert "add `--training.use_cpu true`" in refusal("--config", small(), "--training.bf16", "true")


@pytest.mark.parametrize(
    ("arguments", "named"), [(["--name", "a/b"], "'a/b'"), (["--model.d_model", "17"], "d_model=17")]
)
def test_what_cannot_be_trained_is_not_printed_either(small, capsys, arguments, named):
    assert main(["train", small(), "--print_config", *arguments]) == 2
    printed = capsys.readouterr()
    assert not printed.out and named in printed.err


def test_what_is_printed_is_a_recipe(small, capsys, tmp_path):
    assert main(["train", small(), "--print_config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert recipe_to_dict(load_recipe(tmp_path / "printed.yaml")) == recipe_to_dict(load_recipe(small()))


def test_printing_the_config_touches_no_device(small):
    code = (
        "import sys; from reluformer.commands.main import main; import torch\n"
        f"status = main(['train', '--config', {small()!r}, '--print_config'])\n"
        "from accelerate.state import PartialState\n"
        "sys.exit(status or bool(PartialState._shared_state) or torch.cuda.is_initialized())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["training"]["max_steps"] == 10
