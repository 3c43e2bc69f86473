"""A model saved with ReLU attention is loaded with ReLU attention, or not without a word."""

import copy
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    BertModel,
    CLIPConfig,
    CLIPModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    PreTrainedModel,
)

from reluformer import use_relu_attention

from ...conftest import VOCABULARY
from ..test_plain_trainer import trainer
from .foreign_cases import CONFIGS, SMALL, STABLE, bert_config, build, tokens

PLAIN_LOADING = """
import sys
sys.modules["reluformer"] = None  # whoever imports it fails
from transformers import AutoModel
AutoModel.from_pretrained(sys.argv[1], **dict(pair.split("=") for pair in sys.argv[2:]))
"""


def encoder_decoder() -> EncoderDecoderModel:
    parts = bert_config(), bert_config(is_decoder=True, add_cross_attention=True)
    return EncoderDecoderModel(config=EncoderDecoderConfig.from_encoder_decoder_configs(*parts))


def clip() -> CLIPModel:
    shape = {**SMALL, "num_hidden_layers": 1, "projection_dim": 8}
    text = {**shape, "vocab_size": VOCABULARY, "max_position_embeddings": 40, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**shape, "image_size": 8, "patch_size": 4}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8, initializer_factor=5.0))


def made(family: str, folder: Path) -> PreTrainedModel:
    """A model with softmax, and no settings of ours in its config. From the disk: not all that `build` changes is saved."""
    torch.manual_seed(0)
    others = {"encoder-decoder": encoder_decoder, "clip": clip}
    model = others[family]() if family in others else build(family, "sdpa", reluformer=None)
    model.save_pretrained(folder / "softmax")
    return type(model).from_pretrained(folder / "softmax", dtype=torch.float64)


def parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def names(model: PreTrainedModel) -> set[str]:
    return {part.config._attn_implementation for part in parts(model)}


def computed(model: PreTrainedModel, family: str) -> torch.Tensor:
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    inputs = {"pixel_values": images} if family == "vit" else {"input_ids": tokens(2, 7)}
    if family in ("marian", "encoder-decoder"):
        inputs["decoder_input_ids"] = tokens(2, 4)
    if family == "clip":
        inputs["pixel_values"] = images
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("family", [*CONFIGS, "encoder-decoder", "clip"])
def test_comes_back_after_every_saving(family, tmp_path, caplog):
    model = made(family, tmp_path)
    softmax = computed(model, family)
    use_relu_attention(model, gamma=0.6)
    expected = computed(model, family)
    assert (expected - softmax).abs().max() > 1e-3, "ReLU and softmax give the same: the comparison would say nothing"
    for number in range(3):
        model.save_pretrained(tmp_path / str(number))
        model = type(model).from_pretrained(tmp_path / str(number), dtype=torch.float64)
        for again in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert names(again) == {"reluformer"}
            # not bitwise: products of matrices are rounded by where the weights lie in memory
            torch.testing.assert_close(computed(again, family), expected, rtol=1e-9, atol=1e-11)
    assert not [
        record for record in caplog.records if record.levelno == logging.WARNING and "softmax" in record.getMessage()
    ]


