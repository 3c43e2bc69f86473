"""The pictures of the first pages are drawn of the committed results, as wide as a page shows them."""

import pytest
from PIL import Image

from benchmarks import deciding_pictures
from benchmarks.measurement_file import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("draw", deciding_pictures.PICTURES, ids=lambda draw: draw.__name__)
def test_a_picture_is_that_of_the_committed_results(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(deciding_pictures, "IMAGES", tmp_path)
    drawn = Image.open(draw())
    committed = Image.open(ROOT / "docs/images" / f"{draw.__name__}.png")
    assert drawn.size[0] == 1200
    assert drawn.size == committed.size and drawn.tobytes() == committed.tobytes(), (
        "run python -m benchmarks.deciding_pictures"
    )
