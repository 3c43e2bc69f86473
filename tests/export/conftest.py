"""One exported model for all tests of this folder: exporting takes many seconds."""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from ..conftest import demo_tokenizer, tiny_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder with a tiny model, its tokenizer and settings for `generate`."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = demo_tokenizer(50)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["decoder_start_token_id"] = tokenizer.bos_token_id
    model = tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1, **ids)
    model.generation_config.max_new_tokens = 12
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory) -> Path:
    """The folder that `export` writes of it. All processes that run tests share it."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")
    from reluformer.export.exporting import export

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            export(trained, folder)
    return folder


@pytest.fixture
def graphs_at_hand(exported, monkeypatch):
    """The graphs of `trained` are copied where they would be written."""
    from reluformer.export import exporting

    def copy(model, folder, opset):
        for name in exporting.GRAPHS:
            shutil.copy(exported / name, folder)

    monkeypatch.setattr(exporting, "write_graphs", copy)
