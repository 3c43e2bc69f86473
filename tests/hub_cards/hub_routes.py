"""What the loopback Hub answers at each of its addresses: the part that huggingface_hub's client uses."""

from __future__ import annotations

import base64
import fnmatch
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode

import yaml

from .hub_repositories import LARGE_PATTERNS, MAIN, Commit, File, Repository

if TYPE_CHECKING:
    from .loopback_hub import LoopbackHub

USER, ORGANIZATION = "tester", "workshop"
WRITE_TOKEN, READ_TOKEN = "hf_loopback_write", "hf_loopback_read"
ROLES = {WRITE_TOKEN: "write", READ_TOKEN: "read"}
KIND, REPO = r"/api/(?P<kind>models|datasets|spaces|kernels)", r"/(?P<repo_id>[^/]+/[^/]+)"
REVISION, PATH = r"/(?P<revision>[^/]+)", r"/(?P<path>.+)"
FILE_KIND = r"(?:/(?P<kind>datasets|spaces|kernels))?"
ROUTES: list[tuple[str, re.Pattern, Callable]] = []


@dataclass
class Answer:
    """One answer: bytes go out as they are, anything else as JSON."""

    status: int = 200
    content: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()


class Refusal(Exception):
    """An answer that is an error; `code` is what the client makes its exception's class from."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        headers |= {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer = Answer(status, {"error": message}, headers)


@dataclass
class Request:
    """One request, already read: `role` is write, read or None (anonymous)."""

    method: str
    path: str
    query: str
    headers: Any
    body: bytes
    role: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def option(self, name: str, default: str = "") -> str:
        return parse_qs(self.query).get(name, [default])[0]


def route(method: str, pattern: str) -> Callable:
    """Registers a function under an address; its named groups are the arguments."""

    def register(function: Callable) -> Callable:
        ROUTES.append((method, re.compile(pattern), function))
        return function

    return register


def answer(hub: LoopbackHub, request: Request) -> Answer:
    """The answer of the first route that fits; 501 where the loopback Hub does not speak that part of the API."""
    for method, pattern, function in ROUTES:
        if request.method == method and (match := pattern.fullmatch(request.path)):
            arguments = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
            try:
                return function(hub, request, **arguments)
            except Refusal as refusal:
                return refusal.answer
    return Answer(501, {"error": f"the loopback Hub does not serve {request.method} {request.path}"})


def open_repository(hub: LoopbackHub, request: Request, kind: str, repo_id: str, write: bool = False) -> Repository:
    """The repository, or the refusal the Hub gives who may not see it (as if it did not exist) or not change it."""
    repository = hub.repositories.get((kind, repo_id))
    if repository is None or (repository.private and request.role is None):
        raise Refusal(404 if request.role else 401, "Repository not found", "RepoNotFound")
    if write:
        _must_write(request)
    return repository


def open_commit(repository: Repository, revision: str) -> Commit:
    commit = repository.find(revision)
    if commit is None:
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return commit


def _must_write(request: Request) -> None:
    if request.role is None:
        raise Refusal(401, "Invalid username or password.")
    if request.role != "write":
        raise Refusal(403, "Forbidden: this token has no write permission")


# Accounts and repositories


@route("GET", "/api/whoami-v2")
def whoami(hub: LoopbackHub, request: Request) -> Answer:
    if request.role is None:
        raise Refusal(401, "Invalid username or password.")
    token = {"accessToken": {"displayName": "loopback", "role": request.role}, "type": "access_token"}
    organizations = [{"type": "org", "name": ORGANIZATION, "roleInOrg": "admin"}]
    return Answer(content={"type": "user", "name": USER, "fullname": USER, "orgs": organizations, "auth": token})


@route("POST", "/api/repos/create")
def create_repository(hub: LoopbackHub, request: Request) -> Answer:
    _must_write(request)
    fields = request.json
    kind, owner = f"{fields.get('type', 'model')}s", fields.get("organization") or USER
    if owner not in (USER, ORGANIZATION):
        raise Refusal(403, f'You don\'t have the rights to create a {kind[:-1]} under the namespace "{owner}"')
    repo_id = f"{owner}/{fields['name']}"
    url = f"{hub.endpoint}/{'' if kind == 'models' else kind + '/'}{repo_id}"
    if (kind, repo_id) in hub.repositories:
        return Answer(409, {"error": f"You already created this {kind[:-1]} repo", "url": url})
    private = fields.get("visibility") == "private" or bool(fields.get("private"))
    hub.repositories[kind, repo_id] = Repository(kind, repo_id, private)
    return Answer(content={"url": url, "name": repo_id})


@route("DELETE", "/api/repos/delete")
def delete_repository(hub: LoopbackHub, request: Request) -> Answer:
    fields = request.json
    kind, repo_id = f"{fields.get('type', 'model')}s", f"{fields.get('organization') or USER}/{fields['name']}"
    open_repository(hub, request, kind, repo_id, write=True)
    del hub.repositories[kind, repo_id]
    return Answer()


@route("PUT", f"{KIND}{REPO}/settings")
def change_settings(hub: LoopbackHub, request: Request, kind: str, repo_id: str) -> Answer:
    repository = open_repository(hub, request, kind, repo_id, write=True)
    repository.private = request.json.get("visibility") == "private" or bool(request.json.get("private"))
    return Answer(content={"private": repository.private})


@route("POST", f"{KIND}{REPO}/branch{REVISION}")
def create_branch(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    repository = open_repository(hub, request, kind, repo_id, write=True)
    if revision in repository.branches:
        raise Refusal(409, f"Reference already exists: refs/heads/{revision}")
    repository.branches[revision] = open_commit(repository, request.json.get("startingPoint", MAIN)).oid
    return Answer()


# What is in a repository


@route("GET", f"{KIND}{REPO}(?:/revision{REVISION})?")
def repository_info(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str = MAIN) -> Answer:
    repository = open_repository(hub, request, kind, repo_id)
    commit = open_commit(repository, revision)
    siblings = [{"rfilename": path} for path in sorted(commit.files)]
    if request.option("blobs"):
        for sibling in siblings:
            entry = commit.files[sibling["rfilename"]].entry(sibling["rfilename"])
            sibling |= {"size": entry["size"], "blobId": entry["oid"]}
            if lfs := entry.get("lfs"):
                sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return Answer(
        content={
            "id": repo_id,
            "modelId": repo_id,
            "author": repo_id.split("/")[0],
            "sha": commit.oid,
            "lastModified": commit.date.isoformat().replace("+00:00", ".000Z"),
            "private": repository.private,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
        }
    )


@route("GET", f"{KIND}{REPO}/refs")
def references(hub: LoopbackHub, request: Request, kind: str, repo_id: str) -> Answer:
    branches = open_repository(hub, request, kind, repo_id).branches
    rows = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in branches.items()]
    return Answer(content={"branches": rows, "converts": [], "tags": [], "pullRequests": []})


@route("GET", f"{KIND}{REPO}/commits{REVISION}")
def commits(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    repository = open_repository(hub, request, kind, repo_id)
    open_commit(repository, revision)
    rows = [
        {
            "id": commit.oid,
            "title": commit.title,
            "message": commit.description,
            "date": commit.date.isoformat().replace("+00:00", ".000Z"),
            "authors": [{"user": USER}],
        }
        for commit in repository.history(revision)
    ]
    return _page(hub, request, rows)


@route("GET", f"{KIND}{REPO}/tree{REVISION}(?:{PATH})?")
def tree(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str, path: str = "") -> Answer:
    commit = open_commit(open_repository(hub, request, kind, repo_id), revision)
    if path not in commit.folders:
        raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound")
    return _page(hub, request, commit.entries(path, request.option("recursive").lower() == "true"))


@route("POST", f"{KIND}{REPO}/paths-info{REVISION}")
def paths_info(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    commit = open_commit(open_repository(hub, request, kind, repo_id), revision)
    wanted = parse_qs(request.body.decode()).get("paths", [])
    return Answer(content=[entry for entry in commit.entries() if entry["path"] in wanted])


def _page(hub: LoopbackHub, request: Request, rows: list[dict]) -> Answer:
    """One page of a list; where more follows, its address is in the header Link."""
    start = int(request.option("cursor", "0"))
    end = start + hub.page_size
    options = {name: values[0] for name, values in parse_qs(request.query).items()} | {"cursor": str(end)}
    link = f'<{hub.endpoint}{request.path}?{urlencode(options)}>; rel="next"'
    return Answer(content=rows[start:end], headers={"Link": link} if end < len(rows) else {})


@route("HEAD", f"{FILE_KIND}{REPO}/resolve{REVISION}{PATH}")
@route("GET", f"{FILE_KIND}{REPO}/resolve{REVISION}{PATH}")
def resolve(hub: LoopbackHub, request: Request, repo_id: str, revision: str, path: str, kind: str = "models") -> Answer:
    """A file; a large one by way of the object storage."""
    commit = open_commit(open_repository(hub, request, kind, repo_id), revision)
    headers = {"X-Repo-Commit": commit.oid}
    file = commit.files.get(path)
    if file is None:
        raise Refusal(404, "Entry not found", "EntryNotFound", **headers)
    if not file.large:
        return _content(request, file, headers)
    headers |= {"X-Linked-Size": str(len(file.content)), "X-Linked-Etag": f'"{file.sha256}"'}
    headers["Location"] = f"{hub.storage_endpoint}/objects/{file.sha256}"
    return Answer(302, b"", headers)


@route("GET", r"/objects/(?P<sha256>[0-9a-f]{64})")
def stored_object(hub: LoopbackHub, request: Request, sha256: str) -> Answer:
    if sha256 not in hub.objects:
        raise Refusal(404, "no such object")
    return _content(request, File(hub.objects[sha256], large=True), {})


def _content(request: Request, file: File, headers: dict[str, str]) -> Answer:
    """The content, or the end of it that was asked for: a download is resumed with Range: bytes=N-."""
    headers = {**headers, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
    match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
    if match is None:
        return Answer(200, file.content, headers)
    start, size = int(match[1]), len(file.content)
    return Answer(206, file.content[start:], {**headers, "Content-Range": f"bytes {start}-{size - 1}/{size}"})


# What a commit goes through


@route("POST", "/api/validate-yaml")
def validate_card(hub: LoopbackHub, request: Request) -> Answer:
    match = re.match(r"---\n(.*?)\n---\n", request.json["content"], re.DOTALL)
    try:
        metadata = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError as error:
        return Answer(400, {"errors": [{"message": str(error)}], "warnings": []})
    warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
    return Answer(content={"errors": [], "warnings": warnings})


@route("POST", f"{KIND}{REPO}/preupload{REVISION}")
def preupload(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    """For each file: does it go into git or into the object storage, and what is there now?"""
    commit = open_commit(open_repository(hub, request, kind, repo_id, write=True), revision)
    rows = []
    for wanted in request.json["files"]:
        name = wanted["path"].rsplit("/", 1)[-1]
        binary = b"\0" in base64.b64decode(wanted["sample"])
        large = binary or wanted["size"] > hub.large_from or any(fnmatch.fnmatch(name, p) for p in LARGE_PATTERNS)
        row = {"path": wanted["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        if file := commit.files.get(wanted["path"]):
            row["oid"] = file.etag
        rows.append(row)
    return Answer(content={"files": rows, "commitOid": commit.oid})


@route("POST", f"{FILE_KIND}{REPO}\\.git/info/lfs/objects/batch")
def large_objects(hub: LoopbackHub, request: Request, repo_id: str, kind: str = "models") -> Answer:
    """Where to put each object: nowhere if the storage has it."""
    open_repository(hub, request, kind, repo_id, write=True)
    rows = []
    for wanted in request.json["objects"]:
        row = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in hub.objects:
            row["actions"] = {
                "upload": {"href": f"{hub.storage_endpoint}/objects/{wanted['oid']}"},
                "verify": {"href": f"{hub.endpoint}/api/verify-object"},
            }
        rows.append(row)
    return Answer(content={"transfer": "basic", "objects": rows})


@route("PUT", r"/objects/(?P<sha256>[0-9a-f]{64})")
def store_object(hub: LoopbackHub, request: Request, sha256: str) -> Answer:
    if File(request.body).sha256 != sha256:
        raise Refusal(400, "the content does not have this SHA-256")
    hub.objects[sha256] = request.body
    return Answer(content=b"", headers={"ETag": f'"{sha256}"'})


@route("POST", "/api/verify-object")
def verify_object(hub: LoopbackHub, request: Request) -> Answer:
    if len(hub.objects.get(request.json["oid"], b"")) != request.json["size"]:
        raise Refusal(400, "the object is not there or has another size")
    return Answer()


@route("POST", f"{KIND}{REPO}/commit{REVISION}")
def make_commit(hub: LoopbackHub, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    repository = open_repository(hub, request, kind, repo_id, write=True)
    if revision not in repository.branches:
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    head, *operations = [json.loads(line) for line in request.body.splitlines()]
    files = dict(open_commit(repository, revision).files)
    parent = head["value"].get("parentCommit")
    if parent not in (None, repository.branches[revision]):
        raise Refusal(412, "A commit has happened since. Please refresh and try again.")
    for operation in operations:
        _apply(hub, files, operation["key"], operation["value"])
    commit = repository.commit(revision, files, head["value"]["summary"], head["value"].get("description") or "")
    url = f"{hub.endpoint}/{'' if kind == 'models' else kind + '/'}{repo_id}/commit/{commit.oid}"
    return Answer(content={"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})


def _apply(hub: LoopbackHub, files: dict[str, File], key: str, value: dict) -> None:
    path = value["path"]
    if key == "file":
        files[path] = File(base64.b64decode(value["content"], validate=True))
    elif key == "lfsFile":
        if value["oid"] not in hub.objects:
            raise Refusal(400, f"{path}: the large object {value['oid']} was not uploaded")
        files[path] = File(hub.objects[value["oid"]], large=True)
    elif key in ("deletedFile", "deletedFolder"):
        gone = [name for name in files if name == path or (key == "deletedFolder" and _is_below(name, path))]
        if not gone:
            raise Refusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        for name in gone:
            del files[name]
    else:
        raise Refusal(400, f"unknown operation {key!r}")


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(folder.rstrip("/") + "/")
