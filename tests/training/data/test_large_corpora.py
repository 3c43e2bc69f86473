"""Corpora on disk: read and encoded once, the same in any number of workers, and planned with little memory."""

import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from dataclasses import asdict

import datasets
import numpy as np
import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, ParallelFiles
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data import arrow_cache, corpora, data_sets, encoding
from reluformer.training.data.arrow_cache import cache_folder, cached_rows, rows_by_file
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import read_parallel_files
from reluformer.training.data.data_sets import read_dataset
from reluformer.training.data.encoding import default_workers, encode_pairs, token_lengths, tokenizer_facts
from reluformer.training.data.splits import load_split
from reluformer.training.data.token_batches import LENGTH_JITTER, TokenBatchSampler
from reluformer.training.tokenization import train_tokenizer

PAIRS = 3_000
LIMIT = 40
LANGUAGES = {"source_language": "de", "target_language": "en"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and files of few rows, so that a small corpus is many files."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(arrow_cache, "ROWS_PER_RECORD_BATCH", 100)
    monkeypatch.setattr(arrow_cache, "ROWS_PER_FILE", 1_100)


@pytest.fixture
def files(tmp_path):
    """Two files with an empty line and some lines that are too long."""
    generator = np.random.default_rng(0)
    paths = []
    for side in ("source", "target"):
        lines = [" ".join(map(str, generator.integers(0, 50, generator.integers(1, 25)))) for _ in range(PAIRS)]
        lines[1_700] = "" if side == "source" else lines[1_700]
        paths.append(tmp_path / f"train.{side}")
        paths[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def tokenizer():
    pairs = datasets.Dataset.from_dict({"source": ["1 2 3 12"] * 9, "target": ["4 5 6"] * 9})
    return train_tokenizer(pairs, vocab_size=300, lowercase=True, moses=False, max_length=64, **LANGUAGES)


def entries(kind):
    return {path.name for path in cache_folder().glob(f"{kind}-*")}


def no_writer(*arguments):
    pytest.fail("written again")


def test_a_second_start_reads_and_encodes_nothing(files, tokenizer, monkeypatch):
    pairs, read = read_parallel_files(*files, name="train")
    encoded, report = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train tokens")
    assert not read.from_cache and not report.from_cache
    assert read.skipped == {"source empty": 1} and read.kept == len(pairs) == PAIRS - 1
    assert 0 < report.skipped[f"longer than {LIMIT} tokens"] < PAIRS / 2
    monkeypatch.setattr(corpora, "_write_parallel_files", no_writer)
    monkeypatch.setattr(encoding, "_write", no_writer)
    again, read_again = read_parallel_files(*files, name="train")
    encoded_again, report_again = encode_pairs(again, tokenizer, max_length=LIMIT, name="train tokens")
    assert read_again.from_cache and report_again.from_cache
    assert asdict(read_again) == asdict(read) and asdict(report_again) == asdict(report)
    assert list(report_again.skipped) == list(report.skipped)
    assert again.to_list() == pairs.to_list() and encoded_again.to_list() == encoded.to_list()
    for rows in (again, encoded_again):
        assert rows.cache_files and not any(
            isinstance(block, datasets.table.InMemoryTable) for blocks in rows.data.blocks for block in blocks
        )


def test_one_worker_and_two_write_the_same_rows_and_counts(files, tokenizer, tmp_path, monkeypatch):
    results = []
    for workers in (1, 2):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / f"workers-{workers}")
        pairs, _ = read_parallel_files(*files, name="train")
        environment = os.environ
        encoded, report = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train", workers=workers)
        assert os.environ is environment and not report.from_cache
        results.append((encoded.to_list(), asdict(report), list(report.skipped)))
        files_of_entry = {path.suffix for path in cache_folder().glob("tokens-*/*")}
        assert files_of_entry == {".arrow", ".json"}
    assert results[0] == results[1]
    whole = pairs.to_dict()
    kept = [tokenizer(text)["input_ids"] for text in whole["source"]]
    targets = [tokenizer(text_target=text)["input_ids"] for text in whole["target"]]
    good = [max(map(len, sides)) <= LIMIT for sides in zip(kept, targets, strict=True)]
    assert [row["input_ids"] for row in results[0][0]] == [
        ids for ids, is_good in zip(kept, good, strict=True) if is_good
    ]
    first = good.index(False)
    expected = f"pair {first} with {len(kept[first])} source and {len(targets[first])} target tokens"
    assert results[0][1]["first"] == {f"longer than {LIMIT} tokens": expected}


def test_the_first_place_of_a_skip_counts_over_all_files(files, tokenizer, tmp_path):
    """The only pair that is too long stands in the last file of the entry."""
    for path in files:
        lines = ["1"] * 2_500
        lines[2_400] = "1 " * LIMIT
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs, _ = read_parallel_files(*files, name="train")
    assert len(list(rows_by_file(pairs))) == 3
    for workers in (2, 1):
        _, report = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train", workers=workers)
        assert report.first[f"longer than {LIMIT} tokens"].startswith("pair 2400 with ")


def test_whatever_matters_is_part_of_the_key(files, tokenizer, tmp_path):
    pairs, _ = read_parallel_files(*files, name="train")
    encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train")
    assert (len(entries("pairs")), len(entries("tokens"))) == (1, 1)
    other = train_tokenizer(
        datasets.Dataset.from_dict({"source": ["7 8"] * 9, "target": ["9 9"] * 9}),
        vocab_size=300, lowercase=False, moses=False, max_length=64, **LANGUAGES,
    )  # fmt: skip
    assert not encode_pairs(pairs, other, max_length=LIMIT, name="train")[1].from_cache
    assert not encode_pairs(pairs, tokenizer, max_length=LIMIT - 1, name="train")[1].from_cache
    assert not encode_pairs(pairs.select(range(9)), tokenizer, max_length=LIMIT, name="train")[1].from_cache
    assert encode_pairs(pairs, tokenizer, max_length=LIMIT, name="another name", workers=2)[1].from_cache

    status, content = files[0].stat(), bytearray(files[0].read_bytes())
    content[0] = content[0] ^ 1  # "4" and "5": the same size
    files[0].write_bytes(content)
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    changed, report = read_parallel_files(*files, name="train")
    assert not report.from_cache and changed[0] != pairs[0]
    assert not encode_pairs(changed, tokenizer, max_length=LIMIT, name="train")[1].from_cache
    assert not read_parallel_files(files[1], files[0], name="train")[1].from_cache
    (tmp_path / "moved").write_bytes(content)  # its report would name another file
    assert not read_parallel_files(tmp_path / "moved", files[1], name="train")[1].from_cache


def test_a_tokenizer_is_known_by_what_it_does(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    before = tokenizer_facts(loaded)
    loaded(["1", "2 3"], padding=True, truncation=True, max_length=2)
    assert tokenizer_facts(loaded) == before == tokenizer_facts(tokenizer)
    loaded.add_tokens(["12"])
    assert tokenizer_facts(loaded) != before


def test_a_data_set_is_read_once(tmp_path, monkeypatch):
    rows = [{"translation": {"de": str(n), "en": None if n % 7 == 3 else "x"}} for n in range(2_300)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    read = lambda: read_dataset(str(tmp_path / "set"), None, "train", PairColumns("de", "en"))  # noqa: E731
    pairs, report = read()
    assert [int(text) for text in pairs["source"]] == [n for n in range(2_300) if n % 7 != 3]
    assert report.first == {"target is not text": "row 3"}
    monkeypatch.setattr(data_sets, "write_pairs", no_writer)
    again, report_again = read()
    assert report_again.from_cache and asdict(report_again) == asdict(report)
    assert again.to_list() == pairs.to_list()


def test_only_some_documents_of_a_cached_corpus(files, tmp_path):
    documents = tmp_path / "documents"
    documents.write_text("".join(f"d{n // 500}\n" for n in range(PAIRS)))
    given = ParallelFiles(source=str(files[0]), target=str(files[1]), documents=str(documents), only=["d3", "d1"])
    pairs, report = load_split(DataConfig(**LANGUAGES, train=given), "train")
    assert set(pairs["document"]) == {"d1", "d3"} and len(pairs) == report.kept == 999
    assert report.first["of a document that data.train.only does not name"] == "document d0"
    given.only = ["d9"]
    with pytest.raises(UserError, match=r"no document .d9.; there are: d0, d1, d2, d3, d4, d5$"):
        load_split(DataConfig(**LANGUAGES, train=given), "train")


def test_rows_that_were_chosen_are_not_read_from_the_files(files):
    pairs, _ = read_parallel_files(*files, name="train")
    assert len(list(rows_by_file(pairs))) == 3
    assert [row for part in rows_by_file(pairs) for row in part] == pairs.to_list()
    for changed in (pairs.select(range(5, 50)), pairs.shuffle(seed=1), pairs.rename_column("source", "text")):
        parts = list(rows_by_file(changed))
        assert [row for part in parts for row in part] == changed.to_list()


def lengths(count, seed=0):
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.8, 0.5, count), 2, 120).astype(int)
    return source, np.clip(source * generator.lognormal(0, 0.2, count), 2, 120).astype(int)


def plan_by_sorting_everything(source, target, bounds, *, seed, epoch):
    """The definition: both keys sorted at once, in double precision."""
    generator = np.random.default_rng([seed, epoch])
    difference, batches = (target - source).astype(np.float64), np.arange(len(bounds) - 1)
    difference += generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, size=len(difference))
    generator.shuffle(batches)
    order = np.lexsort((difference, -np.maximum(source, target)))
    return [order[bounds[batch] : bounds[batch + 1]].tolist() for batch in batches]


