"""Attention maps: the right weights at the right tokens, and the model given back as it was."""

import datasets
import pytest
import torch
from matplotlib.figure import Figure

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.analysis.attention_maps import maps_table, pair_maps, plot_attention_map, plot_pair_maps
from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF
from reluformer.configuration.errors import UserError
from reluformer.training.tokenization import train_tokenizer
from reluformer.training.translation import Translator

from .small_models import HEADS as SMALL_HEADS
from .small_models import LAYERS, make_model

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
    ids = tokenizer(SOURCE)["input_ids"], tokenizer(text_target=TARGET)["input_ids"]
    weights = pair_maps(model, tokenizer, *ids).weights[CROSS][0]
    assert len(images) == HEADS
    for shown, expected in zip(images, weights, strict=True):
        torch.testing.assert_close(shown[0], expected)


@pytest.mark.parametrize("training", [True, False])
def test_without_a_target_it_is_the_models_own_translation_and_the_model_stays(
    model, tokenizer, training, tmp_path, images
):
    implementation = model.config._attn_implementation
    assert implementation != "eager"
    model.train(training)
    plot_attention_map(model, tokenizer, SOURCE, tmp_path / "map.png")
    assert model.training is training and model.config._attn_implementation == implementation
    ids = tokenizer.convert_tokens_to_ids(images[0][2])
    assert tokenizer.decode(ids, skip_special_tokens=True) == Translator(model, tokenizer)(SOURCE)


def test_the_moses_step_is_applied(tmp_path, images):
    pytest.importorskip("sacremoses")
    tokenizer = make_tokenizer(moses=True)
    config = ReLUFormerConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    model = ReLUFormerForConditionalGeneration(config)
    plot_attention_map(model, tokenizer, "schnee, hund.", tmp_path / "map.png", "dog's")
    _, source, target = images[0]
    assert source == tokenizer.convert_ids_to_tokens(tokenizer("schnee , hund .")["input_ids"])
    assert target == tokenizer.convert_ids_to_tokens(tokenizer("dog 's")["input_ids"])


def test_bad_arguments_are_refused(model, tokenizer, tmp_path):
    with pytest.raises(UserError, match="layer: 2 does not exist"):
        plot_attention_map(model, tokenizer, SOURCE, tmp_path / "a.png", layer=2)
    with pytest.raises(UserError, match=r"target: .* tokens, the model has 64 positions"):
        plot_attention_map(model, tokenizer, SOURCE, tmp_path / "a.png", "dog " * 64)


# Of a whole model


@pytest.mark.parametrize("kind", ["reluformer", "marian", "t5"])
def test_weights_of_a_pair_stand_at_their_tokens(kind, small_tokenizer, encoded, tmp_path):
    model, (source, labels) = make_model(kind, len(small_tokenizer)), encoded[3]
    maps = pair_maps(model, small_tokenizer, source, labels, sentence=7)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor([source]), labels=torch.tensor([labels]), output_attentions=True)
    start = model.config.decoder_start_token_id
    tokens = [small_tokenizer.convert_ids_to_tokens(ids) for ids in (source, labels, [start, *labels[:-1]])]
    expected = {
        ENCODER_SELF: (outputs.encoder_attentions, tokens[0], tokens[0]),
        DECODER_SELF: (outputs.decoder_attentions, tokens[1], tokens[2]),
        CROSS: (outputs.cross_attentions, tokens[1], tokens[0]),
    }
    for module, (layers, queries, keys) in expected.items():
        assert maps.axes(module) == (queries, keys)
        for shown, layer in zip(maps.weights[module], layers, strict=True):
            torch.testing.assert_close(shown, layer[0])
    row = next(row for row in maps_table(maps) if (row["module"], row["layer"], row["head"]) == (CROSS, 2, 3))
    assert (row["sentence"], row["query_token"], row["key_token"]) == (7, tokens[1][0], tokens[0][0])
    assert row["weight"] == pytest.approx(float(outputs.cross_attentions[1][0, 2, 0, 0]))


def test_a_picture_for_each_module_and_layer(small_tokenizer, encoded, tmp_path):
    model, (source, labels) = make_model("reluformer", len(small_tokenizer)), encoded[0]
    maps = pair_maps(model, small_tokenizer, source, labels)
    paths = plot_pair_maps(maps, tmp_path / "new")
    names = [f"1.{m}.layer{n}.png" for m in (ENCODER_SELF, DECODER_SELF, CROSS) for n in range(1, LAYERS + 1)]
    assert [path.name for path in paths] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    s, t = len(source), len(labels)
    assert len(list(maps_table(maps))) == LAYERS * SMALL_HEADS * (s * s + t * (t + 1) // 2 + t * s)


def test_a_cut_map_is_the_beginning_of_the_whole_one(small_tokenizer, encoded):
    model, (source, labels) = make_model("reluformer", len(small_tokenizer)), encoded[3]
    whole = pair_maps(model, small_tokenizer, source, labels)
    cut = pair_maps(model, small_tokenizer, source, labels, most_tokens=3)
    assert cut.axes(DECODER_SELF) == tuple(tokens[:3] for tokens in whole.axes(DECODER_SELF))
    assert cut.lengths == whole.lengths == (len(source), len(labels))
    for module, layers in cut.weights.items():
        for small, large in zip(layers, whole.weights[module], strict=True):
            torch.testing.assert_close(small, large[:, :3, :3])
            assert small.untyped_storage().nbytes() == small.nbytes, "the whole map is still in memory"
