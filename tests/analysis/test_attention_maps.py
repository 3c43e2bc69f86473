"""Attention maps: the right weights at the right tokens, and the model given back as it was."""

import datasets
import pytest
import torch
from matplotlib.figure import Figure

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.analysis.attention_maps import cross_attention, plot_attention_map
from reluformer.configuration.errors import UserError
from reluformer.training.tokenization import train_tokenizer
from reluformer.training.translation import Translator

SOURCE, TARGET = "ein hund im schnee", "a dog in snow"
HEADS = 2


def make_tokenizer(moses=False):
    pairs = datasets.Dataset.from_dict({"source": [SOURCE] * 9, "target": [TARGET] * 9})
    return train_tokenizer(
        pairs, vocab_size=300, lowercase=True, moses=moses, source_language="de", target_language="en", max_length=64
    )


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(params=["reluformer", "vanilla"])
def model(request, tokenizer):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "max_position_embeddings": 64}
    config = ReLUFormerConfig.from_preset(request.param, vocab_size=len(tokenizer), **sizes, **heads)
    return ReLUFormerForConditionalGeneration(config)


@pytest.fixture
def images(monkeypatch):
    """The maps of each figure that was saved, with the labels of both axes."""
    seen = []
    save = Figure.savefig

    def recording(self, *args, **kwargs):
        for axes in self.axes:
            if axes.get_images():
                labels = [[label.get_text() for label in side.get_ticklabels()] for side in (axes.xaxis, axes.yaxis)]
                seen.append((torch.tensor(axes.get_images()[0].get_array()), *labels))
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", recording)
    return seen


def test_weights_stand_at_their_tokens(model, tokenizer, tmp_path, images):
    path = plot_attention_map(model, tokenizer, SOURCE, tmp_path / "new" / "map.png", TARGET)
    assert path.read_bytes().startswith(b"\x89PNG")
    [(shown, x_labels, y_labels)] = images
    source, target = tokenizer(SOURCE)["input_ids"], tokenizer(text_target=TARGET)["input_ids"]
    assert x_labels == tokenizer.convert_ids_to_tokens(source) and x_labels[-1] == "</s>"
    assert y_labels == tokenizer.convert_ids_to_tokens(target) and y_labels[-1] == "</s>"
    model.eval()
    model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.tensor([source]), "labels": torch.tensor([target])}
    expected = model(**inputs, output_attentions=True).cross_attentions[1][0].mean(dim=0)
    torch.testing.assert_close(shown, expected.detach())


def test_each_head_has_its_map(model, tokenizer, tmp_path, images):
    plot_attention_map(model, tokenizer, SOURCE, tmp_path / "map.png", TARGET, layer=0, each_head=True)
    weights, _, _ = cross_attention(model, tokenizer, SOURCE, TARGET, layer=0)
    assert len(images) == HEADS
    for shown, expected in zip(images, weights, strict=True):
        torch.testing.assert_close(shown[0], expected)


def test_without_a_target_it_is_the_models_own_translation(model, tokenizer):
    _, _, tokens = cross_attention(model, tokenizer, SOURCE)
    translation = Translator(model, tokenizer)(SOURCE)
    assert tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True) == translation


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_given_back_as_it_was(model, tokenizer, training):
    implementation = model.config._attn_implementation
    assert implementation != "eager"
    model.train(training)
    cross_attention(model, tokenizer, SOURCE, TARGET)
    assert model.training is training
    assert model.config._attn_implementation == implementation
    assert model.model.decoder.config._attn_implementation == implementation


def test_the_moses_step_is_applied(tmp_path):
    pytest.importorskip("sacremoses")
    tokenizer = make_tokenizer(moses=True)
    config = ReLUFormerConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    _, source, target = cross_attention(ReLUFormerForConditionalGeneration(config), tokenizer, "schnee, hund.", "dog's")
    assert source == tokenizer.convert_ids_to_tokens(tokenizer("schnee , hund .")["input_ids"])
    assert target == tokenizer.convert_ids_to_tokens(tokenizer("dog 's")["input_ids"])


def test_negative_weights_can_be_drawn(tokenizer, tmp_path, images):
    config = ReLUFormerConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, attention_activation="identity"
    )
    plot_attention_map(ReLUFormerForConditionalGeneration(config), tokenizer, SOURCE, tmp_path / "a.png", TARGET)
    assert images[0][0].min() < 0


def test_bad_arguments_are_refused(model, tokenizer, tmp_path):
    with pytest.raises(UserError, match="layer: 2 does not exist"):
        plot_attention_map(model, tokenizer, SOURCE, tmp_path / "a.png", layer=2)
    with pytest.raises(UserError, match=r"target: .* tokens, the model has 64 positions"):
        plot_attention_map(model, tokenizer, SOURCE, tmp_path / "a.png", "dog " * 64)
    with pytest.raises(UserError, match="source: empty"):
        plot_attention_map(model, tokenizer, " ", tmp_path / "a.png")
