"""The text of an analysis: files, own translations, skips, and batches of bounded size."""

import logging

import datasets
import pytest

from reluformer.analysis import texts
from reluformer.analysis.texts import batches, encode_text, read_lines
from reluformer.configuration.errors import UserError

from .small_models import POSITIONS, SOURCES, TARGETS, make_model


def write(path, lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_lines_with_and_without_targets(tmp_path, caplog):
    source, target = write(tmp_path / "a", ["eins", "", "drei"]), write(tmp_path / "b", ["one", "two", "three"])
    lines, skipped = read_lines(source, None)
    assert (lines.column_names, lines["source"][:]) == (["source"], ["eins", "drei"])
    assert skipped == {"source empty": 1}
    lines, skipped = read_lines(source, target)
    assert lines["target"][:] == ["one", "three"]
    assert skipped == {"source empty": 1}
    assert caplog.text.count("text: 2 of 3 pairs kept; skipped 1 × source empty (first: line 2)") == 2


def test_without_a_target_the_models_translation_is_read(small_tokenizer, translations):
    model = make_model("reluformer", len(small_tokenizer))
    lines = datasets.Dataset.from_dict({"source": SOURCES[:3]})
    text = encode_text(lines, model, small_tokenizer, num_beams=2)
    assert translations == SOURCES[:3]
    assert text.pairs["labels"][:] == small_tokenizer(text_target=TARGETS[:3])["input_ids"]
    assert text.facts["target"].startswith("the model's own translation")
    assert text.facts["decoding"]["num_beams"] == 2


def test_counts_and_skips_are_told(small_tokenizer, caplog, translations):
    model = make_model("reluformer", len(small_tokenizer))
    long = "schnee " * POSITIONS
    lines = datasets.Dataset.from_dict({"source": [*SOURCES, long], "target": [*TARGETS, "snow"]})
    facts = encode_text(lines, model, small_tokenizer).facts
    assert facts["sentences"] == len(SOURCES)
    assert facts["source_tokens"] == sum(map(len, small_tokenizer(SOURCES)["input_ids"]))
    assert facts["target_tokens"] == sum(map(len, small_tokenizer(text_target=TARGETS)["input_ids"]))
    assert facts["target"].startswith("given")
    assert facts["skipped"] == {f"longer than {POSITIONS} tokens": 1}
    with caplog.at_level(logging.WARNING):
        own = encode_text(lines.remove_columns("target"), model, small_tokenizer, num_beams=1).facts
    assert translations == SOURCES
    assert own["skipped"] == {f"longer than {POSITIONS} tokens": 1}
    assert f"1 of 6 sources skipped: longer than {POSITIONS} tokens" in caplog.text
    with pytest.raises(UserError, match="every source is longer than the 40 tokens"):
        encode_text(datasets.Dataset.from_dict({"source": [long]}), model, small_tokenizer)


def test_batches_hold_every_pair_once_within_the_limits(monkeypatch):
    lengths = [(3, 4), (30, 2), (2, 9), (5, 5), (1, 1), (4, 3)]
    rows = [{"input_ids": [9] * s, "labels": [number + 4] * t} for number, (s, t) in enumerate(lengths)]
    pairs = datasets.Dataset.from_list(rows)

    def shapes(**limits):
        found, seen = [], []
        for batch in batches(pairs, "cpu", progress=False, **limits):
            assert batch.source_mask.sum(-1).tolist() == [lengths[row[0] - 4][0] for row in batch.labels]
            seen += [int(row[0]) - 4 for row in batch.labels]
            found.append((len(batch.labels), max(batch.source_ids.shape[1], batch.labels.shape[1])))
        assert sorted(seen) == list(range(len(lengths)))
        return found

    assert shapes(batch_tokens=20) == [(1, 30), (2, 9), (3, 4)]
    assert shapes(batch_tokens=1000) == [(6, 30)]
    monkeypatch.setattr(texts, "WEIGHTS_PER_BATCH", 160)
    assert shapes(batch_tokens=1000) == [(1, 30), (1, 9), (4, 5)]
