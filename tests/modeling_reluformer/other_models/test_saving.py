"""A model saved with ReLU attention is loaded with ReLU attention, or not without a word."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers.utils.logging import warning_once

from reluformer import use_relu_attention

from ...conftest import VOCABULARY
from .foreign_cases import SMALL, bert_config, build, tokens

PLAIN_LOADING = """
import sys
sys.modules["reluformer"] = None  # whoever imports it fails
import transformers
transformers.AutoModel.from_pretrained(sys.argv[1], **dict(pair.split("=") for pair in sys.argv[2:]))
"""


def clip() -> transformers.CLIPModel:
    shape = {**SMALL, "num_hidden_layers": 1, "projection_dim": 8}
    text = {**shape, "vocab_size": VOCABULARY, "max_position_embeddings": 40, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**shape, "image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8, initializer_factor=5.0)
    return transformers.CLIPModel(config)


def made(family: str, folder: Path) -> transformers.PreTrainedModel:
    """A model with softmax, and no settings of ours in its config. From the disk: not all that `build` changes is
    saved."""
    torch.manual_seed(0)
    model = clip() if family == "clip" else build(family, "sdpa", reluformer=None)
    model.save_pretrained(folder / "softmax")
    return type(model).from_pretrained(folder / "softmax", dtype=torch.float64)


def names(model: transformers.PreTrainedModel) -> set[str]:
    return {
        part.config._attn_implementation for part in model.modules() if isinstance(part, transformers.PreTrainedModel)
    }


def computed(model: transformers.PreTrainedModel, family: str) -> torch.Tensor:
    inputs = {"input_ids": tokens(2, 7)}
    if family == "marian":
        inputs["decoder_input_ids"] = tokens(2, 4)
    if family == "clip":
        inputs["pixel_values"] = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("family", ["llama", "marian", "clip"])
def test_comes_back_after_every_saving(family, tmp_path, caplog):
    """Also where a loaded model is saved at once, before its first forward pass."""
    model = made(family, tmp_path)
    softmax = computed(model, family)
    use_relu_attention(model, gamma=0.6)
    expected = computed(model, family)
    assert (expected - softmax).abs().max() > 1e-3
    for number in range(2):
        model.save_pretrained(tmp_path / str(number))
        model = type(model).from_pretrained(tmp_path / str(number), dtype=torch.float64)
    for again in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert names(again) == {"reluformer"}
        # not bitwise: products of matrices are rounded by where the weights lie in memory
        torch.testing.assert_close(computed(again, family), expected, rtol=1e-9, atol=1e-11)
    assert "softmax" not in caplog.text


def test_comes_back_from_the_auto_class_and_from_a_config(tmp_path):
    use_relu_attention(made("marian", tmp_path), gamma=0.6).save_pretrained(tmp_path)
    assert names(transformers.AutoModel.from_pretrained(tmp_path)) == {"reluformer"}
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert names(transformers.AutoModel.from_config(config)) == {"reluformer"} and config.reluformer["gamma"] == 0.6
    config.hidden_size = 32  # Marian's other name of d_model
    assert config.d_model == 32


def test_a_name_asked_for_while_loading_is_saved_too(tmp_path):
    made("bert", tmp_path).save_pretrained(tmp_path)
    transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="reluformer").save_pretrained(tmp_path)
    assert names(transformers.AutoModel.from_pretrained(tmp_path)) == {"reluformer"}


@pytest.mark.slow
def test_without_the_package_it_raises(tmp_path):
    use_relu_attention(made("bert", tmp_path), gamma=0.6).save_pretrained(tmp_path)
    run = subprocess.run([sys.executable, "-c", PLAIN_LOADING, tmp_path], capture_output=True, text=True)
    assert run.returncode == 1 and 'ValueError: Specified `attn_implementation="reluformer"` is not supp' in run.stderr


def test_what_was_set_last_is_saved_and_warned_of(tmp_path, caplog):
    warning_once.cache_clear()
    model = use_relu_attention(made("bert", tmp_path), gamma=0.6)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert names(transformers.AutoModel.from_pretrained(tmp_path)) == {"sdpa"}
    assert "attn_implementation='sdpa', so it computes softmax" in caplog.text
    assert names(transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager")) == {"eager"}


def test_other_models_save_what_they_saved(tmp_path, caplog):
    config = bert_config()
    transformers.BertModel(config).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert not {"attn_implementation", "attribute_map", "reluformer"} & fields.keys() and not caplog.records
    assert "attribute_map" not in config.__dict__
