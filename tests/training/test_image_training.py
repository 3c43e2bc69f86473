"""Recipes of image classification: data of three kinds, a run and its folder, going on after an interruption, wrong input."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, pipeline

from reluformer import ReLUFormerVisionConfig
from reluformer.commands import main as cli
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import UserError
from reluformer.configuration.image_recipe import AugmentationConfig, ImageRecipe
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.data.image_batches import AugmentedPixelValues, ImageBatchSampler, PixelValues
from reluformer.training.data.images import ImageSplit, load_image_split
from reluformer.training.image_trainer import ImageTrainer, accuracies, hits
from reluformer.training.image_training import build_image_config, image_processor

from .interruptions import assert_gone_on_as, train_until_killed
from .tiny_pictures import NAMES, data_set, pictures, write_folders, write_idx, write_recipe, write_splits


@pytest.fixture
def recipe_file(tmp_path):
    return write_recipe(tmp_path)


def test_a_run_leaves_everything_in_its_folder_and_a_pipeline_takes_it(recipe_file, tmp_path, capsys):
    folder = train(load_recipe(recipe_file))
    printed = capsys.readouterr().out
    assert "train: 48 pictures of 3 classes" in printed
    assert printed.strip().splitlines()[-1].endswith(" % on 13 held-out images (test)")
    wanted = {"recipe.yaml", "model.safetensors", "preprocessor_config.json", "training_record.json", "README.md"}
    wanted |= {"evaluation.test.json", "predictions.test.tsv", "training_curve.png", "attention_map.png"}
    assert {path.name for path in folder.iterdir()} >= wanted
    record = json.loads((folder / "training_record.json").read_text())
    assert record["updates"] == 8 and record["averaged_checkpoints"] == ["checkpoint-6", "checkpoint-8"]
    assert 8 < record["images_per_update"] <= 10 and record["images_per_second"] > 0
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert {"cross_entropy", "attention_sum", "dead_row_fraction"} <= logs[0].keys()
    assert {"eval_accuracy", "eval_cross_entropy"} <= logs[-1].keys() | logs[-2].keys()

    evaluation = json.loads((folder / "evaluation.test.json").read_text())
    rows = [line.split("\t") for line in (folder / "predictions.test.tsv").read_text().splitlines()[1:]]
    right = [label == found for label, found in rows]
    assert evaluation["images"] == len(rows) == 13
    assert evaluation["accuracy"] == pytest.approx(100 * sum(right) / 13)
    assert "top_5_accuracy" not in evaluation and "top-5" not in printed  # of 3 classes
    assert f"| Accuracy (%) | {evaluation['accuracy']:.2f} |" in (folder / "README.md").read_text()

    classify = pipeline("image-classification", model=str(folder))
    found, _ = pictures(13, 2)  # the test split
    for number in (0, 5):
        Image.fromarray(found[number]).save(tmp_path / "picture.png")
        answers = classify(str(tmp_path / "picture.png"))
        assert answers[0]["label"] == NAMES[int(rows[number][1])]


def test_a_run_that_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(recipe_file, tmp_path, monkeypatch):
    whole = train(load_recipe(recipe_file))
    options = ["--config", str(recipe_file), "--training.output_dir", str(tmp_path / "broken")]
    train_until_killed(ImageTrainer, 7, options, monkeypatch)
    folder = train(parse_recipe(options))
    assert_gone_on_as(folder, whole, "checkpoint-6")


def test_it_learns(recipe_file, capsys):
    options = ["--training.max_steps", "60", "--training.eval_strategy", "no", "--averaging.last_checkpoints", "0"]
    arms = ["--model.attention_activation", "relu2", "--model.attention_alpha", "0.5", "--model.attention_gate", "true"]
    folder = train(parse_recipe(["--config", str(recipe_file), *options, *arms, "--model.attention_qk_norm", "false"]))
    assert json.loads((folder / "evaluation.test.json").read_text())["accuracy"] > 90
    config = json.loads((folder / "config.json").read_text())
    chosen = ("attention_activation", "attention_alpha", "attention_gate", "attention_qk_norm")
    assert [config[name] for name in chosen] == ["relu2", 0.5, True, False]
    capsys.readouterr()
    assert cli.main(["evaluate", "--run", str(folder), "--split", "validation"]) == 0
    assert "on 10 held-out images (validation)" in capsys.readouterr().out
    assert cli.main(["evaluate", "--run", str(folder), "--num_beams", "3"]) == 2
    assert "--num_beams: is for translations" in capsys.readouterr().err


def test_sigmoids_and_the_regulariser(recipe_file):
    options = ["--model.problem_type", "multi_label_classification", "--model.attention_scaling", "variance"]
    recipe = parse_recipe(["--config", str(recipe_file), *options, "--model.regularization_weight", "0.1"])
    folder = train(recipe)
    logs = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert logs[0]["loss"] == pytest.approx(logs[0]["cross_entropy"] + 0.1 * logs[0]["regularization"], rel=1e-3)


def test_files_folders_and_data_sets_give_the_same_pictures(recipe_file, tmp_path):
    write_folders(tmp_path / "folders")
    data_set().save_to_disk(tmp_path / "set")
    common = ["--config", str(recipe_file), *(f"--data.{split}=null" for split in ("train", "validation", "test"))]
    origins = [
        ["--config", str(recipe_file)],
        [*common, "--data.folder.path", str(tmp_path / "folders")],
        [*common, "--data.dataset.path", str(tmp_path / "set")],
    ]
    found = [load_image_split(parse_recipe(arguments).data, "test", (8, 8), 3) for arguments in origins]
    expected, labels = pictures(13, 2)
    for split in found:
        assert split.class_names == NAMES
        order = np.argsort(split.labels, kind="stable")  # folders are read class by class
        by_class = np.argsort(labels, kind="stable")
        pixels = split.pixels(order.tolist(), (8, 8), 3)
        assert (pixels == expected[by_class][..., None]).all() and pixels.shape == (13, 8, 8, 3)
    # and what the model gets is what ViT's image processor makes of the picture
    data = PixelValues(found[1], (4, 6), 3)
    config = ReLUFormerVisionConfig(image_size=(4, 6), patch_size=2, hidden_size=12)
    made = image_processor(config)(images=found[1].images([3], 3), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(data[3]["pixel_values"], made, atol=1e-5, rtol=0)


def test_the_image_processor_is_found_by_its_folder(recipe_file):
    folder = train(parse_recipe(["--config", str(recipe_file), "--training.max_steps", "4"]))
    assert AutoImageProcessor.from_pretrained(folder).size == {"height": 8, "width": 8}


def augmented(recipe_file, **fields) -> AugmentedPixelValues:
    split = load_image_split(load_recipe(recipe_file).data, "train", (8, 8), 3)
    return AugmentedPixelValues(split, (8, 8), 3, augmentation=AugmentationConfig(**fields), seed=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"random_crop_padding": 2},
        {"horizontal_flip": True},
        {"mixup_alpha": 0.5},
        {"random_resized_crop": [0.2, 0.6]},
    ],
    ids=str,
)
def test_augmentation_follows_from_seed_and_epoch(recipe_file, fields):
    data = augmented(recipe_file, **fields)
    keys = [(0, index) for index in range(20)]
    first, again, later = (data.__getitems__(each) for each in (keys, keys, [(1, index) for _, index in keys]))
    plain = augmented(recipe_file).__getitems__(keys)

    def stacked(items):
        return torch.stack([item["pixel_values"] for item in items])

    assert torch.equal(stacked(first), stacked(again))
    assert not torch.equal(stacked(first), stacked(later)) and not torch.equal(stacked(first), stacked(plain))
    assert stacked(first).shape == (20, 3, 8, 8) and stacked(first).abs().max() <= 1
    if "mixup_alpha" in fields:
        shares = torch.stack([item["labels"] for item in first])
        torch.testing.assert_close(shares.sum(1), torch.ones(20))
        assert ((shares > 0).sum(1) == 2).any()


def test_a_flip_mirrors_and_a_crop_shifts(recipe_file):
    keys = [(0, index) for index in range(30)]
    plain, flipped, moved = (
        torch.stack([item["pixel_values"] for item in augmented(recipe_file, **fields).__getitems__(keys)])
        for fields in ({}, {"horizontal_flip": True}, {"random_crop_padding": 1})
    )
    is_mirrored = [torch.equal(one, two.flip(-1)) for one, two in zip(flipped, plain, strict=True)]
    is_same = [torch.equal(one, two) for one, two in zip(flipped, plain, strict=True)]
    assert all(one or two for one, two in zip(is_mirrored, is_same, strict=True)) and 5 < sum(is_mirrored) < 25
    padded = torch.nn.functional.pad(plain, (1, 1, 1, 1), value=-1.0)
    windows = [padded[:, :, top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
    assert all(any(torch.equal(moved[n], window[n]) for window in windows) for n in range(30))
    data, found = augmented(recipe_file, random_crop_padding=1), set()
    for epoch in range(8):
        moved = [item["pixel_values"] for item in data.__getitems__([(epoch, index) for index in range(30)])]
        found |= {place for place, window in enumerate(windows) for n in range(30) if torch.equal(moved[n], window[n])}
    assert found == set(range(9))


def test_mixup_mixes_pictures_and_classes_by_the_same_shares():
    grey, labels = torch.tensor([10, 90, 250]), np.arange(30) % 3
    pixels = grey[labels].to(torch.uint8)[:, None, None].expand(30, 8, 8).numpy()
    split = ImageSplit("train", labels, NAMES, pixels)
    data = AugmentedPixelValues(split, (8, 8), 3, augmentation=AugmentationConfig(mixup_alpha=0.8), seed=5)
    items = data.__getitems__([(0, index) for index in range(30)])
    shares = torch.stack([item["labels"] for item in items])
    expected = (shares @ grey.float()) / 127.5 - 1
    assert ((shares > 0).sum(1) == 2).sum() > 5
    for item, value in zip(items, expected, strict=True):
        torch.testing.assert_close(item["pixel_values"], value.expand(3, 8, 8))


def test_the_plan_holds_every_picture_once():
    sampler = ImageBatchSampler(23, 5, seed=1)
    epochs = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3] and len(sampler) == 5
        assert {found for batch in batches for found, _ in batch} == {epoch}
        epochs.append([index for batch in batches for _, index in batch])
        assert sorted(epochs[-1]) == list(range(23))
    assert epochs[0] != epochs[1]


def test_accuracy_by_hand():
    logits = torch.tensor([[0.0, 1, 2, 3, 4, 5, 6], [6.0, 5, 4, 3, 2, 1, 0], [0.0, 0, 0, 0, 0, 0, 9]])
    assert hits(logits[:2], torch.tensor([6, 4])).tolist() == [[1, 1], [0, 1]]
    rows = hits(logits, torch.tensor([6, 6, -100]))
    assert rows.tolist() == [[1, 1], [0, 0], [-1, -1]]
    assert accuracies(rows) == {"accuracy": 50, "top_5_accuracy": 50}
    shares = torch.eye(7)[[6, 6, 0]]
    shares[2] = -100
    assert hits(logits, shares).tolist() == rows.tolist()
    assert hits(torch.tensor([[1.0, 2, 3, 4, 5, 0]]), torch.tensor([0])).tolist() == [[0, 1]]
    of_five = hits(logits[:2, :5], torch.tensor([4, 3]))  # all five are the highest five
    assert of_five.tolist() == [[1], [0]] and accuracies(of_five) == {"accuracy": 50}


def damaged(path, how):
    content = path.read_bytes()
    path.write_bytes({"short": content[:-3], "text": b"hello, this is no picture", "empty": b""}[how])


@pytest.mark.parametrize(
    ("how", "ending", "named"),
    [
        ("short", "", "the file is damaged, get it anew"),
        ("text", "", "is no IDX file"),
        ("empty", "", "is no IDX file"),
        ("short", ".gz", "cannot be read as gzip"),
        ("text", ".gz", "cannot be read as gzip"),
    ],
)
def test_damaged_files_are_refused_in_one_line(how, ending, named, tmp_path, capsys):
    data = write_splits(tmp_path, ending)
    path = write_recipe(tmp_path, data={**data, "class_names": NAMES})
    damaged(tmp_path / f"test-images{ending}", how)
    assert cli.main(["train", "--config", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert named in said and "test-images" in said and "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data.test.images", "nowhere"], "nowhere: no such file; give the path of an IDX file"),
        (
            ["--data.test.images", "nowhere", "--data.homepage", "https://a.example"],
            "the pictures are to be had at https://a.example",
        ),
        (["--model.patch_size", "3"], "patch_size=3 does not divide image_size=8"),
        (["--model.image_size", "16"], "holds pictures of 8 × 8 pixels, model.image_size is 16 × 16"),
        (["--model.num_channels", "2"], "model.num_channels: 2"),
        (["--data.class_names", "[a, b]"], "holds the class 2, and there are the names of 2 classes"),
        (["--data.class_names", "[a, b, a]"], "names a class twice"),
        (["--model.num_labels", "3"], "model.num_labels: follows from the data"),
        (["--model.problem_type", "regression"], "has no classes"),
        (["--model.presett", "relu_vit"], "presett"),
        (["--augmentation.mixup_alpha", "-1"], "mixup_alpha"),
        (["--augmentation.random_resized_crop", "[0.5]"], "such as [0.05, 1.0]"),
        (["--training.label_smoothing_factor", "0.1"], "label_smoothing_factor"),
        (["--data.folder.path", "x"], "exactly one of"),
        (["--data.validation", "null"], "no validation split"),
        (["--evaluation.splits", "[dev]"], "'dev'"),
        (["--tokenizer.vocab_size", "3"], "tokenizer"),
    ],
)
def test_wrong_recipes_are_refused_in_one_line(recipe_file, arguments, named, capsys):
    assert cli.main(["train", "--config", str(recipe_file), *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert named in said and "\n" not in said


def test_labels_and_pictures_that_are_swapped_are_named(tmp_path):
    data = write_splits(tmp_path)
    data["train"] = {"images": data["train"]["labels"], "labels": data["train"]["images"]}
    recipe = load_recipe(write_recipe(tmp_path, data={**data, "class_names": NAMES}))
    with pytest.raises(UserError, match="pictures and labels are two files"):
        train(recipe)


def test_counts_that_differ_are_named(tmp_path):
    data = write_splits(tmp_path)
    write_idx(tmp_path / "train-labels", np.zeros(3, np.uint8))
    recipe = load_recipe(write_recipe(tmp_path, data={**data, "class_names": NAMES}))
    write_idx(tmp_path / "train-labels", np.zeros(3, np.uint8))
    with pytest.raises(UserError, match=r"48 pictures, .* 3 labels"):
        train(recipe)


def test_a_task_that_does_not_exist_is_refused(recipe_file, tmp_path, capsys):
    text = recipe_file.read_text().replace("task: image_classification", "task: painting")
    (tmp_path / "other.yaml").write_text(text)
    assert cli.main(["train", "--config", str(tmp_path / "other.yaml")]) == 2
    assert "task: 'painting' is unknown; choose one of translation, image_classification" in capsys.readouterr().err


def test_the_recipes_of_the_paper():
    for name, patches in {"imagenet1k_vit_s32": 49, "imagenet1k_vit_s16": 196, "imagenet1k_vit_s8": 784}.items():
        recipe = load_recipe(name)
        assert isinstance(recipe, ImageRecipe)
        config = build_image_config(recipe, [str(number) for number in range(1000)])
        rows, columns = config.patch_grid
        assert rows * columns == patches and config.hidden_size == 384 and config.num_labels == 1000
        assert recipe.training.num_train_epochs == 300
        training = recipe.training
        assert training.per_device_train_batch_size * training.gradient_accumulation_steps * 8 == 4096


@pytest.mark.slow
def test_a_recipe_of_the_paper_makes_an_update(tmp_path):
    """On small pictures in place of ImageNet's, which the recipe enlarges."""
    data_set().save_to_disk(tmp_path / "set")
    changes = {
        "data.dataset.path": str(tmp_path / "set"),
        "training.output_dir": str(tmp_path / "run"),
        "training.max_steps": "1",
        "training.per_device_train_batch_size": "4",
        "training.eval_strategy": "no",
        "training.save_strategy": "no",
        "training.dataloader_num_workers": "2",
        "training.use_cpu": "true",
        "evaluation.batch_size": "5",
    }
    options = [word for key, value in changes.items() for word in (f"--{key}", value)]
    folder = train(parse_recipe(["--config", "imagenet1k_vit_s32", *options]))
    config = json.loads((folder / "config.json").read_text())
    assert (config["pooling"], config["pooler_act"], config["problem_type"]) == (
        *("cls", "tanh"),
        "multi_label_classification",
    )
    assert json.loads((folder / "evaluation.validation.json").read_text())["images"] == 10


def test_an_evaluation_reads_the_logits_alone_where_the_loss_has_an_l1_term(recipe_file):
    folder = train(parse_recipe(["--config", str(recipe_file), "--model.ffn_l1_weight", "0.001"]))
    evaluations = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    assert any(entry.get("eval_ffn_l1", 0) > 0 for entry in evaluations)
    assert any("eval_accuracy" in entry for entry in evaluations)
