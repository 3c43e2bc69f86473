"""Cards of models without a recipe: what nobody has recorded is named as not known; and of the other kinds of model."""

import re

import pytest
from huggingface_hub import ModelCard
from transformers import ViTImageProcessor

from reluformer import ReLUFormerConfig
from reluformer.commands import main as cli
from reluformer.hub_cards.card import render_card, write_card

from ..modeling_reluformer.cases import VOCABULARY, decoder_model, vision_model
from .model_folders import TINY
from .test_card import assert_whole


@pytest.fixture
def bare(tmp_path):
    ReLUFormerConfig(**TINY).save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_folder_of_save_pretrained_says_that_nothing_is_recorded(bare):
    text = render_card(bare)
    missing = next(line for line in text.splitlines() if line.startswith("Not recorded in the model's folder"))
    assert "arguments and updates of the training" in missing and "# bare" in text
    assert "the data that it was trained on, the weights that it started from" in text
    assert "The model's loss in training holds the regulariser" in text and "Not evaluated" in text
    for absent in ("## Scores", "model-index", "Trained with", "| updates", "Measured:", "Command"):
        assert absent not in text, absent
    assert_whole(text)


def test_what_a_person_says_is_kept_by_later_cards(bare):
    write_card(bare, license="cc0-1.0", language=["de", "no"], dataset="me/number-words")
    text = render_card(bare)
    data = ModelCard(text).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["de", "no"], ["me/number-words"])
    assert "The weights: `cc0-1.0`." in text and "data set `me/number-words`" in text
    assert "from `en` to `fr`" in render_card(bare, language=["en", "fr"])
    assert ModelCard(render_card(bare, license="mit")).data.license == "mit"


@pytest.mark.parametrize("verb", [["card"], ["publish", "--repo-id", "me/little", "--dry-run"]])
def test_an_exported_model_is_refused_and_its_place_on_the_hub_is_told(bare, verb, capsys):
    """The card would say that AutoModel loads what has no weights; graphs beside the weights do not disturb."""
    (bare / "encoder_model.onnx").touch()
    assert cli.main([*verb, "--model", str(bare)]) == 2
    assert f"hf upload OWNER/NAME {bare} onnx" in capsys.readouterr().err
    (bare / "model.safetensors").touch()
    assert "ONNX" not in render_card(bare)


# Other kinds of model

DECODERS = {
    "llama_relu": (
        "4 heads that share 2 of keys",
        "gated FFN 40 with `relu`",
        "RMSNorm before each block and at the end, rotary positions",
        "Made for contexts of 40 tokens: longer ones are not refused",
    ),
    "normalization_free": (
        "FFN 40 with `relu`",
        "no norm but one LayerNorm at the end, learned positions",
        "attention activation `softmax`",
        "At most 40 tokens of prompt and continuation together; more are refused",
    ),
    "gpt2": ("4 heads,", "LayerNorm before each block and at the end", "divided by √(2 · layers)"),
}


@pytest.mark.parametrize("preset", DECODERS)
def test_the_card_of_a_language_model(preset, tmp_path):
    fields = {"num_key_value_heads": 2} if preset == "llama_relu" else {}
    decoder_model(preset=preset, **fields).config.save_pretrained(tmp_path)
    text = render_card(tmp_path, repo_id="someone/tiny")
    assert ModelCard(text).data.pipeline_tag == "text-generation"
    expected = ("AutoModelForCausalLM, AutoTokenizer", "max_new_tokens=50", f"| vocabulary | {VOCABULARY} pieces |")
    for part in (*expected, *DECODERS[preset]):
        assert part in text, part
    assert "translat" not in text.lower() and "encoder-decoder" not in text
    assert_whole(text)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_programs_of_the_card_of_a_classifier_run(channels, tmp_path):
    model = vision_model(num_channels=channels)
    model.save_pretrained(tmp_path)
    ViTImageProcessor().save_pretrained(tmp_path)
    text = render_card(tmp_path, repo_id="me/tiny")
    assert_whole(text)
    data = ModelCard(text).data
    assert data.pipeline_tag == "image-classification" and "arxiv:2309.08586" in data.tags
    assert f"for {model.config.num_labels} classes" in text and "tokenizer" not in text.lower()
    loading, alone = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "trust_remote_code=True" in alone and f'convert("{"L" if channels == 1 else "RGB"}")' in alone
    compile(alone, "card", "exec")
    assert "AutoImageProcessor, AutoModelForImageClassification" in loading
