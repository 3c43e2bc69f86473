"""Attention maps: the right weights at the right tokens."""

import pytest
import torch
from matplotlib.figure import Figure

from reluformer.analysis import attention_maps
from reluformer.analysis.attention_maps import PairMaps, pair_maps, plot_attention_map
from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF

from .small_models import SOURCES, TARGETS, make_model


def test_the_map_of_a_run_is_the_mean_of_the_last_layer(small_tokenizer, encoded, tmp_path, monkeypatch):
    model, drawn = make_model("reluformer", len(small_tokenizer)), []
    monkeypatch.setattr(PairMaps, "draw", lambda maps, *arguments: drawn.extend(arguments) or Figure())
    plot_attention_map(model, small_tokenizer, SOURCES[0], TARGETS[0], tmp_path / "new" / "map.png")
    assert (tmp_path / "new" / "map.png").read_bytes().startswith(b"\x89PNG")
    model.set_attn_implementation("eager")
    source, target = (torch.tensor([ids]) for ids in encoded[0])
    expected = model(input_ids=source, labels=target, output_attentions=True).cross_attentions[-1][0].mean(dim=0)
    assert drawn[0] == CROSS
    torch.testing.assert_close(drawn[1], [expected.detach()])
    monkeypatch.setattr(attention_maps, "MOST_TOKENS", 2)
    plot_attention_map(model, small_tokenizer, SOURCES[0], TARGETS[0], tmp_path / "map.png")
    torch.testing.assert_close(drawn[4], [expected[:2, :2].detach()])


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
