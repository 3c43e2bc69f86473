"""Feed-forward blocks: found by name, and what is seen of them is what the layer adds to its residual."""

import pytest
import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from reluformer.analysis.collection import observe
from reluformer.analysis.feed_forward import feed_forward_blocks, require_post_norm
from reluformer.analysis.texts import make_batch
from reluformer.configuration.errors import UserError

from .small_models import FFN, LAYERS, make_model


@pytest.mark.parametrize("kind", ["reluformer", "memory", "marian"])
def test_output_and_residual_are_what_the_final_norm_sums(kind, small_tokenizer, encoded):
    model, updates, sums = make_model(kind, len(small_tokenizer)), {}, {}
    batch = make_batch(encoded, "cpu")
    for stack, rows in (("encoder", batch.source_mask), ("decoder", batch.target_mask)):
        for number, layer in enumerate(getattr(model.model, stack).layers):

            def remember(module, inputs, place=(stack, number), rows=rows):
                sums[place] = inputs[0][rows]

            layer.final_layer_norm.register_forward_pre_hook(remember)
    observe(model, [batch], on_update=lambda stack, layer, *pair: updates.update({(stack, layer): pair}))
    assert len(updates) == len(sums) == 2 * LAYERS
    for place, (output, residual) in updates.items():
        torch.testing.assert_close(output + residual, sums[place])


def test_blocks_in_order():
    model = make_model("t5", 300)
    blocks = feed_forward_blocks(model)
    assert [(block.stack, block.layer) for block in blocks] == [(s, n) for s in ("encoder", "decoder") for n in (0, 1)]
    assert blocks[3].values is model.decoder.block[1].layer[2].DenseReluDense.wo
    assert blocks[0].keys.weight.shape == (FFN, 16)


def test_models_that_cannot_be_read_are_refused(small_tokenizer):
    with pytest.raises(UserError, match="variance-ratio: t5 models are not supported"):
        require_post_norm(make_model("t5", 300))
    model = make_model("marian", 300)
    for layer in model.model.encoder.layers:
        del layer.fc1
    with pytest.raises(
        UserError, match=r"no feed-forward blocks in its encoder; .*; found MarianAttention with k_proj 16→16"
    ):
        feed_forward_blocks(model)


EXPERTS = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3,
           "intermediate_size": 33, "moe_intermediate_size": 20, "num_experts": 4, "num_experts_per_tok": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (
            lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**EXPERTS, shared_expert_intermediate_size=12)),
            r"qwen2_moe, decoder: layers\.0\.mlp\.experts is a mixture of experts",
        ),
        (
            lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**EXPERTS, mlp_only_layers=[1])),
            r"qwen3_moe, decoder: no feed-forward block in layers\.0, layers\.2, but in other layers",
        ),
    ],
)
def test_a_model_is_not_measured_in_part(make, named):
    with pytest.raises(UserError, match=named):
        feed_forward_blocks(make())
