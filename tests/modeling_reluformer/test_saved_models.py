"""A model that is saved and loaded again is the same model."""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSeq2SeqLM

from reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel

from ..conftest import random_tokens, tiny_model


def test_saved_equals_loaded(variant, tmp_path):
    model = tiny_model(**variant)
    model.save_pretrained(tmp_path)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    for loader in (ReLUFormerForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        with torch.no_grad():
            torch.testing.assert_close(
                loaded(input_ids=source, labels=target).logits,
                model(input_ids=source, labels=target).logits,
                rtol=0,
                atol=0,
            )
        torch.testing.assert_close(
            loaded.model.encoder.embed_positions.weight, model.model.encoder.embed_positions.weight, rtol=0, atol=0
        )
    assert isinstance(AutoModel.from_pretrained(tmp_path), ReLUFormerModel)


def test_a_checkpoint_without_a_bias_of_the_logits_has_none(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["final_logits_bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert not ReLUFormerForConditionalGeneration.from_pretrained(tmp_path).final_logits_bias.any()
