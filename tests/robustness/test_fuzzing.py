"""Random input, always the same: it is used as it should be, or refused in words; never a crash, never silently wrong."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reluformer.configuration.errors import UserError
from reluformer.training.data.corpus import read_parallel_files

from ..conftest import VOCABULARY, tiny_model

pytestmark = pytest.mark.slow

# Files are written anew by every example, so that one folder serves all.
FUZZING = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Bytes that mean something to a reader of lines, of gzip or of UTF-8, beside any others.
PIECES = st.sampled_from([b"a", b" ", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xc3\xa4", b"\xef\xbb\xbf", b"\x1f\x8b"])
CONTENT = st.lists(PIECES | st.binary(max_size=6), max_size=12).map(b"".join)


def usable_lines(content: bytes) -> list[str | None]:
    """The lines of a plain file by the definition of `read_parallel_files`, None for one that cannot be used."""
    pieces = content.split(b"\n")
    if pieces[-1] == b"":
        pieces.pop()
    if pieces:
        pieces[0] = pieces[0].removeprefix(b"\xef\xbb\xbf")
    lines = []
    for piece in pieces:
        try:
            text = piece.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        lines.append(text if text.strip() else None)
    return lines


@FUZZING
@given(source=CONTENT, target=CONTENT)
def test_random_bytes_are_read_by_the_rules_or_refused(tmp_path, source, target):
    paths = [tmp_path / "source", tmp_path / "target"]
    for path, content in zip(paths, (source, target), strict=True):
        path.write_bytes(content)
    sides = [usable_lines(content) for content in (source, target)]
    # gzip, and what is taken for UTF-16 or UTF-32: a byte order mark, or many NUL bytes
    others = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
    plain = not any(
        content.startswith(others) or content.count(0) >= max(4, len(content) // 4) for content in (source, target)
    )
    try:
        pairs, report = read_parallel_files(*paths, name="random")
    except UserError as error:
        assert "\n" not in str(error)
        aligned = len(sides[0]) == len(sides[1])
        assert not (plain and aligned and any(None not in pair for pair in zip(*sides, strict=True)))
        return
    assert plain
    expected = [pair for pair in zip(*sides, strict=True) if None not in pair]
    assert list(zip(pairs["source"], pairs["target"], strict=True)) == expected
    assert report.read == len(sides[0]) == report.kept + sum(report.skipped.values())


MODELS = {name: tiny_model(preset=name) for name in ("reluformer", "vanilla")}
MODELS["reluformer eager"] = tiny_model(attn_implementation="eager")


@pytest.mark.parametrize("name", MODELS)
@settings(FUZZING, max_examples=20)
@given(data=st.data())
def test_every_row_of_a_random_batch_is_the_row_alone(name, data):
    """Whatever the masks hide: real positions are finite and do not depend on the other rows, nor on what is hidden."""
    model = MODELS[name]
    batch, source_length, target_length = (data.draw(st.integers(1, most)) for most in (3, 6, 5))
    ids = st.integers(0, VOCABULARY - 1)
    source, target = (
        torch.tensor([[data.draw(ids) for _ in range(length)] for _ in range(batch)])
        for length in (source_length, target_length)
    )
    mask = torch.tensor([[data.draw(st.integers(0, 1)) for _ in range(source_length)] for _ in range(batch)])
    mask = mask.to(data.draw(st.sampled_from([torch.long, torch.bool, torch.float32, torch.int32])))
    with torch.no_grad():
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        hidden = torch.where(mask.bool(), source, (source + 7) % VOCABULARY)
        changed = model(input_ids=hidden, attention_mask=mask, decoder_input_ids=target).logits
        assert logits.isfinite().all()
        torch.testing.assert_close(changed, logits)
        for row in range(batch):
            visible = mask[row].bool()
            if not visible.any():
                continue  # alone, nothing would be left of it
            alone = model(input_ids=source[row : row + 1, visible], decoder_input_ids=target[row : row + 1]).logits
            torch.testing.assert_close(logits[row : row + 1], alone, rtol=1e-4, atol=1e-4)
