"""Publishing a model on the Hub: what is needed to use the model, with its card, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import validate_repo_id

from reluformer.configuration.errors import UserError, one_line
from reluformer.hub_cards.bundle import PublishedFile, check_evaluated, check_trained, collect_files
from reluformer.hub_cards.card_contents import model_name
from reluformer.hub_cards.hub_faults import no_token, with_retries
from reluformer.hub_cards.model_folder import ModelFolder
from reluformer.hub_cards.statements import Statements
from reluformer.training.run.redaction import public_text


@dataclass(frozen=True)
class Publication:
    """What was done. url: of the commit, None where nothing was to do or for a dry run. files: names of what it changed."""

    url: str | None
    files: tuple[str, ...] = ()


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    dry_run: bool = False,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | None = None,
    without_evaluation: bool = False,
    api: HfApi | None = None,
    tell: Callable[[str], None] = print,
) -> Publication:
    """Uploads a finished run or another saved model to a repository of the Hub in one commit, which it makes if anything is
    to change.

    Nothing is deleted from the repository, and nothing of the folder is changed.

    Args:
        folder: of a finished run, of a plain `Trainer` (its output_dir or a checkpoint), or of `save_pretrained`.
        repo_id: `owner/name`; the repository is made if there is none.
        private: True makes a new repository private and refuses an existing one that is public; None leaves both as the
            owner's account has it.
        dry_run: check and tell what would be uploaded, without token or network.
        license: of the weights, as the Hub names licences.
        language: codes of ISO 639, of a translation the source's and the target's.
        dataset: id on the Hub of what it was trained and evaluated on. For the card, as the two before: None takes what
            the recipe or the card in the folder says, if anything.
        without_evaluation: publish a model of which no score is known.
        api: the client, with another token or endpoint; None takes `HF_ENDPOINT` and the token of `hf auth login` or
            `HF_TOKEN`.
        tell: takes each line of what is done.

    Raises:
        UserError: a model that is not to be published as it is, a wrong repository id, no token, or a fault of the Hub or
            the connection that did not pass.
    """
    check_repo_id(repo_id)
    check_trained(Path(folder))
    model = ModelFolder(Path(folder), Statements.of(license=license, language=language, dataset=dataset))
    if not without_evaluation:
        check_evaluated(model)
    api = HfApi() if api is None else api
    if not dry_run:
        check_token(api)
    files = collect_files(model, repo_id=repo_id)
    for line in describe(files, repo_id):
        tell(line)
    if dry_run:
        tell("dry run: nothing was uploaded")
        return Publication(None)
    upload = _Upload(api, repo_id, files, private, f"Publish {public_text(model_name(model, repo_id))}", tell)
    return with_retries(upload.attempt, repo_id=repo_id, tell=tell)


def describe(files: Sequence[PublishedFile], repo_id: str) -> list[str]:
    """A line for each file with its size and how it is expected to be stored, and one for all of them."""
    longest = max(len(file.name) for file in files)
    lines = [f"  {file.name:<{longest}}  {_size(file.size):>8}{'  LFS' if file.is_large else ''}" for file in files]
    return [f"{repo_id}: {len(files)} files, {_size(sum(file.size for file in files))}", *lines]


class _Upload:
    """One publication. An attempt that failed may be made again.

    `create_commit` leaves out the files that the repository holds already. If nothing is left, it makes no commit and returns the
    last one.
    """

    def __init__(
        self,
        api: HfApi,
        repo_id: str,
        files: Sequence[PublishedFile],
        private: bool | None,
        message: str,
        tell: Callable[[str], None],
    ) -> None:
        self._api, self._repo_id, self._files, self._private = api, repo_id, files, private
        self._message, self._tell = message, tell
        # As the first attempt found it: the answer to its commit may have been lost.
        self._before: ModelInfo | None = None

    def attempt(self) -> Publication:
        self._api.create_repo(self._repo_id, private=self._private, exist_ok=True)
        info = self._info()
        if self._private and not info.private:
            raise UserError(
                f"{self._repo_id}: exists and is public, but --private was given; make it private in its settings, or leave "
                "--private out"
            )
        if self._before is None:
            self._before = info
            self._tell_what_is_there(info)
        commit = self._api.create_commit(
            self._repo_id,
            operations=[CommitOperationAdd(file.name, file.content) for file in self._files],
            commit_message=self._message,
            commit_description=f"With reluformer {version('reluformer')}.",
            parent_commit=info.sha,
        )
        if commit.oid == self._before.sha:
            self._tell(f"nothing to do: {self._api.endpoint}/{self._repo_id} holds all of this already")
            return Publication(None)
        changed = self._changed()
        total = _size(sum(file.size for file in changed))
        self._tell(f"new or changed: {len(changed)} of {len(self._files)} files, {total}")
        self._tell(f"published: {commit.commit_url}")
        return Publication(str(commit.commit_url), tuple(file.name for file in changed))

    def _info(self) -> ModelInfo:
        return self._api.model_info(self._repo_id, files_metadata=True)

    def _changed(self) -> list[PublishedFile]:
        before, after = (
            {sibling.rfilename: sibling.blob_id for sibling in info.siblings or []}
            for info in (self._before, self._info())
        )
        return [file for file in self._files if before.get(file.name) != after.get(file.name)]

    def _tell_what_is_there(self, info: ModelInfo) -> None:
        self._tell(f"{self._repo_id} is {'private' if info.private else 'public'}")
        ours = {file.name for file in self._files} | {".gitattributes"}
        if others := sorted(sibling.rfilename for sibling in info.siblings or [] if sibling.rfilename not in ours):
            self._tell(f"left alone in the repository: {', '.join(others)}")


def check_repo_id(repo_id: str, option: str = "--repo-id") -> None:
    """Raises a `UserError`, which names the option, for an id that is not `owner/name` in the form of the Hub."""
    if repo_id.count("/") != 1:
        raise UserError(f"{option}: {repo_id!r} is no repository; give owner/name, for example me/my-model")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{option}: {one_line(error)}") from error


def check_token(api: HfApi | None = None) -> None:
    """Raises a `UserError` if neither the client nor huggingface_hub's settings have a token; the Hub is not asked."""
    if not ((api is not None and api.token) or get_token()):
        raise UserError(no_token())


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
