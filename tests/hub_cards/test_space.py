"""What the page says about a text: the model's own weights and figures, and sentences for what it cannot show."""

import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import RepoCard

from reluformer.analysis.collection import CROSS, DECODER_SELF, ENCODER_SELF
from reluformer.commands import space
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.space.observation import ObservedTranslator, Place, opening_place
from reluformer.hub_cards.space.views import heading_html, result_html
from reluformer.training.translation import Translator

from ..analysis.small_models import HEADS, LAYERS, POSITIONS, make_model, make_tokenizer, save_model

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "hub_cards" / "space"
TEXT = "ein hund im schnee"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def observe(tokenizer):
    """Makes the translator of a kind of model; its translations are short."""

    def make(kind: str = "reluformer", name: str = "small", **options) -> ObservedTranslator:
        translator = Translator(make_model(kind, len(tokenizer)), tokenizer, num_beams=1, max_new_tokens=6)
        return ObservedTranslator(translator, name, **options)

    return make


@pytest.mark.parametrize("kind", ["reluformer", "vanilla", "marian"])
def test_maps_and_figures_are_those_of_the_model(kind, observe, tokenizer):
    model = observe(kind)
    observed = model(TEXT)
    assert observed.translation == model.translator(TEXT)
    target = torch.tensor([model.translator.target_ids(TEXT)])
    network = model.translator.model
    network.set_attn_implementation("eager")
    with torch.no_grad():
        ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
        outputs = network(input_ids=ids, labels=target, output_attentions=True)
    attentions = {
        ENCODER_SELF: outputs.encoder_attentions,
        DECODER_SELF: outputs.decoder_attentions,
        CROSS: outputs.cross_attentions,
    }
    for module, layers in attentions.items():
        weights = layers[1][0].double()
        torch.testing.assert_close(observed.weights(Place(module, 2, 3)).double(), weights[2])
        torch.testing.assert_close(observed.weights(Place(module, 2)).double(), weights.mean(dim=0))
        visible = torch.ones(weights.shape[1:], dtype=torch.bool)
        visible = visible.tril() if module == DECODER_SELF else visible
        row = observed.figures[module, 2, 3]
        assert row["zero_fraction"] == pytest.approx(float((weights[2][visible] == 0).double().mean()))
        shares = weights[2] / weights[2].sum(dim=-1, keepdim=True).clamp(min=1e-30)
        assert row["entropy"] == pytest.approx(float(torch.special.entr(shares).sum(dim=-1).mean()), abs=1e-6)
    zeros = observed.figures[CROSS, 1, "all"]["zero_fraction"]
    assert (zeros > 0.1) if kind == "reluformer" else (zeros == 0)


def test_the_html_holds_the_figures_of_the_head_and_of_all_heads(observe):
    model = observe()
    observed = model(TEXT)
    html = result_html(model, observed, Place(CROSS, 2, 3))
    row, mean = observed.figures[CROSS, 2, 3], observed.figures[CROSS, 2, "all"]
    assert f"<dd>{row['zero_fraction']:.1%}</dd>" in html and f"<dd>{row['entropy']:.2f} nats</dd>" in html
    assert f"all heads {mean['zero_fraction']:.1%}" in html and f"all heads {mean['entropy']:.2f}" in html
    # Two tables of three modules: every head and the mean of each layer, and the chosen one in both.
    assert html.count("data-head=") == 2 * 3 * LAYERS * (HEADS + 1)
    assert html.count('aria-pressed="true"') == 2
    assert html.count('tabindex="-1"') == html.count("data-head=") // 2
    assert "Cross-attention, layer 2 of 2, head 3 of 4: Exact zeros" in html
    assert "ReLU attention" in heading_html(model) and "γ = 8" in heading_html(model)
    assert "softmax attention" in heading_html(observe("vanilla"))


