"""A Hub on this machine for each test that asks for it, and the real client that talks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, constants, file_download, hf_api
from huggingface_hub.utils import _http
from transformers.utils import hub as transformers_hub

from .hub_routes import WRITE_TOKEN
from .loopback_hub import LoopbackHub

NOT_INHERITED = ("HF_", "HUGGING", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "PYTHONPATH")


class HubOfTest(LoopbackHub):
    """The loopback Hub, with what a program needs to use it as its Hub."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home

    @property
    def environment(self) -> dict[str, str]:
        """A whole environment for a subprocess: huggingface_hub reads its settings when it is imported.

        Xet, its other way to transfer large files, is a service of its own and is turned off.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        settings = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(self.home),
            "HF_TOKEN": WRITE_TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        return {**kept, **settings}

    def run(self, *arguments: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess:
        """Runs `python` with these arguments and this Hub; an environment variable set to "" is left out."""
        whole = {name: value for name, value in {**self.environment, **environment}.items() if value != ""}
        self.home.mkdir(exist_ok=True)
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300, "check": False}
        return subprocess.run([python, *arguments], env=whole, cwd=self.home, **options)


@pytest.fixture
def loopback_hub(tmp_path: Path) -> Iterator[HubOfTest]:
    """An empty Hub; every failure that the test ordered must have been met."""
    with HubOfTest(tmp_path / "hf_home") as hub:
        yield hub
    assert not hub.unused_faults, f"{hub.unused_faults} ordered failures were never met"


@pytest.fixture
def client_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client in this process would have waited between its attempts; it does not wait."""
    waits: list[float] = []
    for module in (_http, file_download):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.fixture
def hub_client(loopback_hub: HubOfTest, client_waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[HfApi]:
    """The real client in this process, with this Hub and nothing else: no network, no cache of the user's, no waiting."""
    home = loopback_hub.home
    settings = {
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "ENDPOINT": loopback_hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": loopback_hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    # the functions of the module (`create_repo`), which the Trainer calls, belong to an object that was made at import
    monkeypatch.setattr(hf_api.api, "endpoint", loopback_hub.endpoint)
    # Transformers keeps a client of its own from its first call on: this test gets a new one, and later tests the old
    monkeypatch.setattr(transformers_hub, "_hf_api", None, raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    _http.close_session()
    yield HfApi(endpoint=loopback_hub.endpoint, token=WRITE_TOKEN)
    _http.close_session()
