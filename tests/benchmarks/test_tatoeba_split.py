"""A test split that shares no sentence with training, and is the same everywhere."""

import gzip

from benchmarks import tatoeba_split
from benchmarks.tatoeba_split import main, split

# Every sentence stands in two pairs, once in other case.
PAIRS = [(f"Satz {number // 2}", f"sentence {number}") for number in range(40)] + [
    (f"satz {number + 100}", f"Sentence {number}") for number in range(40)
]


def test_no_sentence_of_the_test_split_is_left_in_training():
    train, test = split(PAIRS, 8)
    held_out = {sentence.lower() for pair in test for sentence in pair}
    assert len(test) == 8 and len(held_out) == 16
    assert train == [pair for pair in PAIRS if not {sentence.lower() for sentence in pair} & held_out]


def test_the_program_writes_the_same_files_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tatoeba_split, "TEST_PAIRS", 4)
    (tmp_path / "data/tatoeba").mkdir(parents=True)
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"data/tatoeba/train.{language}.gz").write_bytes(gzip.compress(text.encode()))
    written = []
    for _ in range(2):
        main()
        written.append({path.name: path.read_bytes() for path in (tmp_path / "runs/tatoeba").iterdir()})
    assert written[0] == written[1] and len(written[0]) == 4
    assert gzip.decompress(written[0]["test.de.gz"]).decode().splitlines() == [pair[0] for pair in split(PAIRS, 4)[1]]
