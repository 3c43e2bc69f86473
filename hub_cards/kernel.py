"""A folder that can be pushed to the Hub as a kernel for the library `kernels`, with `relu_attention` in it.

Its layout is that of a kernel of Python code alone: `build/torch-<backend>/` is a package with `metadata.json` beside
its modules, which are those of this package. `kernels` imports it under the name `id` of the metadata, and the
operators are registered in that namespace (`fused.operator.NAMESPACE`), so that builds, and the package reluformer, do
not take each other's operators away.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.metadata import distribution
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from reluformer import modeling_reluformer
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.fused.triton_launch import MAX_HEAD_DIM
from reluformer.records.records import new_folder

DEFAULT_REPO_ID = "your-name/relu-attention"
# The major version, which the branch on the Hub is named after. 0 means, by the convention of `kernels`: not for
# production yet.
VERSION = 0
# What the Triton kernels need of a CUDA device, and what the tests compile them for.
CAPABILITY, COMPILED_FOR = "8.0", ("8.0", "9.0")
# Backend → architectures in the notation of `kernels`, where +PTX includes all later ones.
BACKENDS = {"cpu": None, "cuda": [f"{CAPABILITY}+PTX"]}
# What `relu_attention` imports, itself included.
MODULES = (
    "attention_reluformer.py",
    "fused/activations.py",
    "fused/attention.py",
    "fused/blockwise.py",
    "fused/operator.py",
    "fused/specification.py",
    "fused/triton_kernels.py",
    "fused/triton_launch.py",
)
TEMPLATE = Path(__file__).with_name("kernel_template.md")

_INIT = '''"""Point-wise attention, ReLU instead of softmax, made from the package reluformer {version}."""

from .fused.attention import relu_attention

__version__ = "{version}"

__all__ = ["relu_attention"]
'''

_NOTHING_COMPILED = '''"""What the package computes by its compiled library: a kernel carries none."""


def compiled_operator(query, key, specification):
    return None
'''


def write_kernel(folder: str | Path, *, repo_id: str = DEFAULT_REPO_ID) -> Path:
    """Writes the kernel, its metadata, card and licence, and returns the folder. The same package always writes the
    same bytes.

    Args:
        folder: new folder to write.
        repo_id: where the kernel will be on the Hub, owner/name. The name becomes the kernel's: lower-case letters,
            digits and dashes.

    Raises:
        UserError: a repo id that is none, or a folder that holds something.
    """
    match = re.fullmatch(r"[\w.-]+/([a-z][-a-z0-9]*[a-z0-9])", repo_id)
    if match is None:
        raise UserError(
            f"{repo_id!r}: cannot be the repo id of a kernel; give owner/name, the name in lower-case letters, digits "
            f"and dashes, such as {DEFAULT_REPO_ID}"
        )
    package, sources = distribution("reluformer"), Path(modeling_reluformer.__file__).parent
    modules = {name: (sources / name).read_text(encoding="utf-8") for name in MODULES}
    modules |= {
        "__init__.py": _INIT.format(version=package.version),
        "fused/__init__.py": "",
        "fused/compiled_operator.py": _NOTHING_COMPILED,
    }
    # Tells one content of the modules from another.
    build = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()[:10]
    licence = next(file for file in package.files if file.name == "LICENSE")
    files = {"LICENSE": licence.read_text(encoding="utf-8"), "README.md": _card(match[1], repo_id, build)}
    for backend in BACKENDS:
        held = {**modules, "metadata.json": _metadata(match[1], backend, build, modules)}
        files |= {f"build/torch-{backend}/{path}": text for path, text in held.items()}
    with new_folder(folder) as target:
        for path, text in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8", newline="\n")  # the digests are of these bytes
    return Path(folder)


def _metadata(name: str, backend: str, build: str, modules: dict[str, str]) -> str:
    archs = BACKENDS[backend]
    digests = {
        path: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for path, text in sorted(modules.items())
    }
    metadata = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_{backend}_{build}",
        "version": VERSION,
        "license": distribution("reluformer").metadata["License-Expression"],
        "python-depends": [],
        "backend": {"type": backend} | ({} if archs is None else {"archs": archs}),
        "digest": {"algorithm": "sha256", "files": digests},
    }
    return json.dumps(metadata, indent=2) + "\n"


def _card(name: str, repo_id: str, build: str) -> str:
    package = distribution("reluformer")
    card = ModelCard.from_template(
        ModelCardData(
            library_name="kernels",
            license=package.metadata["License-Expression"].lower(),
            tags=["kernels", "attention", "arxiv:2302.06461"],
        ),
        template_path=str(TEMPLATE),
        name=name,
        repo_id=repo_id,
        version=VERSION,
        build=build,
        variants=[f"torch-{backend}" for backend in BACKENDS],
        activations=POINTWISE,
        max_head_dim=MAX_HEAD_DIM,
        capability=CAPABILITY,
        compiled_for=COMPILED_FOR,
        python=f"Python {package.metadata['Requires-Python']}",
        torch=next(line for line in package.requires if line.startswith("torch>")),
        package_version=package.version,
    )
    return str(card).rstrip() + "\n"
