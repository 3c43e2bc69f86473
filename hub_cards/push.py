"""`training.push_to_hub` of a recipe: the finished run is published once, in the way of `reluformer publish`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import HubStrategy

from reluformer.configuration.errors import UserError
from reluformer.hub_cards.publishing import check_repo_id, check_token, publish


@dataclass(frozen=True)
class Push:
    """Where a run goes when it is finished. private: None leaves it to the account."""

    repo_id: str
    private: bool | None

    def publish(self, folder: Path, tell: Callable[[str], None]) -> None:
        """Publishes the run in `folder`.

        Raises:
            UserError: it was not published; the run is finished all the same, and the message says how to publish it.
        """
        try:
            # Which splits are evaluated is the recipe's decision.
            publish(folder, self.repo_id, private=self.private, without_evaluation=True, tell=tell)
        except UserError as error:
            private = " --private" if self.private else ""
            again = f"reluformer publish --run {folder} --repo-id {self.repo_id}{private}"
            raise UserError(f"the run is finished, but not published: {error}; `{again}` publishes it") from error


def wanted_push(arguments: Seq2SeqTrainingArguments) -> Push | None:
    """Where the recipe wants the run to be published; None if it does not.

    It is to be asked before training: what cannot be followed is found then.

    Raises:
        UserError: no repository or token, or an argument that cannot be followed.
    """
    if not arguments.push_to_hub:
        return None
    if arguments.hub_model_id is None:
        raise UserError("training.hub_model_id: missing; training.push_to_hub needs a repository such as me/my-model")
    if arguments.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise UserError(
            f"training.hub_strategy: {arguments.hub_strategy.value!r} would upload checkpoints; a run is published once, "
            "when it is finished: leave it out"
        )
    if arguments.hub_revision is not None:
        raise UserError("training.hub_revision: a run is published on the main branch; leave it out")
    check_repo_id(arguments.hub_model_id, "training.hub_model_id")
    check_token()
    return Push(arguments.hub_model_id, arguments.hub_private_repo)
