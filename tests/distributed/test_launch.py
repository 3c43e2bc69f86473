"""How processes are started: what fails with one line, and the command lines that the README gives."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file

import reluformer.configuration
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.training import training as training_module
from reluformer.training.cli import main
from reluformer.training.errors import UserError
from reluformer.training.launch import check_environment, check_launch, is_sharded

ACCELERATE_FILES = Path(reluformer.configuration.__file__).parent / "accelerate"
LAUNCHER_VARIABLES = (
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_CPU", "FSDP_STATE_DICT_TYPE",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def recipe_file(tmp_path):
    """Path of a recipe that trains in a second, on the generated corpus."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    recipe = {
        "name": "tiny",
        "expected_world_size": 2,
        "data": {"source_language": "de", "target_language": "en", "max_length": 64},
        "tokenizer": {"vocab_size": 330},
        "model": {**sizes, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 160},
        "batching": {"tokens_per_batch": 400},
        "evaluation": {"num_beams": 1, "at_most": 3, "samples": 0, "splits": []},
        "averaging": {"last_checkpoints": 2},
        "training": {
            "output_dir": str(tmp_path / "run"),
            "max_steps": 4,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 2,
            "use_cpu": True,
            "disable_tqdm": True,
            "report_to": "none",
        },
    }
    recipe["data"]["demo"] = {"train": 60, "validation": 5, "test": 1}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def test_one_process_where_several_were_asked_for_is_refused(environment):
    check_environment(None)
    environment.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match=r"MASTER_ADDR is '127\.0\.0\.1' but WORLD_SIZE is not set"):
        check_environment(None)
    environment.setenv("WORLD_SIZE", "2")
    check_environment(None)
    check_environment(2)


def test_restarts_that_share_a_store_are_refused(environment):
    environment.setenv("WORLD_SIZE", "2")
    environment.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    environment.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max_restarts 3"):
        check_environment(None)
    environment.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    check_environment(None)


@pytest.mark.parametrize(("variable", "started"), [(None, 1), ("WORLD_SIZE", 3), ("OMPI_COMM_WORLD_SIZE", 4)])
def test_another_number_of_processes_than_the_recipe_expects_is_refused(environment, variable, started):
    if variable is not None:
        environment.setenv(variable, str(started))
    with pytest.raises(UserError, match=rf"expects 2 processes, {started} (was|were) started"):
        check_environment(2)


def test_the_command_line_fails_with_one_line_before_anything_is_written(recipe_file, tmp_path, capsys):
    assert main(["train", "--config", str(recipe_file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "expected_world_size: the recipe expects 2 processes, 1 was started" in lines[0]
    assert main(["train", "--config", str(recipe_file), "--expected_world_size", "0"]) == 2
    assert not (tmp_path / "run").exists()


def test_processes_that_are_not_connected_are_refused(recipe_file, environment):
    """torchrun on a machine without GPUs, and no use_cpu: each process would train by itself, into the same folder."""
    recipe = load_recipe(recipe_file)
    environment.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes were started, but the Trainer found no device"):
        check_launch(recipe)


@pytest.mark.parametrize("asked_by", ["recipe", "accelerate file"])
def test_sharding_on_a_cpu_is_refused(recipe_file, environment, monkeypatch, asked_by):
    recipe = load_recipe(recipe_file)
    recipe.expected_world_size = None
    assert not is_sharded(recipe)
    if asked_by == "recipe":
        recipe.training.fsdp = True
    else:
        environment.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setattr(training_module, "load_split", lambda *_: pytest.fail("the corpus was read"))
    with pytest.raises(UserError, match=r"FSDP was asked for .* but this run is on a CPU"):
        training_module.train(recipe)


@pytest.mark.parametrize(
    ("variables", "changes", "named"),
    [
        ({}, {}, "training.fsdp: needs processes"),
        ({"WORLD_SIZE": "1", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, {}, "set FULL_STATE_DICT"),
        ({"WORLD_SIZE": "1"}, {}, r"averaging\.last_checkpoints"),
        ({"WORLD_SIZE": "1"}, {"last_checkpoints": 0}, r"evaluation\.at_most"),
        ({"WORLD_SIZE": "1"}, {"last_checkpoints": 0, "at_most": 0}, None),
    ],
)
def test_what_does_not_go_with_sharding_is_refused(recipe_file, environment, variables, changes, named):
    import torch

    recipe = load_recipe(recipe_file)
    recipe.expected_world_size = None
    recipe.training.fsdp = True
    environment.setattr(type(recipe.training), "device", torch.device("cuda"))
    for name, value in variables.items():
        environment.setenv(name, value)
    for name, value in changes.items():
        setattr(recipe.averaging if name == "last_checkpoints" else recipe.evaluation, name, value)
    if named is None:
        check_launch(recipe)
    else:
        with pytest.raises(UserError, match=named):
            check_launch(recipe)


def test_the_accelerate_files_are_read_by_accelerate_and_start_what_they_say():
    files = sorted(ACCELERATE_FILES.glob("*.yaml"))
    assert [path.stem for path in files] == ["cpu_two_processes", "ddp", "fsdp2", "two_nodes"]
    for path in files:
        config = load_config_from_file(str(path))
        assert config.num_processes == 2
        assert config.distributed_type.value in ("MULTI_GPU", "FSDP")  # with others accelerate starts one process
    config = load_config_from_file(str(ACCELERATE_FILES / "fsdp2.yaml"))
    assert config.fsdp_config["fsdp_version"] == 2
    assert config.fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"


def launch(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )


def test_accelerate_launch_trains_in_two_processes(recipe_file, tmp_path):
    """With the file of the package; accelerate starts them with torchrun's own launcher."""
    command = ["accelerate.commands.launch", "--config_file", str(ACCELERATE_FILES / "cpu_two_processes.yaml")]
    result = launch([*command, "-m", "reluformer", "train", "--config", str(recipe_file)], tmp_path)
    assert result.returncode == 0, result.stderr[-8000:]
    assert result.stdout.count("model: ") == 1
    folder = tmp_path / "run"
    record = yaml.safe_load((folder / "training_record.json").read_text(encoding="utf-8"))
    assert (record["processes"], record["updates"]) == (2, 4)
    assert record["averaged_checkpoints"] == ["checkpoint-2", "checkpoint-4"]
    assert load_file(folder / "model.safetensors")
    log = yaml.safe_load((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert any("eval_bleu" in entry for entry in log)


def test_the_single_process_of_accelerate_without_a_file_fails_with_one_line(recipe_file, tmp_path):
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = str(any_port.getsockname()[1])
    command = ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--main_process_port", port, "--quiet"]
    result = launch([*command, "-m", "reluformer", "train", "--config", str(recipe_file)], tmp_path)
    assert result.returncode != 0
    errors = [line for line in result.stderr.splitlines() if line.startswith("reluformer: error: ")]
    assert len(errors) == 1
    assert "MASTER_ADDR is '127.0.0.1' but WORLD_SIZE is not set" in errors[0]
    assert "Traceback" not in result.stderr
