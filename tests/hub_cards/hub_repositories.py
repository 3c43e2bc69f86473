"""What the loopback Hub keeps: repositories as commits with whole trees, and their names as git computes them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

MAIN = "main"
FIRST_DATE = datetime(2024, 1, 1, tzinfo=UTC)
LARGE_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.h5", "*.model")
GIT_ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_PATTERNS)


def git_oid(kind: str, content: bytes) -> str:
    """The SHA-1 that git gives an object: kind is blob, tree or commit."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


@dataclass(frozen=True)
class File:
    """One version of a file; a large one is a pointer in git, and its content lies in the object storage."""

    content: bytes = field(repr=False)
    large: bool = False

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @cached_property
    def oid(self) -> str:
        return git_oid("blob", self.pointer if self.large else self.content)

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid

    def entry(self, path: str) -> dict:
        """As the Hub lists it in a tree."""
        entry = {"type": "file", "path": path, "oid": self.oid, "size": len(self.content)}
        if self.large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": len(self.pointer)}
        return entry


@dataclass(frozen=True)
class Commit:
    """One commit: the whole tree, not the difference."""

    files: dict[str, File]
    title: str
    description: str
    date: datetime
    parent: str | None

    @cached_property
    def oid(self) -> str:
        parent = f"parent {self.parent}\n" if self.parent else ""
        person = f"tester <tester@localhost> {int(self.date.timestamp())} +0000"
        head = f"tree {self.folders['']}\n{parent}author {person}\ncommitter {person}\n\n"
        return git_oid("commit", f"{head}{self.title}\n\n{self.description}".encode())

    @cached_property
    def folders(self) -> dict[str, str]:
        """Path of each folder ("" is the root) → the SHA-1 of its tree."""
        oids: dict[str, str] = {}

        def add(path: str) -> str:
            prefix = f"{path}/" if path else ""
            below = {name[len(prefix) :] for name in self.files if name.startswith(prefix)}
            rows = []
            for name in {name.split("/")[0] for name in below}:
                if name in below:
                    rows.append((name, b"100644 ", self.files[prefix + name].oid))
                else:
                    rows.append((f"{name}/", b"40000 ", add(prefix + name)))
            # git orders a folder as if its name ended in a slash
            content = b"".join(
                mode + name.rstrip("/").encode() + b"\0" + bytes.fromhex(oid) for name, mode, oid in sorted(rows)
            )
            oids[path] = git_oid("tree", content)
            return oids[path]

        add("")
        return oids

    def entries(self, folder: str = "", recursive: bool = True) -> list[dict]:
        """Files and folders below a folder, in the order of their paths."""
        prefix = f"{folder}/" if folder else ""
        entries = [file.entry(path) for path, file in self.files.items()]
        entries += [{"type": "directory", "path": path, "oid": oid, "size": 0} for path, oid in self.folders.items()]
        inside = [entry for entry in entries if entry["path"].startswith(prefix) and entry["path"] not in ("", folder)]
        if not recursive:
            inside = [entry for entry in inside if "/" not in entry["path"][len(prefix) :]]
        return sorted(inside, key=lambda entry: entry["path"])


class Repository:
    """A repository with its branches; it starts with one commit that holds .gitattributes, as on the Hub."""

    def __init__(self, kind: str, repo_id: str, private: bool) -> None:
        self.kind, self.repo_id, self.private = kind, repo_id, private
        self.commits: dict[str, Commit] = {}
        self.branches: dict[str, str] = {}
        self.commit(MAIN, {".gitattributes": File(GIT_ATTRIBUTES.encode())}, "initial commit")

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch or of a full SHA."""
        return self.commits.get(self.branches.get(revision, revision))

    def commit(self, branch: str, files: dict[str, File], title: str, description: str = "") -> Commit:
        """Puts a commit with this whole tree on the branch; also where nothing changed, so that a test can count it."""
        date = FIRST_DATE + timedelta(minutes=len(self.commits))
        commit = Commit(dict(files), title, description, date, self.branches.get(branch))
        self.commits[commit.oid] = commit
        self.branches[branch] = commit.oid
        return commit

    def history(self, revision: str = MAIN) -> list[Commit]:
        """The commits of a branch, newest first."""
        commits, commit = [], self.find(revision)
        while commit is not None:
            commits.append(commit)
            commit = self.commits.get(commit.parent) if commit.parent else None
        return commits

    def files(self, revision: str = MAIN) -> dict[str, bytes]:
        """Path → content."""
        commit = self.find(revision)
        return {path: file.content for path, file in commit.files.items()} if commit else {}
