"""A study trains what is missing, goes on with what was interrupted, leaves alone what is finished, and loses nothing."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import dataclass

import pytest
import yaml
from safetensors.torch import load_file

from benchmarks.studies import __main__ as studies_program
from benchmarks.studies import process as study_process
from benchmarks.studies import running as studies
from benchmarks.studies import training as row_training
from benchmarks.studies.collection import training_seconds
from benchmarks.studies.parser import ROWS_FILE, STUDIES_FOLDER, load_rows, load_study
from benchmarks.studies.running import run_tasks, tasks_by_study
from benchmarks.studies.tasks import Places, Task, is_stale, read_result, state_of
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training.trainer import ReLUFormerTrainer

STUDY = {
    "title": "a study",
    "position": 1,
    "source": "nowhere",
    "rows": [
        {"row": "softmax", "label": "softmax"},
        {"row": "relu", "label": "ReLU"},
        {"row": "same", "label": "again"},
    ],
    "figures": {"bleu": {"label": "BLEU", "path": "bleu.score"}},
    "seeds": {"smoke": [1, 2]},
}


@dataclass
class Done:
    """A process that is over."""

    exitcode: int

    def is_alive(self):
        return False


@pytest.fixture
def folder(tmp_path):
    """Studies of the smoke size, with two rows under three names."""
    (tmp_path / "studies" / "bases").mkdir(parents=True)
    base = (STUDIES_FOLDER / "bases" / "sentences.smoke.yaml").read_text(encoding="utf-8")
    (tmp_path / "studies" / "bases" / "sentences.yaml").write_text(base, encoding="utf-8")
    rows = {
        "softmax": {"layers": ["sentences"], "recipe": {"model": {"preset": "vanilla"}}},
        "relu": {"layers": ["sentences"], "recipe": {"model": {"preset": "reluformer"}}},
        "same": {"layers": ["sentences"], "recipe": {"model": {"preset": "vanilla"}}},
        "after": {
            "layers": ["sentences"],
            "recipe": {"model": {"preset": "reluformer"}, "training": {"max_steps": 2}},
            "starts_from": {"smoke": "relu"},
        },
    }
    (tmp_path / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    (tmp_path / "studies" / "one.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """Names of the rows that were started; they run in this process, since the tests of processes are others."""
    names = []

    def start(commands, log, lock):
        names.append((log.name.split("-")[0], [command[1] for command in commands]))
        log.parent.mkdir(parents=True, exist_ok=True)
        for command in commands:
            try:
                status = PROGRAMS[command[0]](command[1:])
            except Killed:
                status = 1
            if status:
                return Done(status)
        return Done(0)

    monkeypatch.setattr(studies.study_process, "start", start)
    return names


PROGRAMS = {study_process.RELUFORMER: lambda rest: cli.main(rest), study_process.TRAIN_ROW: row_training.main}


class Killed(Exception):
    pass


def tasks(folder, **options) -> list[Task]:
    places = Places.of("smoke", folder / "runs", folder / "results")
    catalogue = load_rows("smoke", folder / "studies")
    studies_of_folder = {"one": load_study("one", folder / "studies")}
    return tasks_by_study(studies_of_folder, catalogue, places, **options)["one"]


def test_a_row_that_two_names_share_is_one_task_and_seeds_come_one_after_the_other(folder):
    assert [task.name for task in tasks(folder)] == ["softmax-seed1", "relu-seed1", "softmax-seed2", "relu-seed2"]
    assert [task.name for task in tasks(folder, only=["same"], seeds=[7])] == ["softmax-seed7"]
    with pytest.raises(UserError, match="--only: no row 'vanila' at size smoke; choose of softmax, relu, same"):
        tasks(folder, only=["vanila"])


def test_missing_rows_are_trained_and_finished_ones_left_alone(folder, started):
    first, second = tasks(folder, seeds=[1])
    said = []
    assert run_tasks([first], size="smoke", say=said.append) == []
    assert started == [("softmax", ["train"])]
    result = read_result(first)
    assert (result["row"], result["seed"], result["key"]) == ("softmax", 1, first.row.key)
    assert result["command"] == "python -m benchmarks.studies --size smoke --only softmax --seed 1"
    assert result["training"]["updates"] == 4 and result["training_seconds"] > 0
    assert {"git_commit", "machine", "versions"} <= result["training"].keys()
    assert result["bleu"]["signature"] and result["recipe"]["training"]["seed"] == 1
    assert "BLEU" in said[-1]
    run_tasks([first, second], size="smoke", say=said.append)
    assert [name for name, _ in started] == ["softmax", "relu"]
    assert any("finished already" in line and "to train it again, give folders" in line for line in said)


@pytest.mark.slow
def test_a_finished_run_without_a_result_is_collected_not_trained(folder, started):
    (task,) = tasks(folder, seeds=[1], only=["relu"])
    run_tasks([task], size="smoke", say=lambda line: None)
    task.result_file.unlink()
    assert state_of(task) == "trained"
    run_tasks([task], size="smoke", say=lambda line: None)
    assert state_of(task) == "finished" and len(started) == 1


def test_the_seconds_of_a_training_are_those_of_updates_and_validations():
    log = [
        {"step": 10, "target_tokens_per_update": 100.0, "target_tokens_per_second": 50.0},
        {"step": 15, "target_tokens_per_update": 100.0, "target_tokens_per_second": 100.0},
        {"step": 15, "eval_runtime": 3.0},
        {"step": 15, "train_runtime": 999.0},  # of the last part alone, if a run was interrupted
    ]
    assert training_seconds(log) == 20.0 + 5.0 + 3.0


def task_of_after(folder):
    places = Places.of("smoke", folder / "runs", folder / "results")
    return Task(load_rows("smoke", folder / "studies").rows["after"], 1, places)


@pytest.mark.slow
def test_what_a_row_starts_from_is_trained_first_and_once(folder, started):
    after = task_of_after(folder)
    assert run_tasks([after, after.start], size="smoke", jobs=2, say=lambda line: None) == []
    assert [name for name, _ in started] == ["relu", "after"]
    result = read_result(after)
    assert result["start"].keys() == {"row", "key", "seed", "training_seconds", "updates"}
    assert (result["start"]["row"], result["start"]["updates"], result["training"]["updates"]) == ("relu", 4, 2)
    weights = [load_file(task.run_folder / "model.safetensors") for task in (after.start, after)]
    moved = max((weights[0][name] - weights[1][name]).abs().max() for name in weights[0])
    assert 0 < moved < 0.05, "two updates of at most the learning rate, from the same weights"
    run_tasks([after], size="smoke", say=lambda line: None)
    assert len(started) == 2


def test_what_a_row_starts_from_can_be_named_as_its_result_says(folder):
    """It is in no table, but the command that its result tells repeats it."""
    study = {**STUDY, "rows": [{"row": "after", "label": "after"}]}
    (folder / "studies" / "one.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert [task.name for task in tasks(folder)] == ["after-seed1", "after-seed2"]
    assert [task.name for task in tasks(folder, only=["relu"], seeds=[1])] == ["relu-seed1"]
    rows = yaml.safe_load((folder / "studies" / ROWS_FILE).read_text(encoding="utf-8"))
    rows["last"] = {**rows["after"], "starts_from": {"smoke": "after"}}
    (folder / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    study["rows"] = [{"row": "last", "label": "last"}]
    (folder / "studies" / "one.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert [task.name for task in tasks(folder, only=["relu"], seeds=[1])] == ["relu-seed1"], "two steps down"


@pytest.mark.slow
def test_a_start_that_has_a_result_but_no_model_here_is_trained_again(folder, started):
    after = task_of_after(folder)
    run_tasks([after.start], size="smoke", say=lambda line: None)
    shutil.rmtree(after.start.run_folder)
    said = []
    run_tasks([after], size="smoke", say=said.append)
    assert "its model is not on this machine" in said[0] and "relu-seed1.json will be replaced" in said[0]
    assert [name for name, _ in started] == ["relu", "relu", "after"] and read_result(after) is not None
    shutil.rmtree(after.start.run_folder)
    run_tasks([after], size="smoke", say=lambda line: None)
    assert len(started) == 3, "a row that is over needs nothing to start from"


def test_a_row_whose_start_fails_says_so(folder, started, monkeypatch):
    after = task_of_after(folder)
    monkeypatch.setattr(cli, "main", lambda command: 1)
    first, second = run_tasks([after], size="smoke", say=lambda line: None)
    assert first.startswith("relu-seed1: exit status 1")
    assert second.startswith("after-seed1: relu-seed1, which it starts from, is not trained")


@pytest.mark.slow
def test_an_evaluation_that_was_lost_is_made_up_for(folder, started):
    (task,) = tasks(folder, seeds=[1], only=["relu"])
    run_tasks([task], size="smoke", say=lambda line: None)
    task.result_file.unlink()
    (task.run_folder / "evaluation.test.json").unlink()
    run_tasks([task], size="smoke", say=lambda line: None)
    assert started[1] == ("relu", ["evaluate"]) and state_of(task) == "finished"


def test_a_row_that_translates_nothing_is_finished_when_it_is_trained(folder, started):
    rows = yaml.safe_load((folder / "studies" / ROWS_FILE).read_text(encoding="utf-8"))
    rows["relu"]["recipe"]["evaluation"] = {"splits": []}
    (folder / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    (task,) = tasks(folder, seeds=[1], only=["relu"])
    assert run_tasks([task], size="smoke", say=lambda line: None) == []
    assert read_result(task)["bleu"] is None and read_result(task)["evaluations"] == {}
    task.result_file.unlink()
    assert run_tasks([task], size="smoke", say=lambda line: None) == []
    assert started == [("relu", ["train"])] and state_of(task) == "finished"


@pytest.mark.slow
def test_an_interrupted_row_goes_on_at_its_checkpoint_and_its_failure_costs_no_other(folder, started, monkeypatch):
    broken, other = tasks(folder, seeds=[1])
    original = ReLUFormerTrainer.log

    def log_until_killed(self, logs, start_time=None):
        original(self, logs, start_time)
        if self.state.global_step == 4 and "softmax" in self.args.output_dir:
            raise Killed

    said = []
    with monkeypatch.context() as patch:
        patch.setattr(ReLUFormerTrainer, "log", log_until_killed)
        failures = run_tasks([broken, other], size="smoke", say=said.append)
    assert len(failures) == 1 and failures[0].startswith("softmax-seed1: exit status 1")
    assert (state_of(broken), state_of(other)) == ("begun", "finished")
    assert run_tasks([broken, other], size="smoke", say=said.append) == []
    assert read_result(broken)["training"]["resumed_from"].endswith("checkpoint-2")
    assert any("goes on" in line for line in said)


def test_sigterm_ends_the_rows_of_a_study_with_it(folder, monkeypatch):
    ended = []

    class Trained(Done):
        def __init__(self):
            super().__init__(0)

        def is_alive(self):
            return True

        def join(self, timeout=None):
            if not ended:
                os.kill(os.getpid(), signal.SIGTERM)

        def terminate(self):
            ended.append("told to stop")

    monkeypatch.setattr(study_process, "start", lambda *arguments: Trained())
    places = ["--runs", str(folder / "runs"), "--results", str(folder / "results")]
    assert studies_program.main(["--study", "t3", "--size", "smoke", *places]) == 143
    assert ended == ["told to stop"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_a_row_whose_recipe_changes_is_another_row(folder, started):
    (before,) = tasks(folder, seeds=[1], only=["relu"])
    run_tasks([before], size="smoke", say=lambda line: None)
    rows = yaml.safe_load((folder / "studies" / ROWS_FILE).read_text(encoding="utf-8"))
    rows["relu"]["recipe"]["training"] = {"learning_rate": 0.02}
    (folder / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    (after,) = tasks(folder, seeds=[1], only=["relu"])
    assert (state_of(after), is_stale(after)) == ("missing", True)
    assert after.run_folder != before.run_folder
    said = []
    run_tasks([after], size="smoke", say=said.append)
    assert "of another recipe and will be replaced" in said[0]
    assert read_result(after)["recipe"]["training"]["learning_rate"] == 0.02 and read_result(before) is None


def test_a_row_that_diverges_is_a_result(folder, started):
    rows = yaml.safe_load((folder / "studies" / ROWS_FILE).read_text(encoding="utf-8"))
    rows["relu"]["recipe"]["training"] = {"learning_rate": 1e30, "warmup_steps": 0}
    (folder / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    (task,) = tasks(folder, seeds=[1], only=["relu"])
    said = []
    assert run_tasks([task], size="smoke", say=said.append) == []
    assert "does not converge: the loss is not finite since update" in said[-1]
    result = read_result(task)
    assert result["training"]["diverged"]["step"] >= 1 and result["bleu"] is None


@pytest.mark.slow
def test_a_process_of_its_own_writes_a_log_and_two_do_not_run_the_same_row(tmp_path):
    log, lock = tmp_path / "row.log", tmp_path / "row.lock"
    with study_process.FileLock(lock):
        process = study_process.start([["reluformer", "--version"]], log, lock)
        process.join()
    assert process.exitcode == study_process.BUSY and not log.exists()
    process = study_process.start(
        [["reluformer", "--version"], ["reluformer", "train", "--config", "nowhere"]], log, lock
    )
    process.join()
    assert process.exitcode == 2
    text = log.read_text(encoding="utf-8")
    assert "OMP_NUM_THREADS=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000" in text
    assert "reluformer 0." in text
    assert study_process.last_line(log).startswith("reluformer: error: --config: no file 'nowhere'")


def test_the_log_of_a_row_that_crashes_tells_where(tmp_path, monkeypatch):
    def crash(command):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("reluformer.__main__.main", crash)
    log = tmp_path / "row.log"
    # forked, unlike a row, so that the child has the fault, too
    arguments = ([["reluformer", "train"]], str(log), str(tmp_path / "row.lock"))
    process = multiprocessing.get_context("fork").Process(target=study_process._run, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 1 and study_process.last_line(log) == "ZeroDivisionError: a fault of ours"
    assert "in crash" in log.read_text(encoding="utf-8")


def test_progress_is_read_from_a_log(tmp_path):
    assert study_process.last_progress(tmp_path / "none.log") is None
    (tmp_path / "row.log").write_text(" 1%| 20/2400 [00:20<40:00, 1.00s/it]\r 12%| 300/2400 [05:00<35:00, 1.00it/s]")
    assert study_process.last_progress(tmp_path / "row.log") == "300/2400 [05:00<35:00, 1.00it/s]"
    lines = (
        "about 9 min for the 2,345 updates\n1,200/2,345 · loss 0.4 · 9:00 left\n1,250/2,345 · loss 0.4 · 8:40 left\n"
    )
    (tmp_path / "row.log").write_text(lines, encoding="utf-8")
    assert study_process.last_progress(tmp_path / "row.log") == "1,250/2,345 · loss 0.4 · 8:40 left"
    (tmp_path / "row.log").write_text(f"{lines} 50%| 20/40 [00:10<00:10, 2.00it/s]", encoding="utf-8")
    assert study_process.last_progress(tmp_path / "row.log").startswith("20/40 ["), "the later one"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--study", "t99"], "no study 't99'"),
        (["--study", "t2", "--only", "vanila"], "no row 'vanila'"),
        (["--only", "vanila"], "no row 'vanila'"),
        (["--only", "vanilla", "--only", "vanila"], "no row 'vanila'"),
        (["--list", "--only", "vanila"], "no row 'vanila'"),
        (["--study", "t2", "--study", "t6", "--only", "gamma_learnable"], "no row 'gamma_learnable'"),
        (["--size", "huge"], "huge"),
        (["--jobs", "0"], "--jobs: 0"),
        (["--list", "--seed", "-3"], "--seed: -3"),
        (["--seed", "4294967296"], "--seed: 4294967296"),
        (["--report", "x.md", "--study", "t2"], "--report"),
        (["--report", "x.md", "--jobs", "4"], "--report"),
        (["--report", "."], "--report: '.' is a folder"),
        (["--report", "README.md/x/y.md"], "--report: 'README.md' is a file"),
        (["--report", "x.md"], "--results: no folder"),
        (["--list"], "--results: no folder"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, named, capsys, tmp_path):
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main([*arguments, *places]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


WITHOUT_LOG = json.dumps(
    {"key": load_rows("cpu").rows["vanilla"].key, "seed": 1, "training": {}, "training_seconds": "9", "evaluations": {}}
)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("vanilla-seed1.json", '{"row": "van', "vanilla-seed1.json: is no JSON"),
        ("vanilla-seed1.json", "[]", "vanilla-seed1.json: holds no result of a row"),
        ("vanilla-seed1.json", WITHOUT_LOG, "vanilla-seed1.json: training_seconds, log_history is missing or damaged"),
        ("vanilla-seedx.json", "{}", "vanilla-seedx.json: a result is named vanilla-seed<number>.json"),
    ],
)
def test_a_damaged_result_is_named(name, content, named, capsys, tmp_path):
    (tmp_path / "results" / "cpu").mkdir(parents=True)
    (tmp_path / "results" / "cpu" / name).write_text(content, encoding="utf-8")
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main(["--list", "--study", "t2", *places]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_a_report_of_no_results_is_refused(capsys, tmp_path):
    (tmp_path / "results").mkdir()
    report = tmp_path / "report.md"
    assert studies_program.main(["--report", str(report), "--results", str(tmp_path / "results")]) == 2
    assert "holds no result of size cpu or paper; run a row first" in capsys.readouterr().err
    assert not report.exists()


def test_the_list_says_how_far_every_row_is(capsys, tmp_path):
    (tmp_path / "results").mkdir()
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main(["--list", *places]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 100, "fits a screen"
    assert any(line.split()[:6] == ["t6", "0", "of", "6", "rows", "Table"] for line in lines)
    assert studies_program.main(["--list", "--all", *places]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  vanilla-seed1: missing" in lines and any(line.startswith("t6: Table 6") for line in lines)
    some = ["--study", "t2", "--study", "t6", "--only", "vanilla", "--only", "documents_relu_512", "--seed", "7"]
    assert studies_program.main(["--list", *some, *places]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2::3] == ["vanilla-seed7: missing", "documents_relu_512-seed7: missing"]
    assert all(line.startswith("missing: ") and "corpus: data/" in line for line in lines[1::3])


@pytest.mark.slow
def test_every_study_runs_at_the_smoke_size(tmp_path, capsys):
    """What `make studies-smoke` does: training, evaluation, analyses, report, each row in a process of its own."""
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert studies_program.main(["--size", "smoke", *places]) == 0
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "results" / "smoke").glob("*.json")]
    assert len(results) >= 15
    trained = [result for result in results if "training" in result]
    starts = {"documents_start_relu", "documents_start_softmax"}
    pictures = [result for result in trained if result["row"].startswith(("vit_", "zeros_vit_"))]
    assert len(pictures) == 10 and all(result["accuracy"]["pictures"] == 40 for result in pictures)
    texts = [result for result in trained if result not in pictures and result["row"].startswith(("lm_", "zeros_"))]
    assert len(texts) == 11 and all(result["perplexity"]["tokens"] == 119 for result in texts)
    others = [result for result in trained if result not in pictures + texts]
    assert {result["row"] for result in others if not result["bleu"]} == starts | {"documents_gamma_softmax"}
    documents = next(result for result in results if result["row"] == "documents_relu_64")
    table = documents["analyses"]["context"]["table"]
    assert documents["analyses"]["context"]["text"]["max_length"] == 64 and table[0]["tokens"] > 100
    vanilla = next(result for result in results if result["row"] == "vanilla")
    assert {"entropy", "top-p", "anisotropy", "variance-ratio"} <= vanilla["analyses"].keys()
    report = tmp_path / "reproduction.md"
    assert studies_program.main(["--size", "smoke", "--report", str(report), *places]) == 0
    text = report.read_text(encoding="utf-8")
    assert "not run" not in text and "was not measured" not in text, "a figure that no row gives"
    capsys.readouterr()
    assert studies_program.main(["--size", "smoke", *places]) == 0
    assert capsys.readouterr().out.count("finished already") == len(results) - len(starts), "no row needs them any more"
