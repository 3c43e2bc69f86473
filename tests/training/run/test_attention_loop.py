"""A run records which loop computed its attention, and goes on with the same one where it can be had."""

import pytest
import torch

from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.modeling_reluformer.fused.compiled.building import CompiledAttentionError
from reluformer.training.run.attention_loop import attention_loop
from reluformer.training.run.checkpoints import begin_checkpoint, read_manifest, seal_checkpoint

from ..tiny_run import tiny_model, tiny_trainer

CPU = torch.device("cpu")


@pytest.fixture(params=["compiled", "python"])
def at_hand(request, monkeypatch):
    """The loop that a process with nothing set would use, without a compilation."""
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setattr(library, "_stage", library._SETTLED)
    monkeypatch.setattr(library, "_operators", object() if request.param == "compiled" else None)
    return request.param


@pytest.fixture
def checkpoint(tmp_path):
    """A function that makes a checkpoint of a run whose attention a loop computed."""

    def make(loop):
        begin_checkpoint(tmp_path / "checkpoint-2")
        seal_checkpoint(tmp_path / "checkpoint-2", processes=1, attention_loop=loop)
        return tmp_path / "checkpoint-2"

    return make


@pytest.mark.parametrize("before", ["compiled", "python", None])
def test_a_run_keeps_its_loop_where_it_can_and_says_so(at_hand, checkpoint, caplog, before):
    folder = checkpoint(before)
    with attention_loop(tiny_model(), CPU, folder, tell=True) as now:
        assert library.loop_name() == now
    assert now == ("python" if before == "python" else at_hand)
    assert library.loop_name() == at_hand
    said = [record.getMessage() for record in caplog.records]
    if before == "python":
        assert said == [
            f"{folder}: was trained with the Python loop of the attention, and goes on with it; "
            "RELUFORMER_COMPILED=1 changes to the compiled one"
        ]
    elif before == "compiled" and at_hand == "python":
        assert said == [
            f"{folder}: was trained with the compiled loop of the attention, and goes on with the Python one; "
            "results differ by rounding"
        ]
    else:
        assert said == []


def test_the_variable_decides_against_the_record(checkpoint, monkeypatch, caplog):
    monkeypatch.setenv(library.VARIABLE, "1")
    monkeypatch.setattr(library, "_stage", library._SETTLED)
    monkeypatch.setattr(library, "_operators", object())
    with attention_loop(tiny_model(), CPU, checkpoint("python"), tell=True) as now:
        assert now == library.loop_name() == "compiled"
    assert "with the Python loop of the attention, and goes on with the compiled one" in caplog.text
    monkeypatch.setenv(library.VARIABLE, "yes")
    library.reset()
    with (
        pytest.raises(CompiledAttentionError, match="'yes' is unknown"),
        attention_loop(tiny_model(), CPU, None, tell=True),
    ):
        pass


def test_one_process_tells(at_hand, checkpoint, caplog):
    with attention_loop(tiny_model(), CPU, checkpoint("python"), tell=False):
        pass
    assert not caplog.records


@pytest.mark.parametrize(("device", "implementation"), [("meta", "fused"), ("cpu", "eager"), ("cpu", "sdpa")])
def test_where_neither_loop_computes_nothing_is_built_and_nothing_recorded(monkeypatch, device, implementation):
    monkeypatch.setattr(library, "library", None)
    model = tiny_model()
    model.config._attn_implementation = implementation
    with attention_loop(model, torch.device(device), None, tell=True) as now:
        assert now is None


@pytest.mark.parametrize(("implementation", "loop"), [("fused", "python"), ("eager", None)])
def test_checkpoints_hold_the_loop(tmp_path, monkeypatch, implementation, loop):
    monkeypatch.setattr(library, "_stage", library._SETTLED)
    monkeypatch.setattr(library, "_operators", None)
    model = tiny_model()
    model.config._attn_implementation = implementation
    tiny_trainer(tmp_path, model, max_steps=2, save_strategy="steps", save_steps=2).train()
    assert read_manifest(tmp_path / "checkpoint-2")["attention_loop"] == loop


def test_a_training_that_goes_on_keeps_the_loop_of_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setattr(library, "_stage", library._SETTLED)
    monkeypatch.setattr(library, "_operators", None)
    options = {"save_strategy": "steps", "save_steps": 2}
    tiny_trainer(tmp_path, max_steps=2, **options).train()
    monkeypatch.setattr(library, "_operators", object())  # of a compiler that was installed since
    trainer = tiny_trainer(tmp_path, max_steps=4, **options)
    seen, compute_loss = [], trainer.compute_loss

    def observed(*given, **options):
        seen.append(library.loop_name())
        return compute_loss(*given, **options)

    monkeypatch.setattr(trainer, "compute_loss", observed)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert seen == ["python", "python"]
    assert (trainer.attention_loop, library.loop_name()) == ("python", "compiled")
    assert read_manifest(tmp_path / "checkpoint-4")["attention_loop"] == "python"
