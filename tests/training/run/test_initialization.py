"""A recipe that starts from an existing model: its weights, tokenizer and settings, with the fields that may change."""

import json
import random

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from reluformer import ReLUFormerConfig
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, load_recipe, parse_recipe
from reluformer.training.conversion import convert
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.run.model_building import build_config, build_model, run_tokenizer
from reluformer.translating.loading import changed_config, load_model_config, load_weights

from ..tiny_marian import save_marian, train_sentencepiece


@pytest.fixture
def marian_recipe(tmp_path):
    """finetune_from_marian.yaml as it is, over a tiny converted Marian and a few sentences; its path, to be layered."""
    pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece, of the dev extra")
    size = train_sentencepiece(tmp_path / "tokenizer")
    save_marian(tmp_path / "marian", tokenizer=tmp_path / "tokenizer", vocab_size=size, max_position_embeddings=130)
    convert(tmp_path / "marian", tmp_path / "start")
    settings = tmp_path / "start" / "generation_config.json"  # Helsinki-NLP's have a length limit of their own
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_length": 30}), encoding="utf-8")
    layer = {
        "initialize_from": str(tmp_path / "start"),
        "data": {
            "source_language": "de",
            "target_language": "en",
            "train": None,
            "validation": None,
            "test": None,
            "demo": {"train": 60, "validation": 4, "test": 4},
        },
        "evaluation": {"num_beams": 2, "splits": ["test"], "at_most": 2},
        "training": {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 4,
            "eval_steps": 2,
            "save_steps": 2,
            "logging_steps": 2,
            "learning_rate": 0.01,
            "warmup_steps": 1,
            "use_cpu": True,
            "disable_tqdm": True,
        },
    }
    path = tmp_path / "layer.yaml"
    path.write_text(yaml.safe_dump(layer), encoding="utf-8")
    return path


def test_new_weights_are_drawn_from_the_seed_of_the_recipe(recipe_file):
    def weights(seed):
        recipe = parse_recipe(["--config", str(recipe_file), "--training.seed", str(seed)])
        return build_model(recipe, build_config(recipe)).model.shared.weight

    first, other = random.sample(range(2**32), 2)
    drawn = weights(first)
    assert torch.equal(weights(first), drawn) and not torch.equal(weights(other), drawn)


@pytest.mark.slow
def test_the_recipe_adapts_a_converted_marian(marian_recipe, tmp_path):
    folder = train(load_recipe(RECIPES_FOLDER / "finetune_from_marian.yaml", marian_recipe))
    model, start = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (folder, tmp_path / "start"))
    config, settings = model.config, model.generation_config
    assert (config.attention_activation, config.attention_scaling) == ("relu", "variance")
    assert (config.regularization_weight, config.label_smoothing) == (0.01, 0.1)
    assert (config.decoder_start_token_id, config.eos_token_id) == (start.config.pad_token_id, 0)
    assert (settings.num_beams, settings.max_new_tokens, settings.max_length) == (2, 128, None)
    assert settings.bad_words_ids == start.generation_config.bad_words_ids and settings.forced_eos_token_id == 0
    assert (folder / "source.spm").is_file() and (folder / "README.md").is_file()
    moved = model.model.encoder.layers[0].fc1.weight - start.model.encoder.layers[0].fc1.weight
    assert 0 < moved.abs().max() < 0.2, "four small steps away from the checkpoint, not drawn anew"


def test_training_starts_with_the_weights_of_the_checkpoint(marian_recipe, tmp_path):
    recipe = load_recipe(RECIPES_FOLDER / "finetune_from_marian.yaml", marian_recipe)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "start")
    model = build_model(recipe, build_config(recipe, tokenizer))
    start = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "start").state_dict()
    assert all(torch.equal(tensor, start[name]) for name, tensor in model.state_dict().items())
    recipe.model["attention_output_norm"] = "layer_norm"
    model = build_model(recipe, build_config(recipe, tokenizer))
    assert torch.equal(model.model.encoder.layers[0].self_attn.output_norm.weight, torch.ones(16))
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(UserError, match="do not belong together"):
        build_config(recipe, tokenizer)


