"""Lines of text files, as they are and compressed."""

import gzip
import os
import threading

import pyarrow as pa
import pytest

from reluformer.translating.readers import COMPRESSED_SUFFIXES, text_lines, without_compression


def compressed(suffix: str, content: bytes) -> bytes:
    if not suffix:
        return content
    if suffix == ".gz":
        return gzip.compress(content)
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, {".bz2": "bz2", ".zst": "zstd"}[suffix]) as packed:
        packed.write(content)
    return stream.getvalue().to_pybytes()


@pytest.mark.parametrize("suffix", COMPRESSED_SUFFIXES)
def test_a_file_is_decompressed_by_its_name(tmp_path, suffix):
    path = tmp_path / f"train.de{suffix}"
    path.write_bytes(compressed(suffix, "eins\nzwölf\n".encode()))
    assert list(text_lines(path)) == ["eins", "zwölf"]
    assert without_compression(path) == tmp_path / "train.de" == without_compression(tmp_path / "train.de")


def test_an_end_of_line_is_one_character_or_two(tmp_path):
    path = tmp_path / "train.de"
    path.write_bytes(b"eins\r\nzwei\r\r\ndrei\n\nvier\r")
    assert list(text_lines(path)) == ["eins", "zwei\r", "drei", "", "vier"]


def test_a_pipe_is_read_though_nothing_can_seek_in_it(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("eins\nzwei\n",))
    writer.start()
    assert list(text_lines(path)) == ["eins", "zwei"]
    writer.join()
