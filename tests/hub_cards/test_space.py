"""The page of `reluformer space`: its files, and what it does in a browser, where it asks nobody but this machine.

What its scripts compute is in test_page_scripts.py.
"""

import hashlib
import io
import json
import random
import re
import shutil
import tarfile
import urllib.request
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch
import torch.hub
from huggingface_hub import EvalResult, ModelCardData, metadata_load

from reluformer.commands import main as cli
from reluformer.commands.space import page_server
from reluformer.configuration.errors import UserError
from reluformer.export.running import cache_names
from reluformer.hub_cards import space
from reluformer.hub_cards.card import render_card
from reluformer.translating.shipped import FIGURES_FILE, MODELS, shipped_models

from ..conftest import demo_tokenizer, tiny_model
from .model_folders import change, write_documented_run

# What the model of the page has learned, so that its translations differ and end.
KNOWN = {
    **{"einundzwanzig": "a", "zwölf": "b", "<b>zwei</b>": "two", "drei 🙂": "three", "Elf.": "eleven", "Drei!": "c"},
    **{
        "Einundzwanzig.": "twenty-one.",
        "Zwölf?": "twelve?",
        "<B>Drei</B>!": "d",
        "Zwei 🙂.": "two.",
        "„Vier.“": "four",
    },
    **{"Dreizehn!": "thirteen", "Zwölf.": "twelve"},
}
TEXTS = ["einundzwanzig", "zwölf"]
NAME = "de: en#1 50%"  # what an address and YAML read as their own
DOUBTFUL_BELOW = -0.2  # what the model has learned is likelier


