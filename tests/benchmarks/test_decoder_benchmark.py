"""Tokens a second beside GPT2LMHeadModel and LlamaForCausalLM: the same models, the same work, and the page of the figures."""

import json

import pytest
import torch


@pytest.fixture
def decoder(program):
    return program("speed.decoder")


@pytest.fixture
def models(program):
    return program("speed.decoder_models")


@pytest.fixture
def build(models):
    """Tiny contenders for a context of 16 tokens."""
    options = {"context": 16, "dtype": torch.float32, "quick": True, "seed": 0}
    return lambda library, *, training=False: models.build(library, training=training, **options)


def test_a_quick_run_times_every_contender_and_makes_a_page(program, decoder, models, tmp_path, monkeypatch):
    output, page = tmp_path / "decoder.json", tmp_path / "DECODER.md"
    peak = {"extra_bytes": 2_345_678, "before_bytes": 1, "queries_by_keys_tensors": ["1 × 2 × 64 × 64 float32"]}
    monkeypatch.setattr(decoder, "run_cell", lambda cell, options: peak)
    assert decoder.main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    cells = result["cells"]
    assert [(cell["task"], cell["library"], cell["dtype"]) for cell in cells] == [
        (task, library, dtype) for task in decoder.TASKS for library in decoder.LIBRARIES for dtype in decoder.DTYPES
    ]
    for cell in cells:
        ours = {models.RELU, models.SOFTMAX} | ({models.UNREGULARIZED} if cell["task"] == "training" else set())
        assert set(cell["times"]) == {*ours, cell["library"]}
        assert set(cell["speedups"][models.RELU]) == {*ours, cell["library"]} - {models.RELU}
        assert cell["tokens"] == {"training": 32, "prefill": 16, "generation": 3}[cell["task"]]
        seconds = cell["times"][models.RELU]["median_ms"] / 1e3
        assert cell["tokens_a_second"][models.RELU] == pytest.approx(cell["tokens"] / seconds)
        assert cell["attn_implementation"][models.RELU] == "fused"
        assert cell["attn_implementation"][models.SOFTMAX] == cell["attn_implementation"][cell["library"]] == "sdpa"
    assert program("speed.decoder_tables").main(["--result", str(output), "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "A quick run" in text and "## generation, bfloat16" in text and "| softmax over LlamaForCausalLM |" in text
    last = cells[-1]["speedups"][models.SOFTMAX][models.LLAMA]
    assert f"| {last['median']:.2f} ({last['p10']:.2f}–{last['p90']:.2f}) |" in text
    assert "| ReLU, L_reg | 2 |" in text and "at 64 tokens: ReLU, L_reg: 1 × 2 × 64 × 64 float32." in text


def test_the_plan_has_every_context_once(decoder):
    cells = list(decoder.all_cells())
    assert len(cells) == len(set(cells)) == 3 * 2 * 2 * 3
    assert {cell.context * (decoder.BATCH_TOKENS // cell.context) for cell in cells} == {decoder.BATCH_TOKENS}
    memory = list(decoder.memory_cells())
    assert {cell["length"] for cell in memory} == {1024, 16384} and len({cell["contender"] for cell in memory}) == 3


@pytest.mark.parametrize("library", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_softmax_has_the_logits_of_the_library_s_model_and_relu_its_weights(models, build, library):
    contenders = build(library)
    ids = torch.randint(3, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = {name: model(ids).logits for name, model in contenders.items()}
    assert list(logits) == [models.RELU, models.SOFTMAX, library]
    torch.testing.assert_close(logits[models.SOFTMAX], logits[library], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(logits[models.RELU], logits[library], atol=1e-3)
    relu, softmax = (contenders[name] for name in (models.RELU, models.SOFTMAX))
    for one, two in zip(relu.parameters(), softmax.parameters(), strict=True):
        assert torch.equal(one, two) and one.data_ptr() != two.data_ptr()
    assert relu.config.attention_gamma == pytest.approx(32**0.5)


def test_only_the_first_trains_with_the_regulariser_and_none_of_ours_holds_logits(models, build):
    ids = torch.randint(3, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    found = {name: model(input_ids=ids, labels=ids) for name, model in build(models.GPT2, training=True).items()}
    assert [output.logits is None for output in found.values()] == [True, True, True, False]
    terms = {name: output.regularization for name, output in found.items() if name != models.GPT2}
    assert [name for name, term in terms.items() if term is not None] == [models.RELU]
    torch.testing.assert_close(found[models.SOFTMAX].loss, found[models.GPT2].loss)


@pytest.mark.parametrize("library", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_step_of_generation_begins_behind_the_prompt_each_time(decoder, build, library):
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, 60, (1, 9), generator=generator)
    for model in build(library).values():
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(generator=generator)
            model.get_input_embeddings().weight.mul_(
                0.02
            )  # which are the output's, too: else each token follows itself
        expected = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, min_new_tokens=5, do_sample=False
        )
        assert len(set(expected[0, 9:].tolist())) > 1
        step, passes = decoder.decoding_step(model, prompt, 5), []
        model.register_forward_hook(lambda *given, passes=passes: passes.append(given[2].logits.shape[1]))
        for _ in range(3):
            assert torch.equal(step(), expected)
        assert passes == [1] * 15, "one token a pass, and no prompt"


def test_the_memory_of_a_decoder_has_the_regulariser_and_no_queries_by_keys(program):
    step = program("memory.peak_step")
    for contender in step.DECODER_CONTENDERS:
        with step.QueriesByKeys(600) as seen:
            step.decoder_step(contender, 0)(600)()
        assert not seen.shapes, contender
    assert program("speed.decoder").MEMORY_LENGTHS[0] <= step.LONGEST_INSPECTED
    assert program("speed.decoder").MEMORY_LENGTHS[0] not in (
        step.DECODER["hidden_size"],
        4 * step.DECODER["hidden_size"],
    )
    weights = [fields.get("regularization_weight") for fields in step.DECODER_CONTENDERS.values()]
    assert weights == [0.01, 0.0, None]
