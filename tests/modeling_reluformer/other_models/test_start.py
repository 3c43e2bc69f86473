"""A start that is too small for length scaling is told where it applies, and nowhere else."""

import pytest
from transformers import Qwen3Config, Qwen3Model, ViTConfig, ViTForImageClassification

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig, use_relu_attention

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
LENGTH = {"scaling": "length", "alpha": 1.0}


@pytest.fixture
def told(monkeypatch):
    messages = []
    monkeypatch.setattr("reluformer.modeling_reluformer.other_models.start.logger.warning_once", messages.append)
    return messages


def vit(**fields) -> ViTForImageClassification:
    return ViTForImageClassification(ViTConfig(**SIZES, image_size=8, patch_size=4, **fields))


def test_a_new_model_with_a_small_start_is_told_of(told):
    use_relu_attention(vit(), **LENGTH)
    assert len(told) == 1
    assert "alpha=1 on new weights of standard deviation 0.02" in told[0] and "Xavier" in told[0]


def test_a_model_of_this_package_is_refused():
    config = ReLUFormerVisionConfig(**SIZES, image_size=8, patch_size=4)
    with pytest.raises(ValueError, match="has ReLU attention already"):
        use_relu_attention(ReLUFormerForImageClassification(config), scaling="length")


def test_nothing_is_told_where_it_does_not_apply(told, tmp_path):
    use_relu_attention(vit(), scaling="length", alpha=0.5)
    use_relu_attention(vit(), scaling="variance")
    use_relu_attention(vit(initializer_range=0.5), **LENGTH)
    vit().save_pretrained(tmp_path)
    use_relu_attention(ViTForImageClassification.from_pretrained(tmp_path), **LENGTH)
    with_norms = Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16, vocab_size=20)
    use_relu_attention(Qwen3Model(with_norms), **LENGTH)
    assert told == []
