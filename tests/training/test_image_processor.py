"""AutoImageProcessor and `pipeline` take the folder of a run, and what `save_pretrained` writes, with this package or without."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

from reluformer.commands.train import train_and_document as train
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.image_training import image_processor

from ..modeling_reluformer.vision_cases import CLASSES, vision_model
from .tiny_pictures import SIZE, write_recipe

WITHOUT_THE_PACKAGE = """
    import json, sys
    from PIL import Image
    from transformers import AutoImageProcessor, pipeline

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "reluformer":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Refuse())
    folder, picture = sys.argv[1:]
    assert AutoImageProcessor.from_pretrained(folder).size == {"height": 8, "width": 8}
    classify = pipeline("image-classification", model=folder, trust_remote_code=True)
    print(json.dumps([classify(picture), classify(Image.open(picture))]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = write_recipe(folder, evaluation={"splits": []})
    return train(parse_recipe(["--config", str(recipe), "--training.max_steps", "4"]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What a user of the plain classes saves."""
    folder, model = tmp_path_factory.mktemp("saved"), vision_model()
    model.save_pretrained(folder)
    image_processor(model.config).save_pretrained(folder)
    return folder


@pytest.fixture(params=["trained", "saved"])
def folder(request):
    return request.getfixturevalue(request.param)


def noise(mode: str, size: tuple[int, int] = (SIZE, SIZE)) -> Image.Image:
    """Of a picture's every value random, so that channels and rows cannot be mistaken."""
    channels = len(mode)
    values = np.random.default_rng(0).integers(0, 256, (*size[::-1], channels), dtype=np.uint8)
    return Image.fromarray(values[..., 0] if channels == 1 else values)


def scores(answers) -> dict[str, float]:
    return {answer["label"]: answer["score"] for answer in answers}


def by_hand(folder, picture: Image.Image) -> dict[str, float]:
    """Resized bilinearly where it has to be, values from -1 to 1, then the model's softmax."""
    coloured = picture.convert("RGB")
    resized = coloured if coloured.size == (SIZE, SIZE) else coloured.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.asarray(resized).astype(np.float32) / 127.5 - 1).permute(2, 0, 1)
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(values.unsqueeze(0)).logits.softmax(-1)[0]
    return {model.config.id2label[number]: float(score) for number, score in enumerate(found)}


def test_the_file_says_what_transformers_reads(folder):
    said = json.loads((folder / "preprocessor_config.json").read_text())
    assert said["image_processor_type"] == "ViTImageProcessor" and "auto_map" not in said
    assert said["size"] == {"height": SIZE, "width": SIZE}
    assert said["image_mean"] == said["image_std"] == [0.5, 0.5, 0.5] and said["do_convert_rgb"] is True


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA"])
@pytest.mark.parametrize("size", [(SIZE, SIZE), (11, 5)])
def test_pictures_and_paths_are_classified(folder, mode, size, tmp_path):
    picture = noise(mode, size)
    picture.save(tmp_path / "picture.png")
    expected = by_hand(folder, picture)
    classify = pipeline("image-classification", model=str(folder))
    for given in (picture, str(tmp_path / "picture.png")):
        assert scores(classify(given)) == pytest.approx(expected, abs=1e-5)
    if picture.has_transparency_data:
        return  # as in training, a pipeline reads it without its transparency; the processor alone lays it on white
    values = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")["pixel_values"]
    assert values.shape == (1, 3, SIZE, SIZE) and -1 <= values.min() < values.max() <= 1
    with torch.no_grad():
        logits = AutoModelForImageClassification.from_pretrained(folder).eval()(values).logits
    assert sorted(logits.softmax(-1)[0].tolist()) == pytest.approx(sorted(expected.values()), abs=1e-5)


def test_they_are_classified_without_the_package(folder, tmp_path):
    noise("L", (11, 5)).save(tmp_path / "picture.png")
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_THE_PACKAGE), str(folder), str(tmp_path / "picture.png")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
    )
    assert result.returncode == 0, result.stderr
    with_package = scores(pipeline("image-classification", model=str(folder))(str(tmp_path / "picture.png")))
    for answers in json.loads(result.stdout.splitlines()[-1]):
        assert scores(answers) == pytest.approx(with_package, abs=1e-6)


def test_a_model_of_one_channel_takes_grey_pictures(tmp_path):
    model = vision_model(num_channels=1)
    image_processor(model.config).save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    values = processor(noise("L", (11, 5)), return_tensors="pt")["pixel_values"]
    assert values.shape == (1, 1, SIZE, SIZE) and model(values).logits.shape == (1, CLASSES)
