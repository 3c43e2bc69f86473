"""One process and two: the same update, what is sent, and an estimate that follows from its assumptions."""

import json

import pytest


@pytest.fixture
def estimate(program):
    return program("scaling.estimate")


@pytest.fixture
def tables(program):
    return program("scaling.tables")


def test_a_quick_run_times_all_contenders_and_counts_what_is_sent(program, tables, tmp_path):
    output = tmp_path / "scaling.json"
    assert program("scaling.processes").main(["--quick", "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    (cell,) = result["cells"]
    assert list(cell["seconds_per_update"]) == list(program("scaling.processes").CONTENDERS)
    assert len(cell["batches"]) == program("scaling.step").MICRO_BATCHES
    assert cell["target_tokens_per_update"] == sum(batch["target_tokens"] for batch in cell["batches"])
    sent = cell["all_reduce"]
    assert sent["bytes"] == 4 * cell["parameters"] == sum(bucket["bytes"] for bucket in sent["buckets"])
    assert sent["share_of_the_update_alone"]["median"] > 0
    page = tables.render(result)
    assert f"{sent['bytes']:,}" in page and "its figures mean nothing" in page


def test_without_a_result_the_page_says_so_and_estimates_all_the_same(tables):
    page = tables.render(None)
    assert "Not measured: `make scaling` measures it." in page
    assert page.count("| 8 × 8 |") >= 8


def test_a_ring_sends_nothing_alone_and_nearly_twice_the_bytes_among_many(estimate):
    assert estimate.ring_bytes(1, 100.0) == 0
    assert estimate.ring_bytes(2, 100.0) == 100.0
    assert estimate.ring_bytes(8, 100.0) == 175.0
    assert estimate.ring_bytes(10**6, 100.0) == pytest.approx(200.0, rel=1e-5)


def test_the_embedding_is_never_hidden_and_the_rest_from_a_length_on(estimate):
    gradients = estimate.Gradients(parameters=60, embedding=16)
    system = estimate.System(1, 8, estimate.Link("a slow one", 1000.0, "nowhere"))
    late = 1.75 * 4 * 16 / (0.7 * 1000)
    early = 1.75 * 4 * 44 / (0.7 * 1000)
    assert estimate.exposed_seconds(system, gradients, 0.0) == pytest.approx(late + early)
    enough = estimate.hidden_from(system, gradients)
    assert estimate.exposed_seconds(system, gradients, enough) == pytest.approx(late)
    assert estimate.exposed_seconds(system, gradients, 0.9 * enough) > late
    assert estimate.exposed_seconds(system, gradients, 9 * enough) == pytest.approx(late)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_length_of_a_batch_that_is_named_is_just_enough(estimate, accumulation):
    gradients = estimate.Gradients(60_000_000, 16_000_000)
    for system in estimate.systems():
        shortest = estimate.batch_seconds_for(system, gradients, 0.95, accumulation)
        assert estimate.efficiency(system, gradients, shortest, accumulation) == pytest.approx(0.95, rel=1e-6)
        assert estimate.efficiency(system, gradients, 0.9 * shortest, accumulation) < 0.95


def test_the_model_of_the_recipe_is_counted_without_its_numbers(tables):
    from reluformer.configuration.recipe_parser import load_recipe

    recipe = load_recipe(tables.RECIPE)
    gradients = tables.gradients_of(recipe)
    assert gradients.embedding == recipe.tokenizer.vocab_size * recipe.model["d_model"]
    # six layers each of attention and feed-forward blocks, with their biases and norms beside
    blocks = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048)
    assert gradients.parameters == pytest.approx(gradients.embedding + blocks, rel=0.01)
