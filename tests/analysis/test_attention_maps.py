"""Attention maps: the right weights at the right tokens."""

import pytest
import torch

from reluformer.analysis import attention_maps
from reluformer.analysis.attention_maps import pair_maps, plot_attention_map
from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF

from .small_models import SOURCES, TARGETS, make_model


@pytest.fixture
def images(monkeypatch):
    """The first map of each figure that was drawn, with the tokens of the keys and of the queries."""
    seen, draw = [], attention_maps.draw_heat_maps

    def recording(maps, titles, keys, queries, **options):
        seen.append((maps[0], keys, queries))
        return draw(maps, titles, keys, queries, **options)

    monkeypatch.setattr(attention_maps, "draw_heat_maps", recording)
    return seen


@pytest.mark.parametrize("kind", ["reluformer", "vanilla"])
def test_the_map_of_a_run_is_the_mean_of_the_last_layer(kind, small_tokenizer, encoded, tmp_path, images):
    model, path = make_model(kind, len(small_tokenizer)), tmp_path / "new" / "map.png"
    plot_attention_map(model, small_tokenizer, SOURCES[0], TARGETS[0], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    [(shown, x_labels, y_labels)] = images
    source, target = encoded[0]
    assert x_labels == small_tokenizer.convert_ids_to_tokens(source) and x_labels[-1] == "</s>"
    assert y_labels == small_tokenizer.convert_ids_to_tokens(target) and y_labels[-1] == "</s>"
    model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.tensor([source]), "labels": torch.tensor([target])}
    expected = model(**inputs, output_attentions=True).cross_attentions[-1][0].mean(dim=0)
    torch.testing.assert_close(shown, expected.detach())


@pytest.mark.parametrize("kind", ["reluformer", "t5"])
def test_weights_of_a_pair_stand_at_their_tokens(kind, small_tokenizer, encoded):
    model, (source, labels) = make_model(kind, len(small_tokenizer)), encoded[3]
    maps = pair_maps(model, small_tokenizer, source, labels)
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
