"""A test split that shares no sentence with training, and is the same everywhere."""

from __future__ import annotations

import gzip

import pytest

from benchmarks.text.tatoeba_split import main, split
from reluformer.configuration.errors import UserError

# Every sentence stands in two pairs, once in other case.
PAIRS = [(f"Satz {number // 2}", f"sentence {number}") for number in range(40)] + [
    (f"satz {number + 100}", f"Sentence {number}") for number in range(40)
]


def test_no_sentence_of_the_test_split_is_left_in_training() -> None:
    train, test = split(PAIRS, 8)
    held_out = {sentence.lower() for pair in test for sentence in pair}
    assert len(test) == 8 and len(held_out) == 16
    assert not held_out & {sentence.lower() for pair in train for sentence in pair}
    assert train == [pair for pair in PAIRS if not {sentence.lower() for sentence in pair} & held_out]


def test_the_split_is_that_of_its_seed() -> None:
    assert split(PAIRS, 8) == split(PAIRS, 8)
    assert split(PAIRS, 8, seed=2)[1] != split(PAIRS, 8)[1]


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(UserError, match="41 pairs needs at least 82 different ones; there are 80"):
        split(PAIRS, 41)


def test_the_program_writes_the_same_files_again(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/tatoeba").mkdir(parents=True)
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"data/tatoeba/train.{language}.gz").write_bytes(gzip.compress(text.encode()))
    assert main(["--pairs", "4"]) == 0
    first = {path.name: path.read_bytes() for path in (tmp_path / "runs/tatoeba").iterdir()}
    assert sorted(first) == ["test.de.gz", "test.en.gz", "train.de.gz", "train.en.gz"]
    assert gzip.decompress(first["test.de.gz"]).decode().splitlines() == [pair[0] for pair in split(PAIRS, 4)[1]]
    assert main(["--pairs", "4"]) == 0
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "runs/tatoeba").iterdir()}