@pytest.mark.parametrize("epoch", [0, 5])
def test_the_plan_is_that_of_sorting_everything(epoch):
    source, target = lengths(20_000)
    sampler = TokenBatchSampler(source, target, tokens_per_batch=2_048, seed=3)
    sampler.set_epoch(epoch)
    assert list(sampler) == plan_by_sorting_everything(source, target, sampler._bounds, seed=3, epoch=epoch)


# Of the plans as they were before lengths and order were kept in 32 bits. A resumed run needs the plan it began with.
GOLDEN = [
    ({"count": 30_000, "tokens_per_batch": 2_048, "seed": 3}, ["3897fbbf38f7cbb0", "181c154b7f719790"]),
    ({"count": 30_000, "tokens_per_batch": 4_096, "seed": 7, "batches_per_update": 8}, ["67b221e23201ddb9", "d101f89369397cbd"]),
    ({"count": 5_000, "tokens_per_batch": 150, "seed": 1, "shuffle": False}, ["cbfaed3fabb66769", "cbfaed3fabb66769"]),
    ({"count": 7, "tokens_per_batch": 120, "seed": 1, "batches_per_update": 16}, ["c11a0a59106f6ea9", "aefc4611433b2205"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), GOLDEN)
def test_the_plan_of_a_seed_never_changes(options, expected):
    sampler = TokenBatchSampler(*lengths(options["count"]), **{k: v for k, v in options.items() if k != "count"})
    for epoch, golden in zip((0, 5), expected, strict=True):
        sampler.set_epoch(epoch)
        digest = hashlib.sha256()
        for batch in sampler:
            digest.update(np.asarray([len(batch), *batch], dtype=np.int64).tobytes())
        assert digest.hexdigest()[:16] == golden


def test_planning_a_million_pairs_needs_a_few_bytes_a_pair():
    source, target = (side.astype(np.int32) for side in lengths(1_000_000))
    tracemalloc.start()
    try:
        sampler = TokenBatchSampler(source, target, tokens_per_batch=8_192, seed=0)
        kept, _ = tracemalloc.get_traced_memory()
        plan = iter(sampler)
        next(plan)
        in_epoch, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 9e6  # difference and order, 4 bytes each
    assert in_epoch < 13.5e6  # and the epoch's order
    assert peak < 36e6


def test_lengths_are_counted_without_the_tokens(files, tokenizer):
    pairs, _ = read_parallel_files(*files, name="train")
    encoded, _ = encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train")
    for rows in (encoded, encoded.select([5, 3, 900]), datasets.Dataset.from_dict({"labels": [[1], [], [2, 3]]})):
        counted = token_lengths(rows, "labels")
        assert counted.dtype == np.int32
        assert counted.tolist() == [len(ids) for ids in rows["labels"]]


def test_processes_that_start_together_write_an_entry_once(files, tmp_path):
    program = (
        "import sys\n"
        "from reluformer.training.data import corpora\n"
        "pairs, report = corpora.read_parallel_files(*sys.argv[1:3], name='train')\n"
        "print(len(pairs), report.kept, report.from_cache)\n"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "shared")}
    command = [sys.executable, "-c", program, *map(str, files)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) for _ in range(3)
    ]
    said = sorted(process.communicate(timeout=300)[0].splitlines()[-1] for process in started)
    assert said == ["2999 2999 False", "2999 2999 True", "2999 2999 True"]
    assert len(list((tmp_path / "shared").glob("reluformer/pairs-*"))) == 1


