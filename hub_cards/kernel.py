"""A folder that can be pushed to the Hub as a kernel for the library `kernels`, with `relu_attention` in it.

Its layout is that of a kernel of Python code alone: `build/torch-<backend>/` is a package with `metadata.json` beside its
modules, which are those of this package. `kernels` imports it under the name `id` of the metadata, and the operators are
registered in that namespace (`fused.operator.NAMESPACE`), so that builds, and the package reluformer, do not take each
other's operators away.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from reluformer import modeling_reluformer
from reluformer.configuration.errors import UserError
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.fused.triton_launch import MAX_HEAD_DIM

DEFAULT_REPO_ID = "your-name/relu-attention"
# The major version, which the branch on the Hub is named after. 0 means, by the convention of `kernels`: not for production yet.
VERSION = 0
# What the Triton kernels need of a CUDA device, and what the tests compile them for.
CAPABILITY, COMPILED_FOR = "8.0", ("8.0", "9.0")
# Backend → architectures in the notation of `kernels`, where +PTX includes all later ones.
BACKENDS = {"cpu": None, "cuda": [f"{CAPABILITY}+PTX"]}
ENTRY, FUNCTION = "fused.attention", "relu_attention"
TEMPLATE = Path(__file__).with_name("kernel_template.md")

_INIT = '''"""Point-wise attention, ReLU instead of softmax, made from the package reluformer {version}."""

from .{module} import {function}

__version__ = "{version}"

__all__ = ["{function}"]
'''


def write_kernel(folder: str | Path, *, repo_id: str = DEFAULT_REPO_ID, overwrite: bool = False) -> Path:
    """Writes the kernel, its metadata, card and licence, and returns the folder. The same package always writes the same bytes.

    Args:
        folder: to write.
        repo_id: where the kernel will be on the Hub, owner/name. The name becomes the kernel's: lower-case letters, digits
            and dashes.
        overwrite: replace a kernel that is in `folder` already; other files in it stay.

    Raises:
        UserError: a repo id that is none, or a folder that holds something.
    """
    folder, name = Path(folder), _kernel_name(repo_id)
    if folder.exists() and any(folder.iterdir()) and not (overwrite and (folder / "build").is_dir()):
        raise UserError(f"{folder}: is not empty; give another folder, or --overwrite to replace the kernel in it")
    package = distribution("reluformer")
    modules = kernel_sources()
    modules["__init__.py"] = _INIT.format(version=package.version, module=ENTRY, function=FUNCTION)
    # Tells one content of the modules from another.
    build = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()[:10]
    licence = next(file for file in package.files if file.name == "LICENSE")
    files = {"LICENSE": licence.read_text(encoding="utf-8"), "README.md": _card(name, repo_id, build)}
    for backend in BACKENDS:
        held = {**modules, "metadata.json": _metadata(name, backend, build, modules)}
        files |= {f"build/torch-{backend}/{path}": text for path, text in held.items()}
    shutil.rmtree(folder / "build", ignore_errors=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def kernel_sources() -> dict[str, str]:
    """Path of each file that `relu_attention` needs, below `modeling_reluformer/` → its source, character by character."""
    sources: dict[str, str] = {}
    unread = {ENTRY}
    while unread:
        name = unread.pop()
        path = name.replace(".", "/")
        source = (Path(modeling_reluformer.__file__).parent / f"{path}.py").read_text(encoding="utf-8")
        sources[f"{path}.py"] = source
        # `fused/__init__.py` of the package adds the compiled loop, which a kernel does not carry
        sources |= {f"{path.rpartition('/')[0]}/__init__.py": ""} if "." in name else {}
        unread |= {
            module for module in _relative_imports(name, source) if f"{module.replace('.', '/')}.py" not in sources
        }
    return dict(sorted(sources.items()))


def _relative_imports(name: str, source: str) -> set[str]:
    """The module of every `from .module import names`, the form in which this package imports itself, as a dotted name."""
    places = name.split(".")
    return {
        ".".join([*places[: -node.level], node.module])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
    }


def _kernel_name(repo_id: str) -> str:
    match = re.fullmatch(r"[\w.-]+/([a-z][-a-z0-9]*[a-z0-9])", repo_id)
    if match is None:
        raise UserError(
            f"{repo_id!r}: cannot be the repo id of a kernel; give owner/name, the name in lower-case letters, digits and "
            f"dashes, such as {DEFAULT_REPO_ID}"
        )
    return match[1]


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
        "license": _license(),
        "python-depends": [],
        "backend": {"type": backend} | ({} if archs is None else {"archs": archs}),
        "digest": {"algorithm": "sha256", "files": digests},
    }
    return json.dumps(metadata, indent=2) + "\n"


def _card(name: str, repo_id: str, build: str) -> str:
    package = distribution("reluformer")
    tags = ["kernels", "attention", "arxiv:2302.06461"]
    card = ModelCard.from_template(
        ModelCardData(library_name="kernels", license=_license().lower(), tags=tags),
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


def _license() -> str:
    return distribution("reluformer").metadata["License-Expression"]
