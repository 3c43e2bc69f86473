"""`gamma="auto"`: the number that the map of gamma gives for a length, and where that number is from."""

import json
import math

import numpy as np
import pytest
from transformers import AutoModel

from reluformer import use_relu_attention
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.modeling_reluformer.other_models.gamma import gamma_for_length

from .foreign_cases import bert_config


def bert():
    return AutoModel.from_config(bert_config())


@pytest.mark.parametrize(("length", "gamma"), [(8, 8.0), (15, 8.0), (32, 8.0), (50, 10.0), (128, 16.0), (1024, 45.25)])
def test_grows_with_the_root_of_the_length_and_never_below_the_default(length, gamma):
    assert gamma_for_length(length) == gamma


@pytest.mark.parametrize(
    "name", ["europarl_it_en_L128", "europarl_it_en_L512", "europarl_it_en_L1024", "iwslt14_de_en"]
)
def test_is_the_gamma_of_our_recipes(name):
    """Of documents by L, of sentences by their usual length of about 15."""
    recipe = load_recipe(name)
    length = recipe.data.max_length if "europarl" in name else 15
    assert gamma_for_length(length) == pytest.approx(recipe.model.get("attention_gamma", 8.0), abs=0.1)


@pytest.mark.parametrize("length", [np.int64(98), np.float32(98)])
def test_a_median_of_numpy_is_a_number(length):
    settings = use_relu_attention(bert(), gamma="auto", length=length).config.reluformer
    assert settings["gamma"] == 14.0 and settings["gamma_source"].endswith("length 98")
    json.dumps(settings)


def test_the_config_holds_the_number_and_its_source(tmp_path):
    model = use_relu_attention(bert(), gamma="auto", length=98)
    assert model.config.reluformer["gamma"] == 14.0
    assert model.config.reluformer["gamma_source"] == "auto: max(8, sqrt(2 * length)), length 98"
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.reluformer == model.config.reluformer
    assert "gamma_source" not in use_relu_attention(bert(), gamma=14.0).config.reluformer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": "auto"}, "needs the length of a usual input.*got length=None"),
        ({"gamma": "auto", "length": "long"}, "got length='long'"),
        ({"gamma": "auto", "length": True}, "got length=True"),
        ({"gamma": "auto", "length": 7}, "length=7 is outside of what was measured, 8 to 1,024 tokens"),
        ({"gamma": "auto", "length": 2000}, "outside of what was measured"),
        ({"gamma": "auto", "length": math.nan}, "outside of what was measured"),
        ({"gamma": 8.0, "length": 100}, "length=100 is read for gamma='auto' alone; gamma is 8.0"),
        (
            {"gamma": "auto", "length": 100, "activation": "relu2"},
            "measured for activation='relu' alone; it is 'relu2'",
        ),
        ({"gamma": "auto", "length": 100, "scaling": "length"}, "gamma belongs to scaling='variance'"),
    ],
)
def test_refuses_what_is_not_known(settings, message):
    with pytest.raises(ValueError, match=message):
        use_relu_attention(bert(), **settings)


def test_a_config_cannot_hold_auto():
    model = bert()
    model.config.reluformer = {"gamma": "auto"}
    model.set_attn_implementation("reluformer")
    with pytest.raises(ValueError, match="gamma='auto' stands in the config"):
        model(model.dummy_inputs["input_ids"] % 3)
