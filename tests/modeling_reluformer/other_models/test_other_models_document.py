"""Every block of Python in docs/other_models.md runs, in order, in one process."""

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from ...conftest import VOCABULARY
from .foreign_cases import bert_config

DOCUMENT = Path(__file__).parents[3] / "docs" / "other_models.md"
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "fine", "bad", "day"]


@pytest.fixture
def small_bert(tmp_path, monkeypatch):
    """A tiny model in a folder of the name that the document gives."""
    folder = tmp_path / "google-bert" / "bert-base-uncased"
    BertForMaskedLM(bert_config()).save_pretrained(folder)
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    assert len(WORDS) <= VOCABULARY
    monkeypatch.chdir(tmp_path)


def test_every_block_runs(small_bert):
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{DOCUMENT.name}, block {number}", "exec"), names)
    assert names["model"].config._attn_implementation == names["classifier"].config._attn_implementation == "reluformer"
    assert names["model"].config.reluformer["gamma"] == 16.0
    assert names["classifier"].config.reluformer["regularization_weight"] == 0.01
    assert names["loss"].isfinite()
    query = names["classifier"].bert.encoder.layer[0].attention.self.query.weight
    assert query.grad.abs().sum() > 0
