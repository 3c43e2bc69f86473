"""Images a second beside ViTForImageClassification: the same shape, the same work, and the page of the figures."""

import json

import pytest
import torch


@pytest.fixture
def vision(program):
    return program("speed.vision")


def test_a_quick_run_times_every_contender_and_makes_a_page(program, vision, tmp_path):
    output, page, threads = tmp_path / "vision.json", tmp_path / "VISION.md", torch.get_num_threads()
    try:
        assert vision.main(["--quick", "--output", str(output)]) == 0
    finally:
        torch.set_num_threads(threads)
    result = json.loads(output.read_text(encoding="utf-8"))
    cells = result["cells"]
    assert [(cell["task"], cell["dtype"], cell["threads"]) for cell in cells] == [
        (task, dtype, count) for task in vision.TASKS for dtype in vision.DTYPES for count in (1, 2)
    ]
    for cell in cells:
        assert cell["attn_implementation"] == {vision.RELU: "fused", vision.SOFTMAX: "sdpa", vision.VIT: "sdpa"}
        assert cell["images_a_second"][vision.VIT] == pytest.approx(2e3 / cell["times"][vision.VIT]["median_ms"])
        assert set(cell["speedups"][vision.RELU]) == {vision.SOFTMAX, vision.VIT}
    assert program("speed.vision_tables").main(["--result", str(output), "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "A quick run" in text and "## inference, bfloat16" in text and "ReLU over ViTForImageClassification" in text
    last = cells[-1]["speedups"][vision.RELU][vision.VIT]
    assert f"{last['median']:.2f} ({last['p10']:.2f}–{last['p90']:.2f})" in text.splitlines()[-1]


@pytest.mark.parametrize("length", [49, 196, 784])
def test_the_contenders_have_the_shape_of_the_recipe(vision, length):
    models = {name: vision.build(name, length, False, 0) for name in (*vision.PRESETS, vision.VIT)}
    config = models[vision.RELU].config
    assert config.patch_grid[0] * config.patch_grid[1] == length and config.num_channels == 3
    assert (config.attention_scaling, config.attention_alpha, config.attention_qk_norm) == ("length", 1.0, True)
    sizes = {name: vision.trained_parameters(model) for name, model in models.items()}
    assert sizes[vision.RELU] == sizes[vision.SOFTMAX]
    heads = config.num_hidden_layers * 4 * config.hidden_size // config.num_attention_heads
    assert sizes[vision.VIT] == sizes[vision.RELU] - heads + 2 * config.hidden_size, "CLS for the norms of the heads"


def test_a_batch_has_as_many_tokens_at_every_length(vision):
    cells = list(vision.all_cells())
    assert len(cells) == len(set(cells)) == 2 * 2 * 3 * 2
    assert {cell.length * (vision.BATCH_TOKENS // cell.length) for cell in cells} == {128 * 49}


def test_an_inference_step_gives_the_logits_without_a_graph(vision):
    model = vision.build(vision.RELU, 49, True, 0)
    batch = vision.random_batch(model.config, 2, 0)
    logits = vision.inference_step(model, {"pixel_values": batch["pixel_values"]}, "float32")()
    assert logits.shape == (2, 10) and not logits.requires_grad and not model.training
    assert batch["pixel_values"].abs().max() <= 1
