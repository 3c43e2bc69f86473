"""A study trains what is missing, goes on with what was interrupted, leaves alone what is finished, and loses
nothing."""

import json
import os
import shutil
import signal
import threading
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.studies import __main__ as studies_program
from benchmarks.studies import running
from benchmarks.studies.parser import ROWS_FILE, STUDIES_FOLDER, load_rows, load_study
from benchmarks.studies.running import Runner, tasks_by_study
from benchmarks.studies.tasks import Places, Task, read_result, state_of, training_seconds
from reluformer.configuration.errors import UserError
from reluformer.training.trainer import ReLUFormerTrainer

STUDY = {
    "title": "a study",
    "position": 1,
    "source": "nowhere",
    "rows": [{"row": name, "label": name} for name in ("softmax", "relu", "same")],
    "figures": {"bleu": {"label": "BLEU", "path": "bleu.score"}},
    "seeds": {"smoke": [1, 2]},
}


class Studies:
    """Studies of the smoke size, with two rows under three names, and one that starts from another."""

    def __init__(self, folder, started):
        self.folder, self.studies = folder, folder / "studies"
        self.said, self.started = [], started
        (self.studies / "bases").mkdir(parents=True)
        shutil.copy(STUDIES_FOLDER / "bases" / "sentences.smoke.yaml", self.studies / "bases" / "sentences.yaml")
        relu, softmax = (
            {"layers": ["sentences"], "recipe": {"model": {"preset": p}}} for p in ("reluformer", "vanilla")
        )
        after = {**relu, "recipe": {**relu["recipe"], "training": {"max_steps": 2}}, "starts_from": {"smoke": "relu"}}
        self.write({"softmax": softmax, "relu": relu, "same": softmax, "after": after}, STUDY)

    def write(self, rows, study=None):
        (self.studies / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
        if study is not None:
            (self.studies / "one.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")

    def change(self, name, **recipe):
        rows = yaml.safe_load((self.studies / ROWS_FILE).read_text(encoding="utf-8"))
        rows[name]["recipe"] |= recipe
        self.write(rows)

    def tasks(self, **options):
        places = Places.of("smoke", self.folder / "runs", self.folder / "results")
        one = {"one": load_study("one", self.studies)}
        return tasks_by_study(one, load_rows("smoke", self.studies), places, **options)["one"]

    def task(self, name):
        places = Places.of("smoke", self.folder / "runs", self.folder / "results")
        return Task(load_rows("smoke", self.studies).rows[name], 1, places)

    def run(self, *tasks):
        return Runner("smoke", say=self.said.append).run(tasks)


@pytest.fixture
def studies(tmp_path, started):
    return Studies(tmp_path, started)


def test_a_row_that_two_names_share_is_one_task_and_seeds_come_one_after_the_other(studies):
    names = [task.name for task in studies.tasks()]
    assert names == ["softmax-seed1", "relu-seed1", "softmax-seed2", "relu-seed2"]
    assert [task.name for task in studies.tasks(only=["same"], seeds=[7])] == ["softmax-seed7"]
    with pytest.raises(UserError, match="--only: no row 'vanila' at size smoke; choose of softmax, relu, same"):
        studies.tasks(only=["vanila"])
    rows = yaml.safe_load((studies.studies / ROWS_FILE).read_text(encoding="utf-8"))
    rows["last"] = {**rows["after"], "starts_from": {"smoke": "after"}}
    studies.write(rows, {**STUDY, "rows": [{"row": "last", "label": "last"}]})
    assert [task.name for task in studies.tasks(only=["relu"], seeds=[1])] == ["relu-seed1"], "two steps down"


def test_missing_rows_are_trained_and_finished_ones_left_alone(studies):
    (first,) = studies.tasks(only=["softmax"], seeds=[1])
    assert studies.run(first) == [] and studies.started == [("softmax", "train")]
    result = read_result(first)
    assert (result["row"], result["seed"], result["key"]) == ("softmax", 1, first.row.key)
    assert result["command"] == "python -m benchmarks.studies --size smoke --only softmax --seed 1"
    assert result["training"]["updates"] == 4 and result["training_seconds"] > 0
    assert {"git_commit", "machine", "versions"} <= result["training"].keys()
    assert result["bleu"]["signature"] and result["recipe"]["training"]["seed"] == 1
    assert "BLEU" in studies.said[-1]
    studies.run(first)
    assert [name for name, _ in studies.started] == ["softmax"]
    assert any("finished already" in line for line in studies.said)


@pytest.mark.slow
def test_what_was_lost_is_made_up_for_without_training(studies):
    task = studies.task("relu")
    studies.run(task)
    task.result_file.unlink()
    (task.run_folder / "evaluation.test.json").unlink()
    studies.run(task)
    assert studies.started[1:] == [("relu", "evaluate")] and state_of(task) == "finished"


@pytest.mark.slow
def test_what_a_row_starts_from_is_trained_first_and_again_where_its_model_is_gone(studies):
    after = studies.task("after")
    assert studies.run(after, after.start) == []
    assert [name for name, _ in studies.started] == ["relu", "after"]
    result = read_result(after)
    assert (result["start"]["row"], result["start"]["updates"], result["training"]["updates"]) == ("relu", 4, 2)
    shutil.rmtree(after.start.run_folder)
    studies.run(after)
    assert len(studies.started) == 2, "a row that is over needs nothing to start from"
    after.result_file.unlink()
    shutil.rmtree(after.run_folder)
    studies.run(after)
    assert any("will be replaced" in line for line in studies.said)
    assert [name for name, _ in studies.started[2:]] == ["relu", "after"]


@pytest.mark.slow
def test_an_interrupted_row_goes_on_at_its_checkpoint_and_its_failure_costs_no_other(studies, monkeypatch):
    broken, other = studies.tasks(seeds=[1])
    original = ReLUFormerTrainer.log

    def log_until_killed(self, logs, start_time=None):
        original(self, logs, start_time)
        if self.state.global_step == 4 and "softmax" in self.args.output_dir:
            raise UserError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ReLUFormerTrainer, "log", log_until_killed)
        failures = studies.run(broken, other)
    assert len(failures) == 1 and failures[0].startswith("softmax-seed1: exit status 2")
    assert (state_of(broken), state_of(other)) == ("begun", "finished")
    assert studies.run(broken, other) == []
    assert read_result(broken)["training"]["resumed_from"].endswith("checkpoint-2")
    assert any("goes on" in line for line in studies.said)


