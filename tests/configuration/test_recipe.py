"""Recipes are parsed with types, laid over each other, refused in one line, and written so that they read back."""

import inspect
from pathlib import Path

import pytest
import yaml

from reluformer import ReLUFormerConfig
from reluformer.commands.main import main
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import EvaluationConfig
from reluformer.configuration.recipe_parser import (
    RECIPES_FOLDER,
    load_recipe,
    parse_recipe,
    recipe_layers,
    recipe_names,
    recipe_text,
    recipe_to_dict,
)
from reluformer.training.run.model_building import build_config
from reluformer.translating.translation import Translator

SMALL = {
    "name": "small",
    "description": "Number words.",
    "data": {"source_language": "de", "target_language": "en", "demo": {"train": 100, "seed": 4}},
    "model": {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "training": {"max_steps": 10},
}
OF_RELU = {"attention_activation": "relu", "attention_gamma": 4.0, "regularization_weight": 0.01}


@pytest.fixture
def small(tmp_path):
    """Path of a recipe; called with sections, of one that has them too."""

    def write(name="small", **sections):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **sections}), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def write(tmp_path, small):
    """Writes a recipe from a text, beside one called small."""
    small()

    def write_text(text, name="top"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_text


def refusal(*arguments) -> str:
    with pytest.raises(UserError) as caught:
        parse_recipe(arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_names_a_model_that_exists_and_where_its_corpus_is_to_be_had(
    name, tmp_path, monkeypatch
):
    recipe = load_recipe(RECIPES_FOLDER / f"{name}.yaml")
    assert recipe.name == name and recipe.description and str(recipe.run_folder) == f"runs/{name}"
    assert (recipe.data.homepage or "").startswith("https://") or recipe.data.demo is not None
    if recipe.initialize_from is not None:  # a model that its user converts first, in the current directory
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match="initialize_from"):
            build_config(recipe)
        ReLUFormerConfig.from_preset("vanilla").save_pretrained(recipe.initialize_from)
    build_config(recipe)
    first_line = (RECIPES_FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert f"reluformer train --config configuration/recipes/{name}.yaml" in first_line


def plain(name, *without):
    found = recipe_to_dict(load_recipe(name))
    for key in ("name", "description", *without):
        section, _, inner = key.rpartition(".")
        (found[section] if section else found).pop(inner, None)
    found["training"].pop("output_dir")
    return found


@pytest.mark.parametrize("name", ["multi30k_en_de_tiny", *(f"europarl_it_en_L{2**n}" for n in range(7, 12))])
def test_the_softmax_twin_differs_in_the_preset_alone(name):
    relu, softmax = (plain(f"{name}{end}") for end in ("", "_softmax"))
    assert (relu["model"].pop("preset"), softmax["model"].pop("preset")) == ("reluformer", "vanilla")
    relu["model"].pop("attention_gamma", None)
    assert relu == softmax


@pytest.mark.parametrize("length", [128, 256, 512, 1024, 2048])
def test_the_recipes_of_documents_differ_in_what_follows_the_length(length):
    recipe = load_recipe(f"europarl_it_en_L{length}")
    assert recipe.data.max_length == length
    assert recipe.model["max_position_embeddings"] == max(512, length), "longer sentences are kept in evaluation"
    without = ("data.max_length", "model.max_position_embeddings")
    assert plain(f"europarl_it_en_L{length}", *without) == plain("europarl_it_en_L512", *without)


@pytest.mark.parametrize(
    ("name", "heads", "ffn", "length_penalty"), [("iwslt14_de_en", 4, 1024, 1.1), ("wmt14_en_de", 8, 2048, 0.6)]
)
def test_the_settings_of_the_paper(name, heads, ffn, length_penalty):
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


def test_options_and_later_files_are_laid_over_a_recipe_and_its_base(write, small):
    write("# a comment\nbase: small\nname: middle\nmodel: {preset: vanilla, d_model: 32}\n", "middle")
    top = write(
        "name: top\nbase: middle.yaml\ndata: {demo: {train: 50}}\n"
        "training: {max_steps: 20, learning_rate: 1e-3, eval_strategy: no}\n"
    )
    recipe = load_recipe(top)
    assert recipe.model == {**SMALL["model"], "preset": "vanilla", "d_model": 32}
    assert (recipe.name, recipe.data.source_language) == ("top", "de")
    assert (recipe.data.demo.train, recipe.data.demo.seed) == (50, 4)
    assert (recipe.training.max_steps, recipe.training.learning_rate) == (20, 1e-3)
    assert recipe.training.eval_strategy == "no"
    assert [says["name"] for _, says in recipe_layers(top)] == ["small", "middle", "top"]
    last = write("training: {seed: 3}\n", "last")
    options = ["--model.d_model", "64", "--data.demo.seed", "7", "--training.learning_rate=1e-2"]
    over = parse_recipe(["--config", top, "--config", last, *options])
    assert (over.model["d_model"], over.data.demo.train, over.data.demo.seed, over.training.seed) == (64, 50, 7, 3)
    assert over.training.learning_rate == 1e-2
    epochs = parse_recipe(["--config", top, "--training.num_train_epochs", "2"]).training
    assert (epochs.num_train_epochs, epochs.max_steps) == (2, -1)
    assert load_recipe(write("base: demo\nname: mine\n")).model == load_recipe("demo").model


def test_a_description_is_of_the_recipe_that_holds_it(write, small):
    own = "base: small\nname: own\n"
    paths = (small(), write(own, "own"), write(own + "description: My own.\n"))
    described = [load_recipe(path).description for path in paths]
    assert described == ["Number words.", "", "My own."]
    named = ["--config", small(), "--name", "twin"]
    assert parse_recipe(named).description == ""
    assert parse_recipe([*named, "--description", "A twin."]).description == "A twin."


def test_a_run_folder_is_of_the_recipe_that_names_it(small):
    base = ["--config", small(training={**SMALL["training"], "output_dir": "mine"})]
    folders = [parse_recipe([*base, *more]).run_folder for more in ([], ["--name", "twin"], ["--training.seed", "3"])]
    assert folders == [Path("mine"), Path("runs/twin"), Path("mine")]


@pytest.mark.parametrize("preset", ["vanilla", "softmax"])
def test_a_preset_of_softmax_leaves_out_what_the_recipe_below_says_of_relu(small, write, caplog, preset):
    below = small(model={**SMALL["model"], **OF_RELU, "attn_implementation": "fused"})
    twin = write(f"base: small\nmodel: {{preset: {preset}}}\n")
    for arguments in (["--config", below, "--model.preset", preset], ["--config", twin]):
        caplog.clear()
        recipe = parse_recipe(arguments)
        assert recipe.model == {**SMALL["model"], "preset": "vanilla"}
        assert build_config(recipe).attention_activation == "softmax"
        assert "leaves out what belongs to ReLU: attention_activation=relu, attention_gamma=4.0, " in caplog.text
    with pytest.raises(UserError, match=r"regularization_weight=0\.5"):  # what contradicts it in the same place
        build_config(parse_recipe([*arguments, "--model.preset", preset, "--model.regularization_weight", "0.5"]))


def test_a_recipe_reads_back_as_it_was_written(small, tmp_path):
    name = ["--name", "3e4"]  # a number, where it stands without quotes
    options = [*name, "--training.lr_scheduler_type", "inverse_sqrt", "--training.seed", "5"]
    recipe = parse_recipe(["--config", small(), *options])
    (tmp_path / "new.yaml").write_text(recipe_text(recipe), encoding="utf-8")
    again = load_recipe(tmp_path / "new.yaml")
    assert recipe_to_dict(again) == recipe_to_dict(recipe)
    assert again.training.lr_scheduler_type == "inverse_sqrt"
    assert again.training.logging_nan_inf_filter is False, "a loss that is not finite is never hidden"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("base: nowhere\n", "base: no file 'nowhere'; give the path"),
        ("base: top\n", "stands on itself"),
        ("base: small\ntokenizer: {vocabsize: 3}\n", "did you mean tokenizer.vocab_size"),
        ("base: small\ndata: {demo: {trian: 3}}\n", "did you mean data.demo.train"),
        ("base: small\nmax_steps: 3\n", "did you mean training.max_steps?"),
        ("base: small\ndata.max_length: 3\n", "did you mean data.max_length?"),
        ("base: small\ntokenizer: 8000\n", "tokenizer is a section: expected keys, found 8000"),
        ("base: small\nmodel: {a: {class_path: os.system}}\n", "names no classes"),
        ("base: small\nname: a\nname: b\n", "top.yaml, line 3: is no YAML: the key 'name' stands here twice"),
        ("name: [a\n", "is no YAML"),
        ("- a\n", "holds no keys"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(write, text, named):
    message = refusal("--config", write(text))
    assert named in message and "top.yaml" in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--training.max_step", "3"], "no key 'training.max_step'; did you mean training.max_steps or "),
        (["--d_model", "64"], "did you mean model.d_model?"),
        (["--nothing_like_it", "1"], "`reluformer train --help` lists all keys"),
        (["--training.max_steps"], "--training.max_steps: expected a value"),
        (["--model.d_model", "[16"], "--model.d_model, line 1: is no YAML"),
        (["--batching.tokens_per_batch", "1.5"], "batching.tokens_per_batch"),
        (["--data.demo.train", "x"], "data.demo: "),
        (["--data.demo.train", "0"], "0 does not conform to restriction v>0"),
        (["--training.label_smoothing_factor", "0.1"], "model.label_smoothing"),
        (["--training.eval_accumulation_steps", "2"], "an evaluation of texts sums the loss, and keeps no predictions"),
        (["--training.per_device_train_batch_size", "32"], "batching.tokens_per_batch"),
        (["--training.enable_jit_checkpoint", "true"], "SIGTERM"),
        (["--training.predict_with_generate", "true"], "evaluation.at_most"),
        (["--training.push_to_hub", "true"], "by `reluformer publish`"),
        (["--training.accelerator_config", '{"even_batches": false}'], "even_batches"),
        (["--training.save_only_model", "true"], "training.save_only_model"),
        (["--training.max_steps", "0"], "training.max_steps: 0"),
        (["--training.max_steps", "-1", "--training.num_train_epochs", "0"], "training.max_steps: 0"),
        (["--training.learning_rate", "-1"], "training.learning_rate: -1.0 must be at least 0"),
        (["--training.seed", str(2**32)], f"training.seed: {2**32} must be at most {2**32 - 1}"),
        (["--data.text", "moses", "--tokenizer.moses", "true"], "tokenizer.moses: would tokenise what"),
        (["--data.text", "moses", "--evaluation.headline", "moses_lowercase_bleu"], "choose tokenized_bleu or bleu"),
        (["--evaluation.headline", "tokenized_bleu"], "choose moses_lowercase_bleu or bleu"),
        (["--evaluation.headline", "document_bleu"], "set data.packing"),
        (["--data.packing", "{}"], "the generated corpus has none"),
        (["--data.packing.train_lengths", "long"], "Expected a <class 'list'> - Expected a <class 'NoneType'> Given"),
        (["--data.train.source", "a", "--data.train.target", "b"], "exactly one of"),
        (["--data.demo", "null"], "none of them"),
        (["--data.max_length", "9000"], "batching.tokens_per_batch"),
        (["--evaluation.splits", "[dev]"], "Got value: dev"),
        (["--averaging.last_checkpoints", "3"], "writes no checkpoint before the last update"),
        (
            ["--averaging.last_checkpoints", "2", "--training.save_steps", "2", "--training.save_total_limit", "1"],
            "keeps 1",
        ),
        (["--initialize_from", "x", "--tokenizer.lowercase", "true"], "comes with the model of initialize_from"),
        (["--tokenizer.path", "x", "--tokenizer.vocab_size", "400"], "taken as it is; leave vocab_size"),
        (["nowhere.yaml"], "recipes stand before all options"),
        (["--config", "nowhere.yaml"], "no file 'nowhere.yaml'; give the path of a recipe, or one of"),
    ],
)  # fmt: skip
def test_what_people_mistype_and_what_would_have_no_effect_is_refused(small, arguments, named):
    assert named in refusal("--config", small(), *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--training.seed", str(2**32 - 1)],
        ["--averaging.last_checkpoints", "2", "--training.max_steps", "10", "--training.save_steps", "10"],
        ["--averaging.last_checkpoints", "2", "--training.save_steps", "5", "--training.save_total_limit", "2"],
        ["--averaging.last_checkpoints", "2", "--training.save_strategy", "epoch", "--training.max_steps", "9"],
    ],
)
def test_what_just_lies_within_the_limits_is_taken(small, arguments):
    parse_recipe(["--config", small(), *arguments])


