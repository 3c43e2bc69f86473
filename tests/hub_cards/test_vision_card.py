"""The card and the publication of a classifier of pictures: its own task, scores, examples and files."""

import re

import pytest
from huggingface_hub import ModelCard
from PIL import Image

from benchmarks.studies.pictures import image_processor
from reluformer.configuration.errors import UserError
from reluformer.hub_cards.bundle import collect_files
from reluformer.hub_cards.card import render_card
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.publishing import publish

from ..modeling_reluformer.vision_cases import vision_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A classifier as the plain Trainer and `save_pretrained` leave it, and its evaluation."""
    folder, model = tmp_path_factory.mktemp("vision"), vision_model()
    model.save_pretrained(folder)
    image_processor(model.config).save_pretrained(folder)
    return folder


def test_the_card_is_that_of_a_classifier(run):
    text = render_card(run, repo_id="someone/tiny")
    data = ModelCard(text).data
    assert data.pipeline_tag == "image-classification" and "arxiv:2309.08586" in data.tags
    for part in (
        'pipeline("image-classification", model="someone/tiny")',
        "AutoImageProcessor, AutoModelForImageClassification",
        "2 × 2 patches",
    ):
        assert part in text
    assert "translat" not in text.lower() and "tokenizer" not in text.lower()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_programs_of_a_card_run(channels, tmp_path, monkeypatch, capsys):
    """A pipeline makes every picture coloured, which a model of one channel refuses."""
    model = vision_model(num_channels=channels)
    model.save_pretrained(tmp_path / "model")
    image_processor(model.config).save_pretrained(tmp_path / "model")
    Image.new("RGB", (11, 5), "red").save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    text = render_card(tmp_path / "model", repo_id="me/tiny").replace("me/tiny", str(tmp_path / "model"))
    with_package, loading, alone = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    use = alone[alone.index("picture = ") :]
    for program in (with_package, f"from PIL import Image\n{loading}{use}"):
        exec(program, {})
        assert "LABEL_" in capsys.readouterr().out


def test_what_is_published_is_what_a_user_needs(run):
    names = {file.name for file in collect_files(ModelFolder(run), repo_id="someone/tiny")}
    assert {"config.json", "model.safetensors", "preprocessor_config.json", "modeling_vision.py", "README.md"} <= names
    assert not names & {"predictions.test.tsv", "recipe.yaml", "training_args.bin", "modeling_reluformer.py"}
    lines = []
    publish(run, "someone/tiny", dry_run=True, without_evaluation=True, tell=lines.append)
    assert lines[-1] == "dry run: nothing was uploaded"


def test_a_model_without_its_image_processor_is_refused(run):
    path = run / "preprocessor_config.json"
    content = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(UserError, match=r"holds no preprocessor_config\.json"):
            collect_files(ModelFolder(run), repo_id="someone/tiny")
    finally:
        path.write_bytes(content)