@pytest.fixture
def without_export(monkeypatch, tmp_path):
    """A model "a" that is exported at once, and libraries of empty files."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "ort.wasm.min.mjs").touch()

    def export(model, target, **options):
        assert options == {"int8": True, "attentions": True}
        target.mkdir(parents=True)
        (target / "encoder_model.onnx").write_bytes(bytes(3_000_000))
        if Echo.is_fast:
            (target / "tokenizer.json").touch()

    class Echo:
        is_fast, moses, model = True, None, tiny_model()
        tokenizer = SimpleNamespace(init_kwargs={"source_language": "de", "target_language": "en"})

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
        "folder": "a", "name": "a", "first": "eins", "color": "", "source": "de", "target": "en", "unit": "sentence",
        "about": "ReLU attention, γ = 16 · 2 + 2 layers of 4 heads · 3.0 MB",
        "quality": "no score of it is known here",
        "doubt": None,
    }  # fmt: skip
    config, settings = without_export.model.config, json.loads((page / "models/a/page.json").read_text())
    assert settings["heads"] * settings["headSize"] == config.d_model and settings["heads"] > 1
    assert (settings["start"], settings["end"]) == (config.decoder_start_token_id, config.eos_token_id)
    assert "sdk: static\nlicense:\n- cc-by-2.0\n- apache-2.0\n" in (page / "README.md").read_text()
    assert (page / "models/a/README.md").is_file(), "the licence of a model goes with it"


@pytest.mark.parametrize("name", ["de: en#1", "- [x]", "'a' & \"b\"", "`x`", "*", "yes", "1e3"])
def test_the_name_of_a_folder_is_no_yaml(name, without_export, tmp_path):
    (tmp_path / name).mkdir()
    page = space.write_page([tmp_path / name], tmp_path / "page")
    assert metadata_load(page / "README.md") == {
        "title": name,
        "emoji": "🔎",
        "sdk": "static",
        "license": "apache-2.0",
        "short_description": "Translates in your browser, and shows what each head reads",
    }


def test_a_model_of_documents_is_given_whole_texts(without_export, tmp_path):
    without_export.tokenizer.init_kwargs |= {"text_unit": "document"}
    page = space.write_page(["me/a"], tmp_path / "page")
    assert json.loads((page / "page.json").read_text())["models"][0]["unit"] == "document"


def test_the_quality_of_a_model_that_comes_with_the_package_is_that_of_its_figures():
    for name in shipped_models():
        figures = json.loads((MODELS / name / FIGURES_FILE).read_text())
        scores = {(each["system"], each["test"]): each["bleu"] for each in figures["scores"]}
        of_page = "this model, 8-bit ONNX, greedy"
        assert space.quality_of(name) == (
            "everyday sentences, often wrong: "
            f"BLEU {scores[of_page, 'Tatoeba']:.0f} on sentences like those it was trained on, "
            f"{scores[of_page, 'Multi30k']:.0f} on captions"
        )


def test_the_page_tells_what_the_folder_of_the_model_says_of_its_quality(without_export, tmp_path):
    """The exported copy has no figures."""
    (tmp_path / "a").mkdir()
    shutil.copy(MODELS / shipped_models()[0] / FIGURES_FILE, tmp_path / "a")
    page = space.write_page([tmp_path / "a"], tmp_path / "page")
    described = json.loads((page / "page.json").read_text(encoding="utf-8"))["models"][0]
    assert described["quality"] == space.quality_of(tmp_path / "a") and "BLEU" in described["quality"]
    assert described["doubt"] == space.doubt_of(tmp_path / "a") and described["doubt"] is not None


def test_the_threshold_of_doubt_is_that_of_the_figures(tmp_path):
    assert space.doubt_of("me/on-the-hub") is space.doubt_of(tmp_path) is None
    measured = {"threshold": -1.5, "Tatoeba": {"translations": 50, "bad": 20, "doubtful": 8, "doubtful_and_bad": 5}}
    for doubt, told in (
        (measured, {"threshold": -1.5, "share": 0.625}),
        (measured | {"threshold": None}, None),
    ):
        (tmp_path / FIGURES_FILE).write_text(json.dumps({"doubt": doubt}))
        assert space.doubt_of(tmp_path) == told


def test_the_quality_of_a_run_is_the_headline_of_its_card(tmp_path):
    assert space.quality_of("me/on-the-hub") == space.quality_of(tmp_path) == "no score of it is known here"
    run = write_documented_run(tmp_path)

    def quality(score, split="test"):
        change(run / "evaluation.test.json", bleu=score, split=split)
        (run / "README.md").write_text(render_card(run), encoding="utf-8")
        return space.quality_of(run)

    assert quality(12.3) == "often wrong: BLEU (sacreBLEU) 12 on little test (test)"
    assert quality(98.7) == "BLEU (sacreBLEU) 99 on little test (test)"
    shutil.copy(run / "evaluation.test.json", run / "evaluation.dev.json")
    change(run / "evaluation.dev.json", bleu=11.0, split="dev")
    assert quality(22.2) == "often wrong: BLEU (sacreBLEU) 22 on little test (test)"
    other = EvalResult("translation", "test", "little test", metric_type="loss", metric_value=2.0, metric_name="Loss")
    (run / "README.md").write_text(f"---\n{ModelCardData(model_name='a', eval_results=[other])}\n---\n")
    assert space.quality_of(run) == "Loss 2 on little test"
    (run / "README.md").write_text("---\nlicense: mit\n---\n")
    assert space.quality_of(run) == "no score of it is known here"


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


def test_a_model_whose_tokenizer_the_page_cannot_read_is_refused(without_export, tmp_path, monkeypatch):
    monkeypatch.setattr(type(without_export), "is_fast", False)
    with pytest.raises(UserError, match=r"me/a: its tokenizer has no tokenizer\.json"):
        space.write_page(["me/a"], tmp_path / "page")


def test_another_archive_than_the_known_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "other.tgz").write_bytes(b"something else")
    open_other = partial(urllib.request.urlopen, (tmp_path / "other.tgz").as_uri())
    monkeypatch.setattr(torch.hub, "urlopen", lambda request: open_other())
    with pytest.raises(UserError, match=r"cannot be fetched .*invalid hash value"):
        space.cached_libraries()
    (tmp_path / "other.tgz").unlink()
    with pytest.raises(UserError, match=r"onnxruntime-web-.*\.tgz: cannot be fetched .*; the page needs it once"):
        space.cached_libraries()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_of_an_archive_only_what_the_page_needs_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = tmp_path / "runtime.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("dist/run.js", "README.md"):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(name)
            packed.addfile(member, io.BytesIO(name.encode()))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(space, "LIBRARIES", {"runtime/-/runtime-1.tgz": (sha256, ("dist/run.js",))})
    fetch = urllib.request.urlopen
    monkeypatch.setattr(torch.hub, "urlopen", lambda request: fetch(archive.as_uri()))
    folder = space.cached_libraries()
    assert folder == space.library_folder() and folder.name == "runtime-1"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"run.js": "dist/run.js"}


def test_a_page_is_served_to_this_machine_alone_and_a_port_that_is_taken_is_told(tmp_path):
    with page_server(tmp_path, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(UserError, match=f"--port: {server.server_port} cannot be listened on"):
            page_server(tmp_path, server.server_port)


def learned(tokenizer):
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.bos_token_id}
    model = tiny_model(**sizes, **ids, dropout=0.0, attention_dropout=0.0).train()
    sources, targets = (tokenizer(list(side), padding=True, return_tensors="pt") for side in (KNOWN, KNOWN.values()))
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # at a constant rate, rounding decides whether the last update is a good one, and processors round differently
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=200)
    for _ in range(200):
        optimizer.zero_grad()
        model(**sources, labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with a small model, whose libraries are those of the cache: tests do not fetch."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    if not space.library_folder().is_dir():
        pytest.skip("the JavaScript libraries are not in the cache: `reluformer space` fetches them")
    folder = tmp_path_factory.mktemp("space")
    tokenizer = demo_tokenizer(50)
    model = learned(tokenizer)
    model.save_pretrained(folder / NAME)
    tokenizer.save_pretrained(folder / NAME)
    page = space.write_page([folder / NAME], folder / "page", TEXTS)
    described = json.loads((page / "page.json").read_text())
    described["models"][0]["doubt"] = {"threshold": DOUBTFUL_BELOW, "share": 0.625}
    (page / "page.json").write_text(json.dumps(described))
    return page


@pytest.fixture(scope="module")
def shots():
    pytest.importorskip("selenium", reason="the browser is driven by the optional package selenium")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: chromium, chromium-driver)")
    return import_module("docs.screenshot")


# `window.worker` is the worker of the page's model.
KEEP_WORKER = """
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    window.worker = this;
  }
};
"""
# Leaves a mark in the translation, which goes when the text is laid out anew; puts a text and the cursor into the
# field.
TYPE = """
document.querySelector('.translation').append(Object.assign(document.createElement('i'), { className: 'old' }));
const field = document.getElementById('text');
field.focus();
field.value = arguments[0];
field.setSelectionRange(arguments[1], arguments[1]);
field.dispatchEvent(new Event('input'));
"""
SETTLED = """
const find = (selector) => document.querySelector(selector);
if (find('.old') || find('.pending') || !find('.progress').hidden) return null;
const texts = ['.translation', '.status', '.of'].map((selector) => find(selector).textContent);
return texts.concat(find('.attention').hidden);
"""


class Reader:
    """Types into the page, and sees what becomes of it."""

    def __init__(self, browser, shots):
        self.browser, self.shots = browser, shots

    def types(self, text, position=None):
        self.browser.execute_script(TYPE, text, len(text) if position is None else position)

    def sees(self):
        """Translation, status, the sentence that the map is of, and whether there is no map, once all is computed."""
        self.shots.wait_until(self.browser, SETTLED)
        return self.browser.execute_script(SETTLED)

    def marked(self):
        return [each.text for each in self.browser.find_elements("class name", "current")]


@pytest.fixture(scope="module")
def reader(page, shots):
    with shots.served(page) as address, shots.headless_chromium() as browser:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": KEEP_WORKER})
        browser.get(address)
        shots.wait_until(browser, shots.SETTLED)
        yield Reader(browser, shots)
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert hosts(browser) == {urlsplit(address).netloc}


@pytest.fixture(scope="module")
def translator(page):
    return space.load_translator(page / "models" / NAME, num_beams=1)


@pytest.fixture
def translated(translator):
    def translate(sentence):
        translation = translator([sentence])[0].strip()
        assert translation == KNOWN[sentence], "with 8-bit weights, too"
        return translation

    return translate


@pytest.mark.slow
def test_the_page_translates_every_sentence_of_a_text(reader, translated):
    field = reader.browser.find_element("css selector", "#text:lang(de)")
    assert field.accessible_name == "Text to translate, in German"
    quality = reader.browser.find_element("class name", "quality").text
    assert quality == "German → English, no score of it is known here."
    for text in (*TEXTS, "<b>zwei</b>", "drei 🙂"):
        reader.types(text)
        assert reader.sees() == [translated(text), "", "", False]
    assert reader.browser.find_element("class name", "translation").get_attribute("aria-busy") == "false"
    sentences = ["Einundzwanzig.", "Zwölf?", "<B>Drei</B>!", "Zwei 🙂.", "„Vier.“"]
    for divide in (" ", "\n", "\n\n  ", "\r\n"):
        random.shuffle(sentences)
        reader.types(divide.join(sentences) + "\n")
        translation, status, of, _ = reader.sees()
        shown = divide.replace("\r\n", "\n")  # so a field holds it
        assert translation == shown.join(map(translated, sentences)) + "\n"
        assert (status, of) == ("", f"Sentence 5 of 5: {sentences[-1]}")
    for nothing in ("", " \n\n", "🙂 …\n"):
        reader.types(nothing)
        assert reader.sees() == [nothing, "", of, True]


@pytest.mark.slow
def test_a_doubtful_translation_is_marked_and_how_sure_the_model_is_stands_below(reader, page):
    scored = space.load_translator(page / "models" / NAME, num_beams=1, scores=True)
    unknown, known = "Vierzig, fünfzig.", "Zwölf?"
    sure = [scored(sentence).log_probability for sentence in (unknown, known)]
    assert sure[0] < DOUBTFUL_BELOW < sure[1]
    below = "below −0.20, 63 % of such translations were bad."

    def said(text, position):
        reader.types(text, position)
        reader.sees()
        return reader.browser.find_element("class name", "doubt").text

    def written(log_probability):
        return f"{log_probability:.2f}".replace("-", "−")

    of = "Mean log-probability of a token of sentence {} of 2: {}. 1 of 2 translations are doubtful (dotted): " + below
    assert said(f"{unknown} {known}", 0) == of.format(1, written(sure[0]))
    marks = reader.browser.find_elements("css selector", ".translation .doubtful")
    assert [mark.text for mark in marks] == [scored(unknown).text]
    assert said(f"{unknown} {known}", len(unknown) + 3) == of.format(2, written(sure[1]))
    assert said(unknown, 0) == f"Mean log-probability of a token: {written(sure[0])}. It is doubtful: {below}"
    assert said(known, 0) == f"Mean log-probability of a token: {written(sure[1])}."
    assert said("", 0) == ""


@pytest.mark.slow
def test_the_map_is_that_of_the_sentence_under_the_cursor(reader, translator, translated):
    sentences = ["Einundzwanzig.", "Zwölf?", "Dreizehn!"]
    text = " ".join(sentences)
    reader.types(text)
    assert reader.sees()[2] == "Sentence 3 of 3: Dreizehn!"
    assert_map_is_of_the_graph(reader.browser, translator, "Dreizehn!")
    for place, sentence in reversed(list(enumerate(sentences))):
        start = text.index(sentence) + random.randrange(len(sentence))
        reader.browser.execute_script("document.getElementById('text').setSelectionRange(...arguments)", start, start)
        of = f"Sentence {place + 1} of 3: {sentence}"
        reader.shots.wait_until(reader.browser, f"return document.querySelector('.of').textContent === {of!r}")
        assert reader.marked() == [translated(sentence)]
        assert_map_is_of_the_graph(reader.browser, translator, sentence)
    reader.browser.find_elements("css selector", ".translation span")[1].click()
    reader.shots.wait_until(reader.browser, "return document.querySelector('.of').textContent.includes('Zwölf')")
    selected = "const { value, selectionStart: start, selectionEnd: end } = document.getElementById('text');"
    assert reader.browser.execute_script(f"{selected} return value.slice(start, end)") == "Zwölf?"


@pytest.mark.slow
def test_what_cannot_be_translated_is_said_and_the_rest_is_there(reader, translated):
    reader.types("eins " * 2_000)
    translation, status, _, is_hidden = reader.sees()
    assert (translation, is_hidden) == ("[not translated] ", True)
    tokens = r"it has [\d,]+ tokens; the model reads 64 at most\. Shorten it\."
    assert re.fullmatch(rf"The sentence was not translated: {tokens}", status)
    long = "Eins " * 100 + "zwei."
    reader.types(f"Zwölf. {long}\n{long} Drei! {'Acht ' * 99}", 0)
    translation, status, of, is_hidden = reader.sees()
    parts = translated("Zwölf."), translated("Drei!")
    assert translation == "{} [not translated]\n[not translated] {} [not translated] ".format(*parts)
    assert re.fullmatch(rf"Sentence 2 of 5 was not translated: {tokens} So it is with 2 more\.", status)
    assert (of, is_hidden) == ("Sentence 1 of 5: Zwölf.", False)


@pytest.mark.slow
def test_a_newer_text_ends_the_work_on_an_older_one_and_progress_is_shown(reader, translator, translated):
    words = [f"{random.choice(['Eins', 'Zwei', 'Drei'])} {'acht ' * (index % 7)}{100 + index}." for index in range(300)]
    reader.types(" ".join(words))
    progress = "const part = document.querySelector('.progress'); return part.hidden ? null : part.innerText.trim()"
    reader.shots.wait_until(reader.browser, progress)
    assert re.fullmatch(r"Translating: \d+ of 300", reader.browser.execute_script(progress))
    # an answer to an older question, which the worker had sent before it heard of this one
    late = "worker.onmessage({ data: { id: -1, result: { text: 'late', cut: false } } });"
    state = "return [document.querySelector('.progress').hidden, document.querySelector('.translation').textContent]"
    is_done, translation = reader.browser.execute_script(f"{late} {state}")
    assert not is_done and "late" not in translation
    reader.types("Zwölf. Elf.", 0)
    assert reader.sees()[:3] == [f"{translated('Zwölf.')} {translated('Elf.')}", "", "Sentence 1 of 2: Zwölf."]
    assert_map_is_of_the_graph(reader.browser, translator, "Zwölf.")


@pytest.mark.slow
def test_a_map_shows_the_first_60_tokens(reader, translator):
    text = "eins"
    while len(translator.tokenizer(text)["input_ids"]) <= 61:
        text += random.choice([" a", " b", " c"])
    reader.types(text)
    assert not reader.sees()[3]
    reader.browser.find_element("css selector", "[value=encoder]").click()
    size = "const rows = [...document.querySelectorAll('.map tbody tr')]; return rows.map(row => row.cells.length - 1)"
    assert reader.browser.execute_script(size) == [60] * 60
    assert reader.browser.find_element("class name", "reading").text.endswith("is exactly 0. The first 60 tokens.")
    reader.browser.find_element("css selector", "[value=cross]").click()


def hosts(browser):
    """Of all requests of the browser."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in requests if urlsplit(url).scheme in ("http", "https", "ws", "wss")}


def assert_map_is_of_the_graph(browser, translator, text):
    """The map of layer 2, head 1 of cross-attention, to the rounding of another processor, and its zeros as they
    are."""
    buttons = browser.find_elements("css selector", ".heads tr:nth-child(2) button")
    buttons[0].click()
    of_row = "row => [...row.cells].slice(1).map(cell => +cell.dataset.weight)"
    found = browser.execute_script(f"return [...document.querySelectorAll('.map tbody tr')].map({of_row})")
    model, ids = translator.model, translator.tokenizer(text)["input_ids"]
    target = translator._generate([ids], translator.options, None)[0][0, 1:].tolist()
    weights = cross_attention(model, ids, [model.config.decoder_start_token_id, *target[:-1]])
    assert len(found) == len(target)
    for row, wanted in zip(found, weights, strict=True):
        assert row == pytest.approx(list(wanted), abs=1e-3)
    assert [[weight == 0 for weight in row] for row in found] == [[weight == 0 for weight in row] for row in weights]


def cross_attention(model, source, target):
    """Weights (queries, keys) of layer 2, head 1, token by token, as the page: int8 depends on what is given at
    once."""
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
