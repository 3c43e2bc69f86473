"""Maps of a whole model: the right weights at the right tokens, in pictures and table."""

import pytest
import torch

from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF
from reluformer.analysis.model_maps import maps_table, pair_maps, plot_pair_maps

from .small_models import HEADS, LAYERS, make_model


@pytest.mark.parametrize("kind", ["reluformer", "marian", "t5"])
def test_weights_stand_at_their_tokens(kind, small_tokenizer, encoded, tmp_path):
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
    assert len(list(maps_table(maps))) == LAYERS * HEADS * (s * s + t * (t + 1) // 2 + t * s)


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
