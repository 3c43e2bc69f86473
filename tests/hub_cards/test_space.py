"""The page of `reluformer space`: its files, and what it does in a browser, where it asks nobody but this machine."""

import json
import shutil
import urllib.request
from functools import partial
from importlib import import_module
from urllib.parse import urlsplit

import pytest
import torch.hub

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.export.running import cache_names
from reluformer.hub_cards import space

from ..conftest import demo_tokenizer, tiny_model

TEXTS = ["einundzwanzig", "zwölf"]


@pytest.fixture
def without_export(monkeypatch, tmp_path):
    """A model "a" that is exported at once, and libraries of empty files."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "ort.wasm.min.mjs").touch()

    def export(model, target, **options):
        assert options == {"int8": True, "attentions": True}
        target.mkdir(parents=True)
        (target / "encoder_model.onnx").write_bytes(bytes(3_000_000))

    class Echo:
        moses, model = None, tiny_model()

        def __call__(self, texts):
            return texts

    echo = Echo()
    monkeypatch.setattr(space, "export", export)
    monkeypatch.setattr(space, "load_translator", lambda folder, num_beams: echo)
    monkeypatch.setattr(space, "cached_libraries", lambda: tmp_path / "libraries")
    return echo


def test_the_page_is_a_folder_of_static_files(without_export, tmp_path, capsys):
    page, model = tmp_path / "page", tmp_path / "a"
    model.mkdir()
    (model / "README.md").write_text("---\nlicense: cc-by-2.0\n---\n")
    given = ["--model", str(model), "--second", "you/a", "--output", str(page), "--example", "eins"]
    assert cli.main(["space", *given]) == 0
    assert f"hf upload ME/NAME {page} --repo-type space" in capsys.readouterr().out
    names = {path.relative_to(page).as_posix() for path in page.rglob("*") if path.is_file()}
    assert {path.name for path in space.STATIC.iterdir()} < names
    assert {"README.md", "libraries/ort.wasm.min.mjs", "models/a/page.json", "models/a-2/page.json"} < names
    described = json.loads((page / "page.json").read_text())
    assert described["examples"] == ["eins"]
    assert described["models"][0] | {"color": ""} == {
        "folder": "a", "name": "a", "first": "eins", "color": "",
        "about": "ReLU attention, γ = 16 · 2 + 2 layers of 4 heads · 3.0 MB",
    }  # fmt: skip
    assert "sdk: static\nlicense: cc-by-2.0" in (page / "README.md").read_text()
    assert (page / "models/a/README.md").is_file(), "the licence of a model goes with it"


def test_examples_are_short_sources_that_a_run_has_translated_or_those_of_the_card(tmp_path):
    assert space.examples_of(tmp_path) == []
    (tmp_path / "README.md").write_text("---\nwidget:\n- text: eins\n- text: drei\n---\n")
    assert space.examples_of(tmp_path) == ["eins", "drei"]
    lines = ["source\thypothesis\treference", *(f"{text}\tx\ty" for text in ("eins", "eins", "a" * 81, "zwei"))]
    (tmp_path / "translations.test.tsv").write_text("\n".join(lines) + "\n")
    assert space.examples_of(tmp_path) == ["eins", "zwei"]


def test_a_model_of_moses_text_is_refused(without_export, tmp_path):
    without_export.moses = object()
    with pytest.raises(UserError, match="me/a: was trained on text that Moses has tokenised"):
        space.write_page(["me/a"], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_another_archive_than_the_known_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "other.tgz").write_bytes(b"something else")
    open_other = partial(urllib.request.urlopen, (tmp_path / "other.tgz").as_uri())
    monkeypatch.setattr(torch.hub, "urlopen", lambda request: open_other())
    with pytest.raises(RuntimeError, match="invalid hash value"):
        space.cached_libraries()
    (tmp_path / "other.tgz").unlink()
    with pytest.raises(UserError, match=r"onnxruntime-web-.*\.tgz: cannot be fetched .*; the page needs it once"):
        space.cached_libraries()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with a small model, whose libraries are those of the cache: tests do not fetch."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    if not space.library_folder().is_dir():
        pytest.skip("the JavaScript libraries are not in the cache: `reluformer space` fetches them")
    folder = tmp_path_factory.mktemp("space")
    tokenizer = demo_tokenizer(50)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = tiny_model(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id, **ids)
    model.save_pretrained(folder / "small")
    tokenizer.save_pretrained(folder / "small")
    return space.write_page([folder / "small"], folder / "page", TEXTS)


@pytest.fixture(scope="module")
def shots():
    pytest.importorskip("selenium", reason="the browser is driven by the optional package selenium")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: chromium, chromium-driver)")
    return import_module("docs.screenshot")


@pytest.mark.slow
def test_the_page_in_a_browser(page, shots):
    translator = space.load_translator(page / "models" / "small", num_beams=1)
    with shots.served(page) as address, shots.headless_chromium() as browser:
        browser.get(address)
        shots.wait_until(browser, shots.SETTLED)

        def shown(text):
            """Types a text, waits for what the page makes of it, and returns translation and status."""
            browser.execute_script("document.querySelector('.translation').textContent = '…'")
            field = browser.find_element("id", "text")
            browser.execute_script(
                "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", field, text
            )
            shots.wait_until(browser, "return document.querySelector('.translation').textContent !== '…'")
            return [browser.find_element("class name", name).text for name in ("translation", "status")]

        for text in (*TEXTS, "<b>zwei</b>", "drei 🙂"):
            assert shown(text)[0] == translator([text])[0].strip()
        assert shown("") == ["", ""]
        translation, status = shown("eins " * 2_000)
        assert translation == "" and "tokens; the model reads 64 at most. Shorten it." in status
        assert shown("zwölf")[0]
        assert_map_is_of_the_graph(browser, translator, "zwölf")
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert hosts(browser) == {urlsplit(address).netloc}


def hosts(browser):
    """Of all requests of the browser."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in requests if urlsplit(url).scheme in ("http", "https", "ws", "wss")}


