"""More of `cases.py`: pictures for recipes, and calls of the vision model (8 × 8 pixels, patches of 4 × 4, 5 classes).

The files are those of `malformed_pictures.py`.
"""

from __future__ import annotations

from .cases import expressions, refusals

PICTURES = refusals("""
pictures of another size than the model's
train --config pictures.yaml --model.image_size 16
train-images: holds pictures of 8 × 8 pixels, model.image_size is 16 × 16; set it to [8, 8]

a number of channels that no picture is read with
train --config pictures.yaml --model.num_channels 2
model.num_channels: 2 is not supported by recipes; choose 1 (grey) or 3 (coloured)

a patch that does not divide the picture
train --config pictures.yaml --model.patch_size 3
model: patch_size=3 does not divide image_size=8: choose a patch that does

an IDX file that is cut off
train --config pictures.yaml --data.train.images cut-images
cut-images: its header tells 48 × 8 × 8 bytes, 3,069 follow; the file is damaged, get it anew

an IDX file whose .gz is cut off
train --config pictures.yaml --data.train.images cut-images.gz
cut-images.gz: cannot be read as gzip (…); the file is damaged, get it anew

an IDX file whose .gz is damaged
train --config pictures.yaml --data.train.images damaged-images.gz
damaged-images.gz: cannot be read as gzip (…); the file is damaged, get it anew

a text in place of an IDX file
train --config pictures.yaml --data.train.images long_line.txt
long_line.txt: is no IDX file: it does not begin with two zero bytes and a header of 16 bytes

labels in place of pictures
train --config pictures.yaml --data.train.images train-labels
train-labels: holds type 8 in 1 dimensions, expected unsigned bytes (8) in 3; pictures and labels are two files

a folder in place of an IDX file
train --config pictures.yaml --data.train.images a_folder
a_folder: is a folder, expected an IDX file; give the path of an IDX file

IDX files of different counts
train --config pictures.yaml --data.train.images few-images
data.train: few-images holds 13 pictures, train-labels 48 labels; expected as many of both, and at least one

IDX files without a picture
train --config pictures.yaml --data.train.images no-images --data.train.labels no-labels
data.train: no-images holds 0 pictures, no-labels 0 labels; expected as many of both, and at least one

pictures without their labels
train --config pictures.yaml --data.train.labels null
data.train: …labels

labels beyond the names of the classes
train --config pictures.yaml --data.class_names [dark,left]
data.train.labels: holds the class 2, and there are the names of 2 classes, 0 to 1; give data.class_names for all

a class that is named twice
train --config pictures.yaml --data.class_names [dark,left,left]
data.class_names: ['dark', 'left', 'left'] names a class twice; give each its own name

Fashion-MNIST where Debian's package dataset-fashion-mnist is missing
train --config fashion_mnist_vit_L49 --data.train.images nowhere/train-images-idx3-ubyte.gz
nowhere/train-images-idx3-ubyte.gz: no such file; the pictures are to be had at …(apt-get install dataset-fashion-mnist)

a folder of pictures that is not there
train --config folders.yaml --data.folder.path nowhere
nowhere/train: no such folder; give data.folder.path and the names of its splits

a folder without classes
train --config folders.yaml --data.folder.path no_classes
no_classes/train: holds no folders; expected one for each class, with its pictures in it

a folder with one class
train --config folders.yaml --data.folder.path one_class
data: there is one class, 'dark'; a classifier needs at least two

a class without a picture
train --config folders.yaml --data.folder.path one_class_empty
one_class_empty/train/left: holds no picture; give this class some, or remove its folder

a file among the pictures that is none
train --config folders.yaml --data.folder.path with_a_text
with_a_text/train/left/notes.txt: is no picture by its name; expected files such as .png or .jpg alone: move, rename or remove it

a folder in the folder of a class
train --config folders.yaml --data.folder.path folder_in_class
folder_in_class/train/left/more: is a folder; expected files such as .png or .jpg alone: move, rename or remove it

classes of the test split that are not those of the training split
train --config folders.yaml --data.folder.path other_classes --evaluation.splits [test]
data: the test split has the classes dark, right, up, the training split dark, left, right; they must be the same

a picture that is cut off, in a folder
train --config folders.yaml --data.folder.path one_damaged --name damaged
one_damaged/train/left/…: cannot be decoded (…); remove or replace it

MixUp below 0
train --config pictures.yaml --augmentation.mixup_alpha -1
augmentation.mixup_alpha: -1.0 must be a number of at least 0

MixUp that is no number
train --config pictures.yaml --augmentation.mixup_alpha nan
augmentation.mixup_alpha…nan

more than all labels at random
train --config pictures.yaml --augmentation.random_labels 1.5
augmentation.random_labels: 1.5 must be from 0 to 1

noise of no size
train --config pictures.yaml --evaluation.noise [0.5,0]
evaluation.noise: [0.5, 0.0] must be numbers above 0

a crop of more than the picture
train --config pictures.yaml --augmentation.random_resized_crop [0.5,2]
augmentation.random_resized_crop: [0.5, 2.0] must be the least and the most share of the area, such as [0.05, 1.0]

a crop of the padding alone
train --config pictures.yaml --augmentation.random_crop_padding 8
augmentation.random_crop_padding: 8 would cut out zeros alone, since pictures have 8 × 8 pixels; choose less

a mean over the pictures of one process
train --config pictures.yaml --training.average_tokens_across_devices false
training.average_tokens_across_devices: False would have no effect here; the loss is a mean over the pictures of all …

metrics of pictures, batch by batch
train --config pictures.yaml --training.batch_eval_metrics true
training.batch_eval_metrics: True would have no effect here; two numbers a picture are kept for the accuracy

a negative number of checkpoints to average
train --config pictures.yaml --averaging.last_checkpoints -1
averaging.last_checkpoints: -1 must be at least 0

an option of translation in a recipe for pictures
train --config pictures.yaml --tokenizer.vocab_size 300
…tokenizer
""")

