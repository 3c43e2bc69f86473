"""The program that times the compiled step of decoding."""

import json
import shutil

import pytest


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_it_writes_and_prints_what_the_compiled_step_gains(program, tmp_path, capsys):
    output = tmp_path / "compiled-step.json"
    assert program("speed.compiled_step").main(["--quick", "--output", str(output)]) == 0
    (cell,) = json.loads(output.read_text())["cells"]
    first, rest = cell["first_call_seconds"], cell["times"]["compiled step, static cache"]["median_ms"] / 1e3
    assert first > rest > 0, "the first call compiles"
    assert (
        f"quick: the compiled step generates {cell['speedup']['median']:.2f} times as fast" in capsys.readouterr().out
    )
