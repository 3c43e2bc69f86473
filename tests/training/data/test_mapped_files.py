"""What is resident of mapped files is given back, and can be read again."""

import mmap
import re
from pathlib import Path

import datasets
import pytest

from reluformer.training.data import mapped_files
from reluformer.training.data.mapped_files import ReleasingCollator, release

needs_proc = pytest.mark.skipif(not mapped_files.MAPS.is_file(), reason="needs /proc/self/maps")


def resident_of(path) -> int:
    """Kilobytes that this process holds of a mapped file."""
    text = Path("/proc/self/smaps").read_text()
    return sum(int(kb) for kb in re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text))


@pytest.fixture
def rows(tmp_path):
    """4,000 rows of 200 numbers each, mapped from a file of the cache."""
    path = str(tmp_path / "rows.arrow")
    made = datasets.Dataset.from_dict({"ids": [[row] * 200 for row in range(4_000)]})
    return made.map(lambda row: row, cache_file_name=path)


@needs_proc
def test_pages_go_and_come_back(rows):
    path = rows.cache_files[0]["filename"]
    before = [rows[number]["ids"][0] for number in range(0, 4_000, 10)]
    held = resident_of(path)
    assert held > 1_000
    assert release([path]) == 1
    assert resident_of(path) == 0
    assert [rows[number]["ids"][0] for number in range(0, 4_000, 10)] == before


@needs_proc
def test_other_files_and_writable_mappings_are_left_alone(rows, tmp_path):
    path = tmp_path / "written"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        mapped[:4] = b"kept"  # in memory alone: giving the page back would lose it
        assert release([str(path)]) == 0
        assert mapped[:4] == b"kept"
    assert release([str(tmp_path / "missing")]) == 0


def test_nothing_happens_on_other_systems(rows, monkeypatch, tmp_path):
    monkeypatch.setattr(mapped_files, "MAPS", tmp_path / "missing")
    assert release([rows.cache_files[0]["filename"]]) == 0


@needs_proc
def test_the_collator_bounds_what_is_held(rows):
    files = [file["filename"] for file in rows.cache_files]
    collate = ReleasingCollator(len, files)
    most = 0
    for first in range(0, 4_000, 20):
        assert collate([rows[number] for number in range(first, first + 20)]) == 20
        most = max(most, resident_of(files[0]))
    assert most < Path(files[0]).stat().st_size / 1_024 / 2