VISION_MODEL = expressions("""
pictures of another size
vision(torch.zeros(2, 3, 12, 8))
ValueError: Pictures of 12 × 8 pixels do not fit image_size = 8 × 8: resize them (AutoImageProcessor does), or give …

pictures of another size that patches do not fill
vision(torch.zeros(2, 3, 10, 8), interpolate_pos_encoding=True)
ValueError: Patches of 4 × 4 pixels do not fill pictures of 10 × 8: crop them.

pictures of another number of channels
vision(torch.zeros(2, 1, 8, 8))
ValueError: pixel_values must have the shape (batch, num_channels, height, width) = (batch, 3, 8, 8); got (2, 1, 8, 8). …

a picture without a batch
vision(torch.zeros(3, 8, 8))
ValueError: pixel_values must have the shape (batch, num_channels, height, width) = (batch, 3, 8, 8); got (3, 8, 8). …

no pictures in the batch
vision(torch.zeros(0, 3, 8, 8))
ValueError: pixel_values of the shape (0, 3, 8, 8) are empty: give at least one picture.

no pictures at all
vision(labels=torch.tensor([0, 1]))
ValueError: Give pixel_values: pictures of the shape (batch, num_channels, height, width).

a picture of Pillow's
vision(Image.new("RGB", (8, 8)))
ValueError: pixel_values must be a tensor of floats, (batch, num_channels, height, width); got Image. AutoImageProcessor makes …

bytes, which nobody has scaled
vision(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
ValueError: pixel_values must be a tensor of floats, (batch, num_channels, height, width); got torch.uint8. AutoImageProcessor …

NaN in the second picture: it alone is NaN
vision(torch.stack([torch.zeros(3, 8, 8), torch.full((3, 8, 8), torch.nan)])).logits.isnan().any(1).tolist()
result: [False, True]

a class that the model does not have
vision(torch.zeros(2, 3, 8, 8), labels=torch.tensor([0, 5]))
IndexError: labels holds the class 5; a model of num_labels=5 has the classes 0 to 4, and -100 stands for a …

a negative class other than -100
vision(torch.zeros(2, 3, 8, 8), labels=torch.tensor([0, -1]))
IndexError: labels holds the class -1; a model of num_labels=5 has the classes 0 to 4, and -100 stands for a …

more pictures than labels
vision(torch.zeros(2, 3, 8, 8), labels=torch.tensor([0]))
ValueError: labels must be the numbers of the classes, integers of the shape (batch,) = (2,), or the share of each class, …

classes as floats
vision(torch.zeros(2, 3, 8, 8), labels=torch.tensor([0.0, 1.0]))
ValueError: …must be floats of the shape (batch, num_labels) = (2, 5); got torch.float32 (2,). For one class a …

shares of classes that no picture can have
vision(torch.zeros(1, 3, 8, 8), labels=torch.tensor([[1.5, -0.5, 0.0, 0.0, 0.0]]))
ValueError: labels of floats must be from 0 to 1 for each class of problem_type='multi_label_classification'; got 1.5.

a list as labels
vision(torch.zeros(2, 3, 8, 8), labels=[0, 1])
ValueError: labels must be a tensor, (batch,) or (batch, num_labels); got list.

labels of -100 alone, for pictures: the loss is 0
float(vision(torch.zeros(2, 3, 8, 8), labels=torch.tensor([-100, -100])).loss)
result: 0.0

a mask, which pictures do not have
vision(torch.zeros(2, 3, 8, 8), attention_mask=torch.ones(2, 4))
TypeError: ReLUFormerForImageClassification takes no attention_mask; leave it out.

a patch that does not divide the picture, in the configuration
ReLUFormerVisionConfig(image_size=28, patch_size=5)
ValueError: patch_size=5 does not divide image_size=28: choose a patch that does.

a kind of problem that does not exist
ReLUFormerVisionConfig(problem_type="colour")
ValueError: problem_type='colour' is not supported; choose one of None, single_label_classification, multi_label_classification, …

a size that the paper does not have
ReLUFormerVisionConfig.from_preset("relu_vit", size="S/64")
ValueError: size='S/64' is unknown; choose one of S/32, S/16, S/8.

a small transparent picture to a pipeline, which makes of it what the model takes
len(pipeline("image-classification", model="vision_model")(Image.new("RGBA", (5, 3))))
result: 5

a coloured picture to a pipeline of a model of one channel
pipeline("image-classification", model="grey_model")(Image.new("RGB", (8, 8)))
ValueError: …= (batch, 1, 8, 8); got (1, 3, 8, 8). Convert pictures by Image.convert("L") first.

a picture that is cut off, to a pipeline
pipeline("image-classification", model="vision_model")("cut.png")
OSError: …truncated

a file that is no picture, to a pipeline
pipeline("image-classification", model="vision_model")("text.png")
UnidentifiedImageError: cannot identify image file …text.png…

a path that does not exist, to a pipeline
pipeline("image-classification", model="vision_model")("nowhere.png")
ValueError: Incorrect image source. …Got nowhere.png…

a folder without an image processor, to a pipeline
pipeline("image-classification", model="no_processor")
OSError: Can't load image processor for 'no_processor'. …preprocessor_config.json…
""")