def test_what_a_killed_writer_left_and_a_damaged_entry_are_written_anew(files, caplog):
    pairs, _ = read_parallel_files(*files, name="train")
    expected = pairs.to_list()
    folder = next(cache_folder().glob("pairs-*"))
    last = sorted(folder.glob("*.arrow"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir()
    (partial / "pairs-00000.arrow").write_bytes(b"half")
    again, report = read_parallel_files(*files, name="train")
    assert not report.from_cache and again.to_list() == expected
    assert f"{last.name} is not the file that was written" in caplog.text
    assert entries("pairs") == {folder.name}


def test_a_writer_that_fails_leaves_nothing(files):
    files[0].write_text("only one line\n")
    with pytest.raises(UserError, match="same number of lines"):
        read_parallel_files(*files, name="train")
    assert entries("") == set() and entries("pairs") == set()


def test_a_cache_that_must_not_be_written_to_is_one_line(files, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way of a folder")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    with pytest.raises(UserError, match=r"cannot be written to \(Not a directory; .* set HF_DATASETS_CACHE") as error:
        read_parallel_files(*files, name="train")
    assert "\n" not in str(error.value)

    def refuse(folder):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(UserError, match="Read-only file system"):
        cached_rows("pairs", {}, refuse)


def test_an_entry_is_used_where_nothing_can_be_written(files, monkeypatch):
    read_parallel_files(*files, name="train")

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(arrow_cache, "FileLock", refuse)
    assert read_parallel_files(*files, name="train")[1].from_cache


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_full_disk_is_one_line(files, tokenizer, workers):
    """At no worker the pairs do not fit, otherwise their tokens."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    pairs = read_parallel_files(*files, name="train")[0] if workers else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))
    try:
        with pytest.raises(UserError, match=r"the cache of corpora cannot be written to \(.*are free") as error:
            if pairs is None:
                read_parallel_files(*files, name="train")
            else:
                encode_pairs(pairs, tokenizer, max_length=LIMIT, name="train", workers=workers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert "\n" not in str(error.value)
    assert not list(cache_folder().glob("*.partial"))


def test_a_pipe_is_refused(tmp_path, files):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is no regular file"):
        read_parallel_files(tmp_path / "pipe", files[1], name="train")


def test_workers_by_default_and_by_recipe():
    assert default_workers(1_000) == 1
    assert 1 <= default_workers(5_000_000) <= 8
    recipe = ["--config", "demo", "--data.workers"]
    assert parse_recipe([*recipe, "3"]).data.workers == 3
    with pytest.raises(UserError, match=r"data\.workers: 0 processes"):
        parse_recipe([*recipe, "0"])
