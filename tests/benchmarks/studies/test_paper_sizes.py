"""The papers' own sizes, tried on a CPU: one row whole, and the amounts of all of them."""

import json

import pytest

from benchmarks.studies import paper_sizes
from benchmarks.studies.parser import load_rows


def test_a_row_makes_two_updates_and_has_its_line(tmp_path):
    assert paper_sizes.main(["--quick", "--output", str(tmp_path / "sizes.json")]) == 0
    result = json.loads((tmp_path / "sizes.json").read_text(encoding="utf-8"))
    (row,) = result["rows"]
    assert row["parameters"] > 3e7 and row["losses"][1] < row["losses"][0]
    # weights, gradients and two moments in float32 are the least; an eighth of the batch holds less beside them
    assert 16 * row["parameters"] < row["memory"]["8"] < row["memory"]["1"]
    # 6 multiplications and additions of a parameter and token, on both sides of a pair; the embedding has none
    tokens = 2 * paper_sizes.SENTENCE * row["items"]["update"] * row["items"]["updates"]
    assert 1 < row["flops"] / (6 * tokens * row["parameters"] / 2) < 2 and row["operations"] > 1000
    line = paper_sizes.paper_sizes_table(result).splitlines()[2]
    assert "--size paper --only reluformer`" in line and line.endswith("never run |")


@pytest.mark.parametrize(
    ("name", "length", "items"),
    [
        ("reluformer", 32, (256, 100_000, 256)),
        ("documents_relu_2048", 2048, (4, 100_000, 4)),
        ("vit_relu_alpha_1.0_L49", 49, (4096, 93_835, 512)),
        ("vit_relu_alpha_1.0_L784", 784, (4096, 93_835, 256)),
        ("lm_free_relu", 128, (512, 32_000, 128)),
    ],
)
def test_the_items_of_an_update(name, length, items):
    recipe = paper_sizes.parsed(load_rows("paper").rows[name], 1)
    assert paper_sizes.amounts(recipe, length) == items