def test_mistakes_are_found_before_the_corpus_is_read(recipe_file, tmp_path):
    def refusal(**changes) -> str:
        recipe = load_recipe(recipe_file)
        recipe.initialize_from = str(tmp_path / "start")
        recipe.tokenizer, recipe.model = type(recipe.tokenizer)(), {}
        recipe.data.max_length = 30
        for name, value in changes.items():
            setattr(recipe, name, value)
        with pytest.raises(UserError) as caught:
            train(recipe)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "runs").exists()
        return str(caught.value)

    assert refusal().startswith("initialize_from: ")
    assert "initialize_from: 'runs/mistyped': no such folder" in refusal(initialize_from="runs/mistyped")
    save_marian(tmp_path / "start")
    assert "reluformer convert --from" in refusal()
    convert(tmp_path / "start", tmp_path / "converted")
    started = {"initialize_from": str(tmp_path / "converted")}
    assert "model: d_model: 32 does not fit the weights, made for 16" in refusal(**started, model={"d_model": 32})
    assert "did you mean" in refusal(**started, model={"droput": 0.2})
    assert "follows from the tokenizer" in refusal(**started, model={"vocab_size": 50})
    assert 'attn_implementation="fused"' in refusal(**started, model={"attn_implementation": "fused"})
    wanted = load_recipe(recipe_file).tokenizer
    with pytest.raises(UserError, match="tokenizer: comes with the model"):
        parse_recipe(["--config", str(recipe_file), "--initialize_from", started["initialize_from"]])
    # the conversion had no tokenizer to copy
    recipe = load_recipe(recipe_file)
    recipe.initialize_from, recipe.tokenizer, recipe.model = started["initialize_from"], type(wanted)(), {}
    recipe.data.max_length = 30
    with pytest.raises(UserError, match=r"initialize_from: .*: its tokenizer cannot be loaded"):
        train(recipe)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    save_marian(tmp_path / "marian")
    convert(tmp_path / "marian", tmp_path / "start")
    path, config = tmp_path / "start" / "model.safetensors", load_model_config(tmp_path / "start")
    weights, name = load_file(path), "model.decoder.layers.0.fc1.bias"
    without = {key: tensor for key, tensor in weights.items() if key != name}
    others = {name: without, "model.gate": {**weights, "model.gate": torch.ones(1)}}
    for first, tensors in {**others, rf"{name} \[7\] → \[20\]": {**weights, name: torch.ones(7)}}.items():
        save_file(tensors, path, metadata={"format": "pt"})
        with pytest.raises(
            UserError, match=f"1 tensors are missing, left over or of another shape, the first: {first}"
        ):
            load_weights(tmp_path / "start", config, dtype=torch.float32)


def test_an_activation_brings_its_own_scaling_and_regularisation():
    softmax = ReLUFormerConfig.from_preset("vanilla", d_model=16, encoder_attention_heads=2, decoder_attention_heads=2)
    assert changed_config(softmax, {"attention_activation": "relu"}).regularization_weight == 0.01
    given = changed_config(softmax, {"attention_activation": "relu", "attention_scaling": "length"})
    assert (given.attention_scaling, given.regularization_weight) == ("length", 0.0)
    relu = changed_config(softmax, {"preset": "reluformer", "regularization_weight": 0.5})
    assert changed_config(relu, {"dropout": 0.3}).regularization_weight == 0.5
    assert changed_config(relu, {"attention_activation": "relu"}).regularization_weight == 0.5
    assert changed_config(relu, {"preset": "vanilla"}) == changed_config(softmax, {})
    assert changed_config(softmax, {"d_model": 16}).d_model == 16
    with pytest.raises(UserError, match="preset='bloomformer' is unknown"):
        changed_config(softmax, {"preset": "bloomformer"})


def test_the_moses_step_of_a_new_tokenizer_has_the_languages_of_the_recipe(recipe_file):
    pytest.importorskip("sacremoses")
    recipe = parse_recipe(["--config", str(recipe_file), "--tokenizer.moses", "true"])
    tokenizer = run_tokenizer(recipe, demo_pairs(120, split="train", seed=0), None)
    languages = {"source_language": "de", "target_language": "en"}
    assert languages.items() <= tokenizer.init_kwargs["moses"].items()
    assert languages.items() <= tokenizer.init_kwargs.items()
