"""A Hub in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects


class FakeHub:
    """Stands for `HfApi`: keeps the files of each repository as they were after the last commit."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.failure: Exception | None = None

    def create_repo(self, repo_id: str, *, private: bool | None = None, exist_ok: bool = False) -> None:
        assert exist_ok
        self.repositories.setdefault(repo_id, {})
        self.private.setdefault(repo_id, bool(private))

    def model_info(self, repo_id: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private[repo_id])

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str, **options: Any
    ) -> SimpleNamespace:
        if self.failure is not None:
            raise self.failure
        paths = (path for path in Path(folder_path).rglob("*") if path.is_file())
        names = (path.relative_to(folder_path).as_posix() for path in paths)
        chosen = filter_repo_objects(names, allow_patterns=allow_patterns)
        self.repositories[repo_id] |= {name: (Path(folder_path) / name).read_bytes() for name in chosen}
        self.commits.append(commit_message)
        return SimpleNamespace(commit_url=f"https://hub.example.org/{repo_id}/commit/1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """An empty Hub, and a token for it."""
    hub = FakeHub()
    monkeypatch.setattr("reluformer.hub_cards.publishing.HfApi", lambda: hub)
    monkeypatch.setattr("reluformer.hub_cards.publishing.get_token", lambda: "hf_token")
    return hub