FILES = {"source": "a", "target": "b"}
ONLY = {**FILES, "only": ["x"]}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"validation": FILES}, "the files of `train` are missing"),
        ({"train": FILES, "test": ONLY}, "data.test.only: chooses documents, but data.test.documents names no file"),
        ({"train": FILES, "packing": {}}, "give data.train.documents"),
        ({"train": {**FILES, "documents": "c"}, "packing": {"train_lengths": [512]}}, "512 is above"),
        ({"dataset": {"path": "csv"}, "packing": {}}, "give data.dataset.document_column"),
    ],
)
def test_data_that_cannot_be_read_are_refused(small, data, named):
    languages = {"source_language": "de", "target_language": "en"}
    assert named in refusal("--config", small(data={**languages, **data}))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"d_modell": 16}, "did you mean d_model"),
        ({"preset": "relluformer"}, "reluformer"),
        ({"d_model": "wide"}, "d_model"),
        ({"vocab_size": 100}, r"tokenizer\.vocab_size"),
        ({"preset": "vanilla", "attn_implementation": "fused"}, 'attn_implementation="fused"'),
        ({"max_position_embeddings": 8}, r"data\.max_length"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(small, model, named):
    with pytest.raises(UserError, match=named) as caught:
        build_config(load_recipe(small(model=model)))
    assert "\n" not in str(caught.value)


def test_bfloat16_without_a_gpu_names_the_option_of_a_cpu(small, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    assert "add `--training.use_cpu true`" in refusal("--config", small(), "--training.bf16", "true")
    for precision in ("bf16", "fp16", "tf32"):
        load_recipe(small(training={**SMALL["training"], precision: True}))  # a GPU's run is read anywhere


def test_what_is_printed_is_a_recipe_that_can_be_trained(small, capsys, tmp_path):
    for arguments, named in ((["--name", "a/b"], "'a/b'"), (["--model.d_model", "17"], "d_model=17")):
        assert main(["train", small(), "--print_config", *arguments]) == 2
        printed = capsys.readouterr()
        assert not printed.out and named in printed.err
    assert main(["train", small(), "--print_config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert recipe_to_dict(load_recipe(tmp_path / "printed.yaml")) == recipe_to_dict(load_recipe(small()))


def test_a_recipe_that_says_nothing_of_decoding_decodes_as_the_translator_does():
    usual = inspect.signature(Translator.__init__).parameters
    for name in ("num_beams", "length_penalty", "batch_tokens", "long_sources"):
        assert getattr(EvaluationConfig(), name) == usual[name].default
