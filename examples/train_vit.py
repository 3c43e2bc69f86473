"""Trains a Vision Transformer with ReLU attention divided by the number of patches (arXiv 2309.08586), or with softmax.

    python examples/train_vit.py --dataset zalando-datasets/fashion_mnist --output_dir vit --image_size 28
    python examples/train_vit.py --dataset pictures --output_dir vit --attention softmax_vit

The data set is one of the Hub with the columns "image" and "label", or a folder with the folders train and test, in
which each class has a folder of pictures. Transformers and Datasets alone train it; of ours there is the model.
"""

import argparse

import numpy as np
import torch
from datasets import load_dataset
from transformers import Trainer, TrainingArguments, ViTImageProcessorPil, default_data_collator, set_seed

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig


def build_model(options: argparse.Namespace, names: list[str]) -> ReLUFormerForImageClassification:
    changes = {} if options.activation is None else {"attention_activation": options.activation}
    if options.alpha is not None:
        changes["attention_alpha"] = options.alpha
    config = ReLUFormerVisionConfig.from_preset(
        options.attention,
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.hidden_size,
        image_size=options.image_size,
        patch_size=options.patch_size,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        problem_type="single_label_classification",
        **changes,
    )
    return ReLUFormerForImageClassification(config)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="id on the Hub, or a folder")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--attention", default="relu_vit", help="a preset: relu_vit or softmax_vit")
    parser.add_argument(
        "--activation", help="of relu_vit, instead of relu: relu2, gelu, softplus, identity, relu6, sigmoid"
    )
    parser.add_argument(
        "--alpha", type=float, help="of relu_vit: weights are divided by (number of patches)^alpha; default: 1"
    )
    parser.add_argument("--image_size", type=int, default=28, help="pixels of a side, to which pictures are resized")
    parser.add_argument("--patch_size", type=int, default=4)
    parser.add_argument("--hidden_size", type=int, default=96)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches")
    options = parser.parse_args(arguments)

    data = load_dataset(options.dataset)
    half, size = [0.5] * 3, {"height": options.image_size, "width": options.image_size}
    processor = ViTImageProcessorPil(size=size, image_mean=half, image_std=half, do_convert_rgb=True)

    def pixels(rows: dict) -> dict:
        values = processor(images=rows["image"], return_tensors="pt")["pixel_values"]
        return {"pixel_values": values, "labels": torch.tensor(rows["label"])}

    def accuracy(prediction) -> dict[str, float]:
        return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}

    set_seed(options.seed)
    trainer = Trainer(
        model=build_model(options, data["train"].features["label"].names),
        args=TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=256,
            learning_rate=options.learning_rate,
            weight_decay=0.1,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            remove_unused_columns=False,  # the pictures become pixel values when a batch is made
            logging_steps=0.02,
            save_strategy="no",
            report_to="none",
            seed=options.seed,
        ),
        train_dataset=data["train"].with_transform(pixels),
        eval_dataset=data["test"].with_transform(pixels),
        data_collator=default_data_collator,
        processing_class=processor,
        compute_metrics=accuracy,
    )
    trainer.train()
    trainer.save_model()  # with the image processor, which `pipeline` reads
    return trainer.evaluate()


if __name__ == "__main__":
    print(main())
