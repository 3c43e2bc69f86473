"""What the training arguments ask of packages that this machine may lack: found before a corpus is read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel, Trainer
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.training_args import OptimizerNames

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe_parser import AnyRecipe


def check_packages(recipe: AnyRecipe, build: Callable[[], PreTrainedModel]) -> None:
    """Raises a `UserError` for a logger or an optimizer that cannot be used, and for kernels that do not know the model.

    Args:
        recipe: of the run.
        build: makes the model, whose values do not matter.
    """
    training = recipe.training
    if training.use_liger_kernel:
        raise UserError(
            "training.use_liger_kernel: True would have no effect, since Liger has no kernels for this model; leave it out"
        )
    for name in training.report_to:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()
        except (ImportError, RuntimeError, ValueError) as error:
            raise UserError(
                f"training.report_to: {name!r} cannot be used ({one_line(error)}); install it, or set report_to to none"
            ) from error
    with torch.device("meta"):  # some optimizers look for the modules they are to work on
        model = build()
    try:
        Trainer.get_optimizer_cls_and_kwargs(training, model)
    except (ImportError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        name = OptimizerNames(training.optim).value
        raise UserError(
            f"training.optim: {name!r} cannot be used ({one_line(error)}); install what it needs, mend training.optim_args, or "
            "choose another one, such as adamw_torch"
        ) from error