def test_a_long_text_says_how_much_of_it_the_map_shows(observe):
    model = observe(map_tokens=3)
    observed = model(TEXT)
    html = result_html(model, observed, Place(ENCODER_SELF, 1, 1))
    source, target = observed.maps.lengths
    assert source > 3 and target > 3
    assert f"first 3 of {source} source tokens" in html and f"{target} target tokens" in html
    # The figures are not cut: they are those of the whole text.
    assert observed.figures == observe()(TEXT).figures


def test_text_is_never_read_as_html(observe):
    model = observe(name="<i>model</i>")
    model.translator.tokenizer = _Echo(model.translator.tokenizer, "<b>${1+1} {{value}}</b>")
    html = result_html(model, model("<script>alert(1)</script>"), Place(CROSS, 1, 1))
    assert "<b>" not in html and "&lt;b&gt;${1+1} {{value}}" in html and "<script" not in html
    assert "<i>" not in heading_html(model)


class _Echo:
    """A tokenizer that decodes everything to one text."""

    def __init__(self, tokenizer, text):
        self.tokenizer, self.text = tokenizer, text

    def __call__(self, *arguments, **options):
        return self.tokenizer(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def batch_decode(self, ids, **options):
        return [self.text]


def test_what_cannot_be_shown_is_said(observe):
    model = observe()
    for empty in ("", " \n\t "):
        with pytest.raises(UserError, match="no text yet"):
            model(empty)
    with pytest.raises(UserError, match=f"has [0-9]+ tokens, small takes {POSITIONS} at most: shorten it"):
        model("schnee " * POSITIONS)
    observed = model(TEXT)
    assert "small has 2 layers of 4 heads in cross-attention" in result_html(model, observed, Place(CROSS, 3, 1))
    if model.translator.tokenizer.eos_token_id not in model.translator.target_ids(TEXT):
        assert "limit of 6 tokens and was cut" in " ".join(observed.notes)
    with pytest.raises(UserError, match="map_tokens"):
        observe(map_tokens=0)


def test_negative_weights_have_a_map_and_no_figures(observe):
    model = observe("identity")
    observed = model(TEXT)
    html = result_html(model, observed, Place(CROSS, 1, 1))
    assert not observed.figures and "has negative weights" in html and "<img" in html and "<table" not in html


def test_the_command_refuses_in_one_line(tmp_path, monkeypatch, tokenizer):
    pytest.importorskip("gradio", reason="the page needs the optional package gradio")
    with pytest.raises(UserError, match="no such folder"):
        space.run(["--model", str(tmp_path / "nowhere")])
    folder = str(save_model(tmp_path / "model", "reluformer", tokenizer))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"--port: {port}"):
            space.run(["--model", folder, "--port", port])
    monkeypatch.setattr(space.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs the package 'gradio'"):
        space.run(["--model", folder])


def test_the_page_opens_on_the_head_with_most_zeros_that_is_not_dead(observe):
    row = {"module": CROSS, "layer": 1, "dead_row_fraction": 0.0}
    rows = [
        {**row, "head": "all", "zero_fraction": 0.95},
        {**row, "head": 1, "zero_fraction": 0.5},
        {**row, "head": 2, "zero_fraction": 0.7},
        {**row, "head": 3, "zero_fraction": 0.9, "dead_row_fraction": 0.1},
        {**row, "head": 1, "zero_fraction": 0.8, "module": ENCODER_SELF},
    ]
    text = SimpleNamespace(figures={(row["module"], row["layer"], row["head"]): row for row in rows})
    dense = observe("vanilla")(TEXT)
    assert opening_place([dense, text]) == Place(CROSS, 1, 2)
    assert opening_place([dense]) == opening_place([]) == Place(CROSS, 1)


def test_the_space_installs_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (SPACE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    needed = project["dependencies"] + project["optional-dependencies"]["train"]
    assert [line for line in lines if not line.startswith(("#", "--"))] == needed
    header = RepoCard.load(SPACE / "README.md").data.to_dict()
    assert (header["sdk"], header["app_file"]) == ("gradio", "app.py")
    assert len(header["short_description"]) <= 60  # the Hub refuses longer ones
