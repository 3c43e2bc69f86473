"""benchmarks/speed/export.py on a model that is tiny and untrained, and the page of its figures."""

import json

import pytest

from reluformer.training.data.demo_corpus import demo_pairs

from ..conftest import demo_tokenizer, tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that cannot decide between two tokens, and lines to translate."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = demo_tokenizer(50)
    model = tiny_model(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pairs = demo_pairs(8, split="test", seed=0)
    for side in ("source", "target"):
        (folder / f"{side}.txt").write_text("".join(f"{text}\n" for text in pairs[side]), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_quick_run_measures_every_contender_and_makes_a_page(program, folder, tmp_path):
    output, page = tmp_path / "export.json", tmp_path / "EXPORT.md"
    files = ["--source", str(folder / "source.txt"), "--reference", str(folder / "target.txt")]
    assert program("speed.export").main(["--quick", "--model", str(folder), *files, "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert len(result["cells"]) == 4
    assert all(len(cell["times"]) == 6 and len(cell["speedups"]) == 5 for cell in result["cells"])
    greedy = result["translations"][0]
    assert greedy["equal"]["ReLUFormer, onnxruntime"] == 6 and greedy["different"] == []
    assert program("speed.export_tables").main(["--result", str(output), "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "A quick run" in text and "No greedy translation in float32 differs" in text
    assert "| ReLUFormer, onnxruntime / MarianMTModel, onnxruntime |" in text


def test_a_difference_is_told_with_both_scores(program):
    tables = program("speed.export_tables")
    benchmark = program("speed.export")
    logits = {benchmark.OURS: [3.25, 3.249999], benchmark.OURS_ONNX: [3.25, 3.250001]}
    found = {"sentence": 7, "token": 4, "candidates": ["▁ein", "▁eine"], "logits": logits}
    row = tables._difference_row(found)
    assert row == ("7", "4", "`▁ein` · `▁eine`", "3.250000 · 3.249999", "3.250000 · 3.250001")
