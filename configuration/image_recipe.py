"""What a recipe of `task: image_classification` says: typed dataclasses, one for each of its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from reluformer.configuration.image_recipe_checks import check_image_recipe
from reluformer.configuration.recipe_base import RowBatches
from reluformer.configuration.splits import SPLITS


@dataclass(kw_only=True)
class IdxFiles:
    """Two files of the form of MNIST (IDX), plain or .gz: picture n has label n.

    Args:
        images: path of the pictures, bytes of the shape (pictures, height, width).
        labels: path of the labels, bytes of the shape (pictures,).
    """

    images: str
    labels: str


@dataclass(kw_only=True)
class FolderConfig:
    """A folder with a folder for each split, in which each class has a folder of picture files.

    Args:
        path: of the folder.
        train: name of the training split's folder.
        validation: of the validation split's; null: none.
        test: of the test split's; null: none.
    """

    path: str
    train: str = "train"
    validation: str | None = None
    test: str | None = "test"


@dataclass(kw_only=True)
class ImageDatasetConfig:
    """A set that the `datasets` library loads, with a column of pictures and one of classes.

    Args:
        path: id on the Hub, or a local folder.
        name: configuration of the set.
        revision: branch, tag or commit on the Hub; name a commit to make a result reproducible.
        image_column: column that holds the pictures.
        label_column: column that holds the classes.
        train: name of the training split; slices such as `train[:90%]` work.
        validation: of the validation split; null: none.
        test: of the test split; null: none.
    """

    path: str
    name: str | None = None
    revision: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    train: str = "train"
    validation: str | None = None
    test: str | None = "test"


@dataclass(kw_only=True)
class ImageDataConfig:
    """Where the pictures come from: the splits as IDX files, or `folder`, or `dataset`; exactly one of them.

    Args:
        train: files of the training split.
        validation: files of the validation split.
        test: files of the test split.
        folder: folders of picture files.
        dataset: a set of the `datasets` library.
        class_names: names of the classes in the order of their numbers, which IDX files do not tell; null: what the folder or
            the set says, else the numbers.
        homepage: where the pictures are to be had, for the error if they are missing.
    """

    train: IdxFiles | None = None
    validation: IdxFiles | None = None
    test: IdxFiles | None = None
    folder: FolderConfig | None = None
    dataset: ImageDatasetConfig | None = None
    class_names: list[str] | None = None
    homepage: str | None = None


@dataclass(kw_only=True)
class AugmentationConfig:
    """How training pictures are changed. What is drawn depends on the seed, the epoch and the batch alone.

    Args:
        random_crop_padding: zero pixels put around the picture before one of its size is cut out at random.
        random_resized_crop: least and most share of the picture's area that is cut out at random, with sides of 3:4 to 4:3, and
            resized; null: whole pictures.
        horizontal_flip: mirror half of the pictures.
        mixup_alpha: each batch is mixed with itself in another order, with a share drawn from Beta(alpha, alpha); 0: not.
        random_labels: the share of training pictures whose class is drawn anew from all classes, once for the whole training;
            to see what a model does with wrong labels. 1: labels say nothing.
    """

    random_crop_padding: int = 0
    random_resized_crop: list[float] | None = None
    horizontal_flip: bool = False
    mixup_alpha: float = 0.0
    random_labels: float = 0.0


@dataclass(kw_only=True)
class ImageEvaluationConfig:
    """How the trained model is evaluated: accuracy and top-5 accuracy, calibration, and every prediction.

    Args:
        splits: splits that are evaluated when training is over: `validation`, `test`, both or none.
        batch_size: pictures that are classified at once.
        noise: standard deviations of normal noise on pixel values from -1 to 1: the accuracy is measured with each of them, too.
        attn_implementation: how attention is computed (`eager`, `fused`, `sdpa`, …); null takes the model's default.
    """

    splits: list[str] = field(default_factory=lambda: ["test"])
    batch_size: int = 250
    noise: list[float] = field(default_factory=list)
    attn_implementation: str | None = None


@dataclass(kw_only=True)
class ImageSections:
    """What a recipe of image classification says before the settings of its run.

    Args:
        task: `image_classification`, which makes the file a recipe of this kind.
        name: of the run; its folder is `runs/<name>` unless `training.output_dir` says otherwise.
        description: one sentence for the model card.
        data: where the pictures come from.
        initialize_from: folder or Hub id of a model of this kind to start from; null starts from new weights.
        model: fields of `ReLUFormerVisionConfig`, and `preset` (default `relu_vit`), `size`, and `attn_implementation`. With
            `initialize_from`, what differs from the checkpoint's config, which is the default for all of it.
        augmentation: how training pictures are changed.
        evaluation: how the trained model is evaluated.
    """

    task: Literal["image_classification"] = "image_classification"
    name: str
    description: str = ""
    data: ImageDataConfig
    initialize_from: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    evaluation: ImageEvaluationConfig = field(default_factory=ImageEvaluationConfig)


@dataclass(kw_only=True)
class ImageRecipe(RowBatches, ImageSections):
    """One experiment of image classification, complete: `reluformer train` needs nothing else."""

    batch_unit: ClassVar[str] = "pictures"
    always_written: ClassVar[frozenset[str]] = frozenset({"task", "data", "model", "augmentation", "evaluation"})

    def inputs(self) -> list[tuple[str, str | None]]:
        """What the run begins with: key and path or id."""
        data = self.data
        found = [("initialize_from", self.initialize_from)]
        found += [(f"data.{name}.path", getattr(getattr(data, name), "path", None)) for name in ("folder", "dataset")]
        for split in SPLITS:
            for side in ("images", "labels"):
                found.append((f"data.{split}.{side}", getattr(getattr(data, split), side, None)))
        return found

    def check(self) -> None:
        """Raises `UserError` for values that are well typed yet cannot be trained, before anything is loaded."""
        check_image_recipe(self)