def test_a_row_that_diverges_is_a_result(studies):
    studies.change("relu", training={"learning_rate": 1e30, "warmup_steps": 0})
    task = studies.task("relu")
    assert studies.run(task) == [] and "does not converge: the loss is not finite" in studies.said[-1]
    result = read_result(task)
    assert result["training"]["diverged"]["step"] >= 1 and result["bleu"] is None


def test_seconds_are_those_of_updates_and_validations():
    log = [
        {"step": 10, "images_per_update": 128.0, "images_per_second": 64.0, "cpu_seconds": 19.0},
        {"step": 15, "target_tokens_per_update": 100.0, "target_tokens_per_second": 100.0, "cpu_seconds": 4.5},
        {"step": 15, "eval_runtime": 3.0},
        {"step": 15, "train_runtime": 999.0},  # of the last part alone, if a run was interrupted
    ]
    assert training_seconds(log) == 20.0 + 5.0 + 3.0


@pytest.mark.slow
def test_a_process_of_its_own_writes_a_log(tmp_path):
    log = tmp_path / "row.log"
    log.write_text("earlier\n", encoding="utf-8")
    process = running.start(["reluformer", "train", "nowhere"], log)
    assert process.wait() == 2
    text = log.read_text(encoding="utf-8")
    assert text.startswith("earlier\n") and "$ OMP_NUM_THREADS=1 " in text
    assert "python -m reluformer train nowhere\nreluformer: error" in text
    assert running.last_line(log).startswith("reluformer: error: --config: no file 'nowhere'")
    log.write_text(" 1%| 20/2400 [00:20<40:00]\r 12%| 300/2400 [05:00<35:00]\r\n", encoding="utf-8")
    assert running.last_line(log) == "12%| 300/2400 [05:00<35:00]"


def test_sigterm_ends_the_rows_of_a_study_with_it(tmp_path, monkeypatch):
    ended = threading.Event()

    def wait():
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(30)

    process = SimpleNamespace(wait=wait, terminate=ended.set, returncode=-signal.SIGTERM)
    monkeypatch.setattr(running, "start", lambda command, log: started.append(command) or process)
    started, places = [], ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main(["--study", "t3", "--size", "smoke", *places]) == 143
    assert len(started) == 1 and ended.is_set() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--study", "t99"], "no study 't99'"),
        (["--study", "t2", "--only", "vanila"], "no row 'vanila'"),
        (["--only", "vanilla", "--only", "vanila"], "no row 'vanila'"),
        (["--size", "huge"], "huge"),
        (["--report", "x.md", "--study", "t2"], "--report"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, named, capsys, tmp_path):
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main([*arguments, *places]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_the_list_says_how_far_every_row_is(capsys, tmp_path):
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main(["--list", *places]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:6] == ["t6", "0", "of", "8", "rows", "Table"] for line in lines)
    assert studies_program.main(["--list", "--study", "t2", "--only", "vanilla", "--seed", "7", *places]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  vanilla-seed7: missing"]


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_every_study_of_the_smoke_size_can_be_reported(capsys, tmp_path):
    """Each row runs, and gives every figure that its studies show."""
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--size", "smoke"]
    assert studies_program.main(places) == 0
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "results" / "smoke").glob("*.json")]
    assert len({result["key"] for result in results}) == len(results)
    report = tmp_path / "reproduction.md"
    assert studies_program.main(["--report", str(report), *places]) == 0
    text = report.read_text(encoding="utf-8")
    assert "not run" not in text and "was not measured" not in text, "a figure that no row gives"