def assert_map_is_of_the_graph(browser, translator, text):
    """The map of layer 2, head 1 of cross-attention, to the rounding of another processor, and its zeros as they are."""
    buttons = browser.find_elements("css selector", ".heads tr:nth-child(2) button")
    buttons[0].click()
    of_row = "row => [...row.cells].slice(1).map(cell => +cell.dataset.weight)"
    found = browser.execute_script(f"return [...document.querySelectorAll('.map tbody tr')].map({of_row})")
    model, ids = translator.model, translator.tokenizer(text)["input_ids"]
    target = translator._generate([ids])[0][0, 1:].tolist()
    weights = cross_attention(model, ids, [model.config.decoder_start_token_id, *target[:-1]])
    assert len(found) == len(target)
    for row, wanted in zip(found, weights, strict=True):
        assert row == pytest.approx(list(wanted), abs=1e-3)
    assert [[weight == 0 for weight in row] for row in found] == [[weight == 0 for weight in row] for row in weights]


def cross_attention(model, source, target):
    """Weights (queries, keys) of layer 2, head 1, token by token, as the page: int8 depends on what is given at once."""
    import numpy as np

    mask = np.ones((1, len(source)), np.int64)
    encoded = model.encoder.session.run(
        ["last_hidden_state"], {"input_ids": np.array([source]), "attention_mask": mask}
    )[0]
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    past = cache_names("past_key_values", layers)
    state = dict.fromkeys(past, np.zeros((1, heads, 0, model.config.d_model // heads), np.float32))
    rows = []
    for token in target:
        feeds = {"input_ids": np.array([[token]]), "encoder_attention_mask": mask, "encoder_hidden_states": encoded}
        wanted = ["cross_attentions.1", *cache_names("present", layers)]
        weights, *present = model.session.run(wanted, feeds | state)
        state = dict(zip(past, present, strict=True))
        rows.append(weights[0, 0, 0])
    return rows
