"""The runs of `jobs.py`, made once for all tests of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..training.conftest import recipe_file  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> Path:
    """The folder that `jobs.py` has filled."""
    folder = tmp_path_factory.mktemp("jobs")
    run_jobs(folder)
    return folder


@pytest.fixture(scope="session", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def several(request, jobs) -> int:
    """How many processes have trained beside the one alone."""
    if request.param == 4:
        run_jobs(jobs, "train", "4")
    return request.param


def run_jobs(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.distributed.jobs", str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr[-12000:]
