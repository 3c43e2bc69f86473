"""The synthetic text is what it says, and memory is measured where it is used."""

import collections
import json
import sys

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def large_corpus(program):
    return program("text.large_corpus")


def test_the_text_is_the_same_for_a_seed_and_looks_like_text(tmp_path, program):
    synthetic_text = program("text.synthetic_text")
    facts, texts = {}, {}
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        (tmp_path / name).mkdir()
        facts[name] = synthetic_text.write_parallel_text(tmp_path / name, pairs=2_000, words=5_000, seed=seed)
        texts[name] = [(tmp_path / name / f"train.{side}").read_text(encoding="utf-8") for side in synthetic_text.SIDES]
    assert texts["one"] == texts["two"] != texts["three"]
    for side, text in zip(synthetic_text.SIDES, texts["one"], strict=True):
        lines = text.splitlines()
        assert len(lines) == 2_000 and all(line.endswith(".") and line.strip(".") for line in lines)
        words = [word for line in lines for word in line.removesuffix(".").split()]
        assert len(words) == facts["one"]["words"][side] and len(text.encode()) == facts["one"]["bytes"][side]
        assert 20 < len(words) / len(lines) < 28
        counts = [count for _, count in collections.Counter(words).most_common()]
        assert counts[0] / counts[9] == pytest.approx(7, rel=0.4)  # log 2 / log (11 / 10)
        assert 2_000 < len(counts) <= 5_000


def test_memory_of_a_process_is_that_of_the_system(large_corpus):
    memory = large_corpus.memory_of("self")
    assert memory["resident"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert memory["resident"] == memory["anonymous"] + memory["file"] + memory["shared"]
    assert large_corpus.memory_of(2**22 + 1) is None


def test_stages_end_with_the_lines_of_the_program(tmp_path, large_corpus):
    """A stand-in for the program: 200 MB while it encodes, which a child of it holds."""
    program = tmp_path / "reluformer.py"
    child = "held = bytearray(200_000_000); import time; time.sleep(0.6)"
    program.write_text(
        "import subprocess, sys, time\n"
        "print('train: 3 of 3 pairs kept'); print('something else')\n"
        f"subprocess.run([sys.executable, '-c', {child!r}])\n"
        "print('train tokens: 3 of 3 pairs kept'); print('model: 5 parameters'); time.sleep(0.3)\n"
    )
    run = large_corpus.watched_run(tmp_path, tmp_path / "recipe.yaml", "first")
    assert list(run["stages"]) == ["start and read", "encode", "build model", "plan and train"]
    assert run["stages"]["encode"]["said"] == "train tokens: 3 of 3 pairs kept"
    assert run["stages"]["encode"]["seconds"] > 0.5
    assert run["stages"]["encode"]["child"]["anonymous"] > 200_000_000
    assert run["stages"]["encode"]["main"].get("anonymous", 0) < 100_000_000
    assert run["largest_process"]["anonymous"] > 200_000_000
    assert str(tmp_path) not in json.dumps(run)
    program.write_text("import sys; sys.exit('no such thing')")
    with pytest.raises(RuntimeError, match="first: exit 1\nno such thing"):
        large_corpus.watched_run(tmp_path, tmp_path / "recipe.yaml", "first")


@pytest.mark.slow
def test_the_whole_program(tmp_path, large_corpus, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["large_corpus.py", "--quick", "--output", str(tmp_path / "result.json")])
    assert large_corpus.main() == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert list(result["runs"]) == ["first", "second", "two workers"]
    assert "(from the cache)" in result["runs"]["second"]["stages"]["encode"]["said"]
    assert "(from the cache)" not in result["runs"]["two workers"]["stages"]["encode"]["said"]
    assert result["plan"]["batches"] > 3
