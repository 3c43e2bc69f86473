"""What a training shows: one line for each logging, one bar on a terminal alone, and nothing of the libraries' own."""

import io
import re
import sys
import warnings

import pytest

from reluformer.training.run import progress_lines
from reluformer.training.run.progress import library_bars
from reluformer.training.run.progress_lines import clock_time, percent, progress_line, rough_time, short_number

from ..tiny_run import tiny_trainer

LOGGED = {
    "loss": 1.0204,
    "grad_norm": 0.5,
    "learning_rate": 0.003,
    "dead_row_fraction": 0.0312,
    "target_tokens_per_second": 17_301.2,
    "eval_loss": 0.98765,
    "eval_bleu": 99.46,
}


def test_a_line_holds_what_was_logged_and_no_more():
    assert progress_line(LOGGED, 650, 700, "0:12 left") == (
        "650/700 · loss 1.02 · validation loss 0.988 · BLEU 99.5 · dead rows 3 % · 17k tokens/s · 0:12 left"
    )
    both = LOGGED | {"eval_tokenized_lowercase_bleu": 99.6}
    assert progress_line(both, 650, 700, "0:12 left") == progress_line(LOGGED, 650, 700, "0:12 left")
    del both["eval_bleu"]
    assert "validation loss 0.988 · lower-cased BLEU 99.6 · dead rows" in progress_line(both, 650, 700, "")
    assert progress_line({"loss": float("nan")}, 1_000, 12_000, "") == "1,000/12,000 · loss nan"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *((percent(share), text) for share, text in ((0, "0 %"), (0.002, "0.2 %"), (0.031, "3 %"), (1, "100 %"))),
        *((short_number(n), text) for n, text in ((850, "850"), (1_740, "1.7k"), (17_301, "17k"), (1_200_000, "1.2M"))),
        *((clock_time(n), text) for n, text in ((12, "0:12"), (59.7, "1:00"), (725, "12:05"), (93_784, "26:03:04"))),
        *((rough_time(n), text) for n, text in ((0.16, "0.16 s"), (45, "45 s"), (722, "12 min"), (12_600, "3.5 h"))),
    ],
)
def test_numbers_for_a_person(written, expected):
    assert written == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


UPDATE, EVALUATION = 2.0, 30.0


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Trains with a clock in which an update takes 2 s and an evaluation 30 s; returns what is on stdout, line by line."""
    now = [0.0]
    monkeypatch.setattr(progress_lines.time, "perf_counter", lambda: now[0])

    def lines(resume=None, evaluate=True, **arguments):
        def scorer(*_):
            now[0] += EVALUATION
            return {"bleu": 50.0}

        settings = {"eval_strategy": "steps", "eval_steps": 10} if evaluate else {}
        trainer = tiny_trainer(
            tmp_path, scorer=scorer, **{"logging_steps": 5, "disable_tqdm": False, **settings, **arguments}
        )
        compute_loss = trainer.compute_loss

        def timed(model, *args, **kwargs):
            now[0] += UPDATE if model.training else 0
            return compute_loss(model, *args, **kwargs)

        trainer.compute_loss = timed
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of pin_memory, for example
            trainer.train(resume_from_checkpoint=resume)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_training_says_how_long_it_takes_and_counts_evaluations(run, capsys):
    lines = run(max_steps=30)
    assert "about 60 s for the 30 updates (2 s each, without 2 evaluations)" in lines
    progress = [line for line in lines if "/30 · " in line]
    assert [line.split(" · ")[0] for line in progress] == [f"{update}/30" for update in range(5, 31, 5)]
    assert [" · BLEU 50.0 · " in line or line.endswith("BLEU 50.0") for line in progress] == [False, True] * 3
    # after update 5 no evaluation is known; after 10, 20 updates of 2 s and two evaluations of 30 s are left
    left = [re.search(r"(\d+:\d\d) left$", line) for line in progress]
    assert [found and found[1] for found in left] == ["0:50", "1:40", "1:30", "0:50", "0:40", None]
    assert re.fullmatch(r"trained 30 updates in \d+:\d\d", lines[-1])
    assert len(lines) == 8 and not any("{" in line for line in lines)


def test_a_resumed_training_counts_from_where_it_goes_on(run, tmp_path):
    run(max_steps=20, evaluate=False, save_strategy="steps", save_steps=10)
    lines = run(str(tmp_path / "checkpoint-10"), max_steps=40, evaluate=False)
    assert "about 60 s for the 30 updates that are left (2 s each)" in lines
    assert lines[0].startswith("15/40 · ") and lines[0].endswith(" · 0:50 left")
    assert lines[-1].startswith("trained 30 updates in ")


def test_a_short_training_has_no_estimate(run):
    assert not any(line.startswith("about") for line in run(max_steps=20, evaluate=False))


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_the_bar_is_on_a_terminal_alone(run, monkeypatch, on_a_terminal):
    stderr = Terminal() if on_a_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    run(max_steps=12, eval_steps=6)
    bars = set(re.findall(r"\r(\w+)[^\r]*", stderr.getvalue()))
    assert bars == ({"training", "evaluating"} if on_a_terminal else set())
    assert "12/12 updates" in stderr.getvalue() if on_a_terminal else not stderr.getvalue()


def test_the_bar_goes_when_a_training_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    trainer = tiny_trainer(tmp_path, max_steps=2, disable_tqdm=False)
    monkeypatch.setattr(trainer, "training_step", fail)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(MemoryError):
        trainer.train()
    assert "training" in sys.stderr.getvalue() and trainer._progress._bar is None


def test_only_the_main_process_writes(run, monkeypatch):
    monkeypatch.setattr(
        "transformers.TrainerState.is_world_process_zero", property(lambda self: False, lambda *_: None)
    )
    assert run(max_steps=12) == []


def test_the_bars_of_the_libraries_come_back():
    import datasets
    import transformers

    for shown in (False, True):
        with library_bars(shown):
            assert transformers.logging.is_progress_bar_enabled() == shown == datasets.is_progress_bar_enabled()
        assert transformers.logging.is_progress_bar_enabled() and datasets.is_progress_bar_enabled()
