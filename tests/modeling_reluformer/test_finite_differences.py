"""The gradient of every parameter, of the whole loss and of L_reg alone, against finite differences in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from .exact_models import exact_model, packed_batch, padded_batch, use_path

STEP = 1e-6
# Every kind of parameter that a model can have is in one of these.
MODELS = {
    "plain": {},
    "rela": {"attention_output_norm": "gated_rms", "attention_gamma_learnable": True, "attention_qk_norm": True},
    "gate": {
        "attention_activation": "sigmoid",
        "attention_gate": True,
        "attention_output_norm": "layer_norm",
        "ffn_output_norm": "layer_norm",
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
}
# What no attention's weights depend on: all behind the weights of the last attention.
OUT_OF_REACH_OF_THE_PENALTY = (
    "decoder.layers.0.encoder_attn.v_proj",
    "decoder.layers.0.encoder_attn.out_proj",
    "decoder.layers.0.encoder_attn.output_norm",
    "decoder.layers.0.encoder_attn.gate_proj",
    "decoder.layers.0.encoder_attn_layer_norm",
    "decoder.layers.0.fc",
    "decoder.layers.0.ffn_layer_norm",
    "decoder.layers.0.final_layer_norm",
    "lm_head",
)


def slopes(function: Callable[[], Tensor], parameter: nn.Parameter, direction: Tensor) -> Tensor:
    """Of each of the function's numbers, by central differences; the parameter is as before afterwards."""
    values = []
    start = parameter.detach().clone()
    with torch.no_grad():
        for sign in (1, -1):
            parameter.copy_(start + sign * STEP * direction)
            values.append(function())
        parameter.copy_(start)
    return (values[0] - values[1]) / (2 * STEP)


@pytest.mark.parametrize("path", ["eager", "plain", "blocks"])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_of_every_parameter(name, path, monkeypatch):
    """Of the loss, in which lambda 1 lets both terms weigh about as much, and of L_reg alone."""
    fields = {"encoder_layers": 1, "decoder_layers": 1, "regularization_weight": 1.0, **MODELS[name]}
    model = exact_model(attn_implementation=use_path(monkeypatch, path), **fields).train()
    batch = packed_batch() if name == "gate" else padded_batch("right")

    def figures() -> Tensor:
        output = model(**batch)
        return torch.stack([output.loss, output.regularization])

    names, parameters = zip(*model.named_parameters(), strict=True)
    keep = {"retain_graph": True, "materialize_grads": True}
    gradients = [torch.autograd.grad(figure, parameters, **keep) for figure in figures()]
    generator = torch.Generator().manual_seed(0)
    for parameter_name, parameter, *pair in zip(names, parameters, *gradients, strict=True):
        reached = not any(part in parameter_name for part in OUT_OF_REACH_OF_THE_PENALTY)
        assert [bool((gradient != 0).any()) for gradient in pair] == [True, reached], parameter_name
        direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        found = torch.stack([(gradient * direction).sum() for gradient in pair])
        expected = slopes(figures, parameter, direction)
        torch.testing.assert_close(
            found, expected, rtol=1e-5, atol=1e-7, msg=lambda text, n=parameter_name: f"{n}: {text}"
        )
