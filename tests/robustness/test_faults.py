"""Every fault of a training: what is printed, the exit status, what is kept, and how the same command goes on."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reluformer.training.run.checkpoints import checkpoint_folders, fault_of

from . import provoked_faults
from .fault_cases import GROUPS
from .fault_table import KILLS, TABLE, fault_table
from .provoked_faults import CONSTANT, RUN, Scene, write_recipe

FAULTS = [fault for faults in GROUPS.values() for fault in faults]


@pytest.fixture
def scene(monkeypatch, capfd, caplog, tmp_path):
    write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield Scene(monkeypatch, capfd, caplog, tmp_path)
    if os.path.ismount(tmp_path / "runs"):
        subprocess.run(["umount", str(tmp_path / "runs")], check=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes that are killed: with more, sums have another order and weights other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, one_thread):
    """Weights of a run that nothing has disturbed."""
    from reluformer.commands.train import train_and_document as train
    from reluformer.configuration.recipe_parser import load_recipe

    folder = tmp_path_factory.mktemp("undisturbed")
    write_recipe(folder)
    recipe = load_recipe(folder / "tiny.yaml")
    recipe.training.output_dir = str(folder / "run")
    return load_file(train(recipe) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.given)
def test_a_fault_is_told_and_costs_no_more_than_it_must(fault, scene, undisturbed):
    outcome = getattr(provoked_faults, fault.provoke)(scene)
    assert fault.outcome == f"exit {outcome.status}", outcome.text[-4000:]
    assert fault.is_said_in(outcome.text), outcome.text[-4000:]
    if fault.outcome not in ("exit 0", "exit 1"):  # a launcher tells more, of its own
        own = [line for line in outcome.text.splitlines() if line.startswith("reluformer: ")]
        assert len(own) == bool(fault.says), outcome.text
        assert "Traceback" not in outcome.text
    for name in fault.kept.replace(";", ",").split(","):
        if name.strip().startswith("checkpoint-") and " " not in name.strip():
            assert fault_of(RUN / name.strip()) is None, name
    if fault.again:
        in_one_process = ["--training.gradient_accumulation_steps", "4", "--training.max_steps", "10", *CONSTANT]
        again = scene.run(*in_one_process if fault.several_processes else [])
        assert fault.is_said_again_in(again.text), again.text[-4000:]
    if fault.same_end:
        final = load_file(RUN / "model.safetensors")
        assert [name for name in undisturbed if not torch.equal(final[name], undisturbed[name])] == []
        assert [folder.name for folder in checkpoint_folders(RUN)] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_the_table_is_of_these_faults():
    assert TABLE.read_text(encoding="utf-8") == fault_table(), "run `make fault-table`"
    assert KILLS.is_file()
    root = TABLE.parents[1]
    assert all((root / fault.test).is_file() for fault in FAULTS)
    assert all(callable(getattr(provoked_faults, fault.provoke)) for fault in FAULTS)
    assert len({fault.provoke for fault in FAULTS}) == len(FAULTS)


def test_a_case_without_its_line_would_fail():
    fault = FAULTS[2]
    assert fault.is_said_in(f"something\n{fault.says}\n")
    assert not fault.is_said_in(fault.says.replace("update 3", "update 4"))
    assert Path(fault.test).suffix == ".py"