def test_comes_back_from_the_auto_class_and_from_a_config(tmp_path):
    use_relu_attention(made("bert", tmp_path), gamma=0.6).save_pretrained(tmp_path)
    assert names(AutoModel.from_pretrained(tmp_path)) == {"reluformer"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert names(AutoModel.from_config(config)) == {"reluformer"} and config.reluformer["gamma"] == 0.6


def test_comes_back_from_a_checkpoint_of_the_trainer(tmp_path):
    model = use_relu_attention(made("marian", tmp_path).float(), gamma=0.6)
    for stack in (model.get_encoder(), model.get_decoder()):
        stack.embed_positions.requires_grad_(False)  # loading unfreezes it, and 5.24 loads none that is saved
    run = trainer(model, tmp_path, 16, max_steps=1, save_strategy="steps", save_steps=1)
    run.train()
    again = type(model).from_pretrained(tmp_path / "checkpoint-1")
    assert names(again) == {"reluformer"}
    assert torch.equal(computed(again, "marian"), computed(run.model.eval(), "marian"))


def test_a_name_asked_for_while_loading_is_saved_too(tmp_path):
    made("bert", tmp_path).save_pretrained(tmp_path)
    AutoModel.from_pretrained(tmp_path, attn_implementation="reluformer").save_pretrained(tmp_path)
    assert names(AutoModel.from_pretrained(tmp_path)) == {"reluformer"}


@pytest.mark.parametrize("saved", [1, 2])
def test_without_the_package_it_raises(saved, tmp_path):
    model = use_relu_attention(made("bert", tmp_path), gamma=0.6)
    for _ in range(saved):
        model.save_pretrained(tmp_path)
        model = AutoModel.from_pretrained(tmp_path)
    run = subprocess.run([sys.executable, "-c", PLAIN_LOADING, tmp_path], capture_output=True, text=True)
    assert run.returncode == 1 and 'ValueError: Specified `attn_implementation="reluformer"` is not supp' in run.stderr
    asked = subprocess.run([sys.executable, "-c", PLAIN_LOADING, tmp_path, "attn_implementation=sdpa"], check=False)
    assert asked.returncode == 0, "softmax that is asked for by name"


def test_what_was_set_last_is_saved(tmp_path, caplog):
    model = use_relu_attention(made("bert", tmp_path), gamma=0.6)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert names(AutoModel.from_pretrained(tmp_path)) == {"sdpa"}
    assert "computes softmax attention" in caplog.text
    assert names(AutoModel.from_pretrained(tmp_path, attn_implementation="eager")) == {"eager"}


def saved_before(folder: Path) -> None:
    """A folder as it was saved when the name was not: settings alone."""
    use_relu_attention(made("bert", folder), gamma=0.6).save_pretrained(folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    del fields["attn_implementation"], fields["attribute_map"]
    path.write_text(json.dumps(fields), encoding="utf-8")


def test_a_folder_saved_before_is_warned_of_each_time_and_mended_by_one_line(tmp_path, caplog):
    saved_before(tmp_path)
    for count in (1, 2):
        assert names(AutoModel.from_pretrained(tmp_path)) == {"sdpa"}
        messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(messages) == count and messages[-1].startswith(f"{tmp_path}: "), messages
        assert "attn_implementation='sdpa', so it computes softmax" in messages[-1]
    caplog.clear()
    AutoModel.from_pretrained(tmp_path, attn_implementation="reluformer").save_pretrained(tmp_path)
    assert names(AutoModel.from_pretrained(tmp_path)) == {"reluformer"} and not caplog.records


def test_a_part_alone_comes_back_as_softmax_with_a_warning(tmp_path, caplog):
    """The config of the whole, which Transformers lets decide for its parts, names nothing."""
    model = made("clip", tmp_path)
    use_relu_attention(model.text_model, gamma=0.6)
    model.save_pretrained(tmp_path)
    assert names(CLIPModel.from_pretrained(tmp_path)) == {"sdpa"}
    assert "CLIPTextConfig: the config holds settings of ReLU attention" in caplog.text


def test_other_models_save_what_they_saved(tmp_path, caplog):
    config = bert_config()
    BertModel(config).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert not {"attn_implementation", "attribute_map", "reluformer"} & fields.keys() and not caplog.records
    assert "attribute_map" not in config.__dict__


def test_names_of_a_config_stay(tmp_path):
    """Marian's config calls its `hidden_size` `d_model`."""
    use_relu_attention(made("marian", tmp_path)).save_pretrained(tmp_path)
    for config in (AutoConfig.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path).config):
        assert config.hidden_size == config.d_model == 16
        config.hidden_size = 32
        assert config.d_model == 32


def test_parts_of_any_kind_may_be_added():
    module = torch.nn.Module()
    module.add_module("nothing", None)
    module.config = "a string"
    outer = torch.nn.Sequential(module)
    outer.config = {}
    assert outer[0] is module and bert_config(**STABLE)._attn_implementation is None
