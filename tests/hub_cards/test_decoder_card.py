"""The card and the publication of a decoder-only language model: its own task, examples, limits and files."""

import pytest
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from reluformer.hub_cards.bundle import collect_files
from reluformer.hub_cards.card import render_card
from reluformer.hub_cards.model_folder import ModelFolder

from ..modeling_reluformer.decoder_cases import VOCABULARY, decoder_model

TOLD = {
    "llama_relu": (
        "4 heads that share 2 of keys",
        "gated FFN 40 with `relu`, RMSNorm before each block and at the end",
        "rotary positions, attention activation `relu`",
        "Made for contexts of 40 tokens: longer ones are not refused",
    ),
    "normalization_free": (
        "FFN 40 with `relu`, no norm but one LayerNorm at the end",
        "learned positions, attention activation `softmax`",
        "At most 40 tokens of prompt and continuation together; more are refused",
        "standard deviation 0.02 |",
    ),
    "gpt2": (
        "4 heads,",
        "LayerNorm before each block and at the end",
        "the last projection of each block divided by √(2 · layers)",
    ),
}


@pytest.fixture(params=TOLD)
def saved(request, tmp_path):
    """(preset, folder) of a model with its tokenizer."""
    fields = {"num_key_value_heads": 2} if request.param == "llama_relu" else {}
    decoder_model(preset=request.param, **fields).save_pretrained(tmp_path)
    backend = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w2").save_pretrained(tmp_path)
    return request.param, tmp_path


def test_the_card_is_that_of_a_language_model(saved):
    preset, folder = saved
    text = render_card(folder, repo_id="someone/tiny")
    assert ModelCard(text).data.pipeline_tag == "text-generation"
    for part in (
        'pipeline("text-generation", model="someone/tiny")',
        "AutoModelForCausalLM, AutoTokenizer",
        "model.generate(**tokenizer(",
        f"| vocabulary | {VOCABULARY} pieces |",
        *TOLD[preset],
    ):
        assert part in text, part
    assert "translat" not in text.lower() and "encoder-decoder" not in text


def test_what_is_published_is_what_a_user_needs(saved):
    names = {file.name for file in collect_files(ModelFolder(saved[1]), repo_id="someone/tiny")}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modeling_decoder.py",
        "layers_reluformer.py",
        "README.md",
    } <= names
    assert not names & {"modeling_reluformer.py", "modeling_vision.py", "registration.py"}
