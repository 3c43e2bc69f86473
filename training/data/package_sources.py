"""Python sources of installed packages as a corpus, and the list of files by which two machines compare theirs.

    python -m reluformer.training.data.package_sources code_decoder_tiny

prints the list of a recipe's corpus as this machine has it: the checksum of all files, and the files of each package.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from reluformer.configuration.errors import UserError
from reluformer.configuration.language_recipe import PackageSources
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, load_recipe
from reluformer.training.data.arrow_cache import files_hash

_CHECKSUM, _PACKAGE = "# checksum ", "# package "


def package_files(given: PackageSources) -> dict[str, Path]:
    """Path from site-packages → path here of the Python files of the packages, sorted.

    Raises:
        UserError: a package that is not installed, or that has no such files.
    """
    return dict(sorted((name, path) for files in _by_package(given).values() for name, path in files.items()))


def corpus_difference(given: PackageSources) -> str | None:
    """In one line, how the corpus here differs from its list; None where it is the same, or there is no list.

    Raises:
        UserError: a list that is not there or is none.
    """
    if given.listed is None:
        return None
    path = _list_path(given.listed)
    checksum, listed = _read_list(path)
    here = package_files(given)
    if files_hash(here) == checksum:
        return None
    versions = [
        f"{name} {distribution(name).version} (there {version})"
        for name, version in listed["packages"].items()
        if name in given.names and distribution(name).version != version
    ]
    more, missing = here.keys() - listed["files"], listed["files"] - here.keys()
    found = [f"{len(more):,} files more"] * bool(more) + [f"{len(missing):,} missing"] * bool(missing)
    found += [f"other versions: {', '.join(versions[:5])}{' …' * (len(versions) > 5)}"] * bool(versions)
    return (
        f"the corpus differs from {path.name} ({'; '.join(found) or 'other contents of the same files'}): "
        "perplexities here are not to be compared with those of the recipe's own corpus"
    )


def corpus_list(given: PackageSources) -> str:
    """The list of files of a corpus as this machine has it, for `PackageSources.listed`."""
    lines = [f"{_CHECKSUM}{files_hash(package_files(given))}\n"]
    for name, files in _by_package(given).items():
        lines.append(f"{_PACKAGE}{name}=={distribution(name).version}\n")
        lines += [f"{file}\n" for file in sorted(files)]
    return "".join(lines)


def _by_package(given: PackageSources) -> dict[str, dict[str, Path]]:
    excluded, found = set(given.exclude), {}
    for name in given.names:
        installed = _installed(name)
        files = [file for file in installed.files or () if file.suffix == ".py" and ".." not in file.parts]
        kept = [file for file in files if excluded.isdisjoint(file.parts[:-1])]
        if not kept:
            raise UserError(
                f"data: the package {name} lists no Python file of its own here; name another one, or install it from a wheel"
            )
        found[name] = {file.as_posix(): Path(str(installed.locate_file(file))) for file in kept}
    return found


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise UserError(
            f"data: the package {name} is not installed; install it (pip install {name}), or leave it out of packages.names"
        ) from error


def _list_path(listed: str) -> Path:
    for path in (Path(listed).expanduser(), RECIPES_FOLDER / listed):
        if path.is_file():
            return path
    raise UserError(f"data: packages.listed: no file {listed!r}; give the path of a list, or leave it out")


def _read_list(path: Path) -> tuple[str, Mapping[str, Mapping[str, str] | set[str]]]:
    """The checksum; versions by package; names of files."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].startswith(_CHECKSUM):
        raise UserError(
            f"{path}: is no list of a corpus: its first line must be `{_CHECKSUM}…`; write it anew with "
            "`python -m reluformer.training.data.package_sources RECIPE`"
        )
    packages = [line.removeprefix(_PACKAGE).split("==", 1) for line in lines if line.startswith(_PACKAGE)]
    files = {line for line in lines if line and not line.startswith("#")}
    return lines[0].removeprefix(_CHECKSUM), {"packages": dict(packages), "files": files}


def main() -> None:
    """Prints the list of the corpus of the recipe that the command line names."""
    source = load_recipe(*sys.argv[1:]).data.corpus
    if source is None or source.packages is None:
        raise SystemExit(f"{sys.argv[1]}: its corpus is not of packages")
    sys.stdout.write(corpus_list(source.packages))


if __name__ == "__main__":
    main()
