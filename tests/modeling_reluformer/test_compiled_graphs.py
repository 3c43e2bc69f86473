"""`torch.compile`: one graph for a pass in training and for a step of decoding, also where a share of the modules is
drawn."""

import copy

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from transformers import CompileConfig, EncoderDecoderCache, StaticCache

from reluformer.modeling_reluformer.loss_reluformer import ModuleSample

from ..conftest import random_tokens, tiny_model
from .cases import needs_compiled_library
from .test_sampled_regularizer import language, losses_and_gradients, made, translation, vision

MODELS = [translation, language, vision]
# Each layer is traced anew, for a second or more.
FEW_LAYERS = {
    translation: {"encoder_layers": 1, "decoder_layers": 1},
    language: {"num_hidden_layers": 2},
    vision: {"num_hidden_layers": 2},
}


class Counting:
    """A backend that keeps, for each graph, the statistics that its attentions are asked for."""

    def __init__(self) -> None:
        self.graphs = []

    def __call__(self, graph, inputs):
        attentions = [node for node in graph.graph.nodes if "attention" in str(node.target)]
        words = [
            argument for node in attentions for argument in node.args if argument in ("none", "sum", "sum+entropy")
        ]
        self.graphs.append(words)
        return lookup_backend("aot_eager")(graph, inputs)


@pytest.mark.parametrize("make", MODELS)
def test_nothing_breaks_the_graph_of_a_pass_in_training(make):
    model, batch = made(make, 1.0, **FEW_LAYERS[make])
    found = torch._dynamo.explain(model)(**batch)
    assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons
    model, batch = made(make, 0.5, **FEW_LAYERS[make])
    found = torch._dynamo.explain(model)(**batch, module_sample=model.draw_modules())
    assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons


@pytest.mark.parametrize("make", [vision, *(pytest.param(make, marks=pytest.mark.slow) for make in MODELS[:2])])
def test_each_sample_is_a_graph_that_computes_the_statistics_of_its_modules_alone(make):
    needs_compiled_library()  # whose operator is asked for the statistics
    model, batch = made(vision, 0.5, **FEW_LAYERS[vision]) if make is vision else made(make, 0.25)
    model, batch = (
        model.float(),
        {name: value.float() if value.is_floating_point() else value for name, value in batch.items()},
    )
    model(**batch)  # in which the library writes down the kind of problem of a classification
    twin, backend = copy.deepcopy(model), Counting()
    twin.compile(fullgraph=True, backend=backend)
    torch.manual_seed(5)
    samples = list({model.draw_modules(): None for _ in range(40)})
    assert len(samples) == round(1 / model.config.regularization_share)
    for sample in [*samples, *samples]:
        expected = losses_and_gradients(model, {**batch, "module_sample": sample})
        found = losses_and_gradients(twin, {**batch, "module_sample": sample})
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    asked = [sum(word == "sum+entropy" for word in graph) for graph in backend.graphs]
    assert asked == [sum(sample.taken) for sample in samples]
    assert {len(graph) for graph in backend.graphs} == {model.config.attention_modules}


def test_a_sample_that_is_drawn_within_breaks_the_graph_once_and_says_what_to_do():
    model, batch = made(translation, 0.5, **FEW_LAYERS[translation])
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"give forward a module_sample: model.draw_modules\(\)"):
        torch.compile(model, fullgraph=True, backend="eager")(**batch)
    found = torch._dynamo.explain(model)(**batch)
    assert found.graph_break_count == 1
    torch.manual_seed(2)
    expected = model(**batch).loss
    torch.manual_seed(2)
    torch.testing.assert_close(torch.compile(model, backend="eager")(**batch).loss, expected)
    torch.manual_seed(2)
    torch.testing.assert_close(model(**batch, module_sample=model.draw_modules()).loss, expected, rtol=0, atol=0)


def test_a_sample_of_another_model_or_in_evaluation_is_refused():
    model, batch = made(translation, 0.5)
    for sample in (ModuleSample.draw(0.5, 3), ModuleSample((False,) * 6), [True] * 6):
        with pytest.raises(ValueError, match=r"module_sample=.* does not fit a model of 6 .* in training"):
            model(**batch, module_sample=sample)
    sample = model.draw_modules()
    for name, value in (("regularization_share", 1.0), ("regularization_weight", 0.0)):
        before = getattr(model.config, name)
        setattr(model.config, name, value)
        with pytest.raises(ValueError, match=f"with .*{name}={value}"):
            model(**batch, module_sample=sample)
        setattr(model.config, name, before)
    with pytest.raises(ValueError, match="in evaluation, which takes all of them"):
        model.eval()(**batch, module_sample=sample)


def step_inputs(model, written: int):
    """A step of decoding behind `written` tokens, in a static cache of 12."""
    source, target = random_tokens(2, 9), random_tokens(2, written + 1, seed=1)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in (12, 9)))
    encoded = model.get_encoder()(input_ids=source, attention_mask=mask)
    given = {"encoder_outputs": encoded, "attention_mask": mask, "cache": cache, "use_cache": True}
    model(decoder_input_ids=target[:, :written], **given)
    return {"decoder_input_ids": target[:, written:], **given}


@torch.no_grad()
def test_a_step_of_decoding_with_a_static_cache_is_one_graph_for_all_steps():
    model = tiny_model()
    found = torch._dynamo.explain(model)(**step_inputs(model, 3))
    assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons
    backend = Counting()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    given, twins = step_inputs(model, 3), step_inputs(model, 3)
    for token in random_tokens(4, 2, 1, seed=2):
        expected = model(**{**given, "decoder_input_ids": token}).logits
        torch.testing.assert_close(compiled(**{**twins, "decoder_input_ids": token}).logits, expected)
    assert len(backend.graphs) == 1


@torch.no_grad()
def test_generate_compiles_its_steps_into_one_graph():
    """As it does by itself on a GPU."""
    model, source = tiny_model(), random_tokens(2, 9)
    limits = {"max_new_tokens": 6, "min_new_tokens": 6, "cache_implementation": "static"}
    expected = model.generate(source, **limits)
    config = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    config._compile_all_devices = True
    counters.clear()
    assert torch.equal(model.generate(source, **limits, compile_config=config), expected)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
