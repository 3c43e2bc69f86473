"""`reluformer convert` takes a ViT checkpoint over: exactly, with its image processor; and exchanges the attention."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from reluformer import ReLUFormerForImageClassification
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training.conversion import convert, vit_config, vit_weights

from .tiny_marian import without

NAMES = {0: "boot", 1: "shirt", 2: "bag"}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def vit(tmp_path):
    """A ViT in the folder `vit`, with its image processor."""
    torch.manual_seed(0)
    labels = {"id2label": NAMES, "label2id": {v: k for k, v in NAMES.items()}}
    config = ViTConfig(**SIZES, image_size=8, patch_size=4, problem_type="regression", **labels)
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "vit")
    return model


def test_the_converted_model_computes_the_same(vit, tmp_path, capsys):
    assert cli.main(["convert", "--from", str(tmp_path / "vit"), "--to", str(tmp_path / "ours")]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("parameters, softmax attention\n") and "note" not in said.err
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert isinstance(model, ReLUFormerForImageClassification)
    assert (model.config.id2label, model.config.problem_type) == (NAMES, "regression")
    pictures = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(model(pictures).logits, vit(pictures).logits, atol=1e-6, rtol=0)
    assert AutoImageProcessor.from_pretrained(tmp_path / "ours").size == {"height": 8, "width": 8}
    # and back: every weight is there, and none was changed
    saved = load_file(tmp_path / "ours" / "model.safetensors")
    for name, tensor in vit_weights(vit.state_dict()).items():
        torch.testing.assert_close(saved.pop(name), tensor, rtol=0, atol=0)
    assert saved == {}


def test_every_field_arrives():
    fields = {
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "initializer_range": 0.1,
        "layer_norm_eps": 1e-3,
        "hidden_act": "relu",
        "image_size": 12,
        "patch_size": 6,
        "num_channels": 1,
        "qkv_bias": False,
        "id2label": NAMES,
        "problem_type": "regression",
        **SIZES,
    }
    config = vit_config(ViTConfig(**fields))
    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.pooling, config.attention_qk_norm, config.initialization) == ("cls", False, "normal")


def test_another_attention_keeps_the_weights(vit, tmp_path):
    found, notes = convert(tmp_path / "vit", tmp_path / "relu", attention="relu_vit")
    assert notes == ["8 parameters are new and untrained, the first is model.layers.0.self_attn.k_norm.bias"]
    config = found.config
    assert (config.attention_activation, config.attention_scaling, config.pooling) == ("relu", "length", "cls")
    plain, notes = convert(tmp_path / "vit", tmp_path / "plain", attention="relu")
    assert notes == [] and plain.config.attention_scaling == "length"


def test_what_cannot_be_taken_over_is_refused(vit, tmp_path):
    with pytest.raises(UserError, match="'vanilla' is unknown; choose one of relu_vit, softmax_vit, relu,"):
        convert(tmp_path / "vit", tmp_path / "a", attention="vanilla")
    convert(tmp_path / "vit", tmp_path / "ours")
    with pytest.raises(UserError, match="name the attention it shall have"):
        convert(tmp_path / "ours", tmp_path / "b")
    without(tmp_path / "vit", "classifier.bias", "classifier.weight")
    assert "no classifier" in convert(tmp_path / "vit", tmp_path / "c")[1][0]
