"""One process and several compute the same: training, evaluation, sharded parameters, tensor parallelism."""

import json

import pytest
import torch

from .jobs import HAS_TENSOR_PARALLELISM, UPDATES


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_as_many_batches_in_more_processes_train_the_same_model(jobs, several):
    logs = [read(jobs / f"train-{world}.json")["log"] for world in (1, several)]
    losses = [[entry["loss"] for entry in log if "loss" in entry] for log in logs]
    assert len(losses[0]) == UPDATES
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)
    for name in ("cross_entropy", "regularization", "target_tokens_per_update"):
        values = [[entry[name] for entry in log if "loss" in entry] for log in logs]
        assert values[1] == pytest.approx(values[0], rel=1e-4), name
    expected = torch.load(jobs / "parameters-1-0.pt")
    for rank in range(several):
        found = torch.load(jobs / f"parameters-{several}-{rank}.pt")
        assert max((found[name] - expected[name]).abs().max().item() for name in expected) < 2e-5


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_goes_on_in_another_number_of_processes(jobs, processes):
    """Half of the updates in two processes and half in one, or the other way round, are those of a run in one."""
    expected = torch.load(jobs / "parameters-1-0.pt")
    for rank in range(processes):
        found = torch.load(jobs / f"parameters-go-on-{processes}-{rank}.pt")
        assert max((found[name] - expected[name]).abs().max().item() for name in expected) < 2e-5


def test_the_loss_of_an_evaluation_counts_each_pair_once(jobs, several):
    one, more = (read(jobs / f"train-{world}.json")["evaluation"] for world in (1, several))
    for name in ("eval_loss", "eval_cross_entropy", "eval_regularization", "eval_attention_entropy"):
        assert more[name] == pytest.approx(one[name], rel=1e-4), name


def test_scores_of_translations_are_the_same_in_two_processes(jobs):
    one, two = (read(jobs / f"translate-{world}.json")["scores"] for world in (1, 2))
    assert one == two and all(scores["exact_match"] > 0 for scores in one)


# These compare within the job; its failure is one of the fixture.


def test_processes_with_a_share_of_the_regulariser_have_the_gradients_of_one(jobs):
    assert (jobs / "sample-2.done").exists()


def test_a_sharded_model_has_the_gradients_of_a_whole_one(jobs):
    assert (jobs / "shard-2.done").exists()


@pytest.mark.skipif(not HAS_TENSOR_PARALLELISM, reason="needs transformers 5.23")
def test_a_tensor_parallel_model_computes_the_same_with_half_of_the_rows(jobs):
    assert (jobs / "tensor_parallel-2.done").exists()
