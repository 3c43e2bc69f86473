"""Transformers knows this package in either order of import."""

import os
import subprocess
import sys

import pytest
from transformers import AutoConfig, AutoModel

USE_MODELS = """
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel
for kind in ("reluformer", "reluformer_decoder", "reluformer_vision"):
    config = AutoConfig.for_model(kind)
    assert type(config).__module__.startswith("reluformer.") and type(config) in AutoModel._model_mapping
assert "reluformer" in AttentionInterface().valid_keys() and "reluformer" in AttentionMaskInterface().valid_keys()
"""


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error::UserWarning", "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RELUFORMER_COMPILED": "0"})
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_models_are_known_where_transformers_was_imported_before():
    run(f"import transformers.models.auto, reluformer\n{USE_MODELS}")


@pytest.mark.parametrize("kind", ["reluformer", "reluformer_decoder", "reluformer_vision"])
def test_a_registered_model_is_saved_with_its_code(kind):
    model = AutoModel._model_mapping[type(AutoConfig.for_model(kind))]
    assert (model._auto_class, model.config_class._auto_class) == ("AutoModel", "AutoConfig")
