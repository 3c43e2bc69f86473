"""What a training shows: one line for each log, and bars on a terminal alone."""

import io
import re
import sys
import time
from types import SimpleNamespace

import pytest

from reluformer.records.progress import ProgressLines, progress_line

from ..training.tiny_run import tiny_trainer


def test_a_line_holds_what_was_logged_and_no_more():
    logged = {"loss": 1.0204, "grad_norm": 0.5, "dead_row_fraction": 0.0312, "target_tokens_per_second": 17_301.2}
    assert progress_line(logged | {"eval_loss": 0.98765, "eval_bleu": 99.46}, 1_650, 1_700, "00:12 left") == (
        "1,650/1,700 · loss 1.02 · validation loss 0.988 · BLEU 99.5 · dead rows 3.1% · 17,301 tokens/s · 00:12 left"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_a_log_and_an_evaluation_share_a_line_and_the_bar_is_on_a_terminal_alone(
    tmp_path, monkeypatch, capsys, on_a_terminal
):
    stderr = Terminal() if on_a_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    options = {"max_steps": 12, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 6, "disable_tqdm": False}
    tiny_trainer(tmp_path, scorer=lambda *_: {"bleu": 50.0}, **options).train()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["3/12", "6/12", "9/12", "12/12"]
    assert ["BLEU 50.0" in line for line in lines] == [False, True, False, True]
    assert [bool(re.search(r" · \d\d:\d\d left$", line)) for line in lines] == [True, True, True, False]
    assert ("12/12" in stderr.getvalue()) if on_a_terminal else not stderr.getvalue()


def test_what_is_left_is_foretold_from_the_updates_since_the_training_began_or_resumed(monkeypatch, capsys):
    seconds = iter([1_000.0, 1_020.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    lines, control = ProgressLines(), SimpleNamespace(should_evaluate=False)
    state = SimpleNamespace(global_step=90, max_steps=100, is_world_process_zero=True)
    lines.on_train_begin(None, state, control)
    state.global_step = 92
    lines.on_log(None, state, control, logs={"loss": 1.5})
    assert capsys.readouterr().out == "92/100 · loss 1.5 · 01:20 left\n", "8 updates of 10 seconds"
