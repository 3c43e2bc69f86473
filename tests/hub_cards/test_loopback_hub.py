"""The loopback Hub behaves to the real client as the Hub does; and what that client does by itself when something fails.

The second half writes down, for whoever publishes, which of the client's requests it repeats and which it does not:

- repeated up to 5 times, after 1, 2, 4, 8 and 8 seconds, or after Retry-After and one second more: preupload, the
  batch of large objects, the upload of an object and its verification, each page of a list of files;
- sent once: whoami, the creation of a repository, the check of a card's metadata, the information on a repository,
  the search for a file, and the commit itself.

So it is in huggingface_hub 2.4. Release 1.5 repeats less: it does not read Retry-After, nor go on after a connection that
broke while an answer was expected, nor repeat the first page of a list.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import get_session
from packaging.version import Version

from .hub_routes import READ_TOKEN, WRITE_TOKEN, Answer
from .loopback_hub import (
    CARD,
    COMMIT,
    CREATE,
    INFO,
    LARGE_BATCH,
    LARGE_OBJECT,
    LARGE_VERIFY,
    PREUPLOAD,
    RESOLVE,
    TREE,
    WHOAMI,
    Cut,
    LoopbackHub,
)

REPO = "tester/little"
LARGE = bytes(range(256)) * 400  # binary
CONTENTS = {
    "README.md": b"---\nlicense: apache-2.0\n---\n# Card\n",
    "config.json": b'{"d_model": 16}\n',
    "weights.safetensors": LARGE,
    "notes/empty.txt": b"",
    "notes/long text.txt": b"one line\n" * 5000,  # large, because it is long
    "notes.txt": b"beside the folder of nearly that name\n",
}
ALL_WAITS = [1, 2, 4, 8, 8]
repeats_as_written = pytest.mark.skipif(
    Version(huggingface_hub.__version__) < Version("2.0"), reason="huggingface_hub before 2.0 repeats less"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "folder"


@pytest.fixture
def repo(hub_client: HfApi) -> str:
    hub_client.create_repo(REPO)
    return REPO


def commit(client: HfApi, **contents: bytes) -> str:
    """One commit of these files, in the root; a name's two underscores stand for its dot."""
    additions = [CommitOperationAdd(name.replace("__", "."), content) for name, content in contents.items()]
    return client.create_commit(REPO, additions, commit_message="change").oid


# It is a Hub


def test_what_is_uploaded_comes_back(loopback_hub, hub_client, repo, folder):
    hub_client.upload_folder(repo_id=repo, folder_path=folder)
    assert sorted(hub_client.list_repo_files(repo)) == sorted([".gitattributes", *CONTENTS])
    snapshot = Path(hub_client.snapshot_download(repo))
    for name, content in CONTENTS.items():
        assert (snapshot / name).read_bytes() == content
        assert loopback_hub.repository(repo).files()[name] == content
    single = hub_client.hf_hub_download(repo, "weights.safetensors", local_dir=folder.parent / "single")
    assert Path(single).read_bytes() == LARGE
    assert hub_client.file_exists(repo, "notes/empty.txt") and not hub_client.file_exists(repo, "notes/none.txt")
    with pytest.raises(RemoteEntryNotFoundError):
        hub_client.hf_hub_download(repo, "none.txt")


def test_large_files_go_to_the_storage_without_the_token(loopback_hub, hub_client, repo, folder):
    hub_client.upload_folder(repo_id=repo, folder_path=folder)
    hub_client.snapshot_download(repo)
    files = {file.rfilename: file for file in hub_client.model_info(repo, files_metadata=True).siblings}
    assert {name for name, file in files.items() if file.lfs} == {"weights.safetensors", "notes/long text.txt"}
    assert files["weights.safetensors"].size == len(LARGE) and files["config.json"].size == 16
    stored = [row for row in loopback_hub.requests if row.path.startswith("/objects/")]
    assert [row.method for row in stored].count("PUT") == 2 and [row.method for row in stored].count("GET") == 2
    assert not any("authorization" in name.lower() for row in stored for name in row.headers)
    assert get_session().get(f"{loopback_hub.storage_endpoint}/objects/0", headers={"Authorization": "x"}).is_error


def test_the_same_upload_again_makes_no_commit(loopback_hub, hub_client, repo, folder):
    first = hub_client.upload_folder(repo_id=repo, folder_path=folder, commit_message="first")
    puts = loopback_hub.count("PUT", LARGE_OBJECT)
    second = hub_client.upload_folder(repo_id=repo, folder_path=folder, commit_message="second")
    assert second.oid == first.oid and loopback_hub.commits(repo) == ["initial commit", "first"]
    assert loopback_hub.count("POST", COMMIT) == 1 and loopback_hub.count("PUT", LARGE_OBJECT) == puts
    (folder / "config.json").write_text("{}")
    hub_client.upload_folder(repo_id=repo, folder_path=folder, commit_message="third")
    assert loopback_hub.commits(repo) == ["initial commit", "first", "third"]
    assert loopback_hub.repository(repo).files()["config.json"] == b"{}"


def test_a_commit_without_a_change_would_be_counted(loopback_hub, hub_client, repo):
    """The Hub takes such a commit too: only the client leaves it out."""
    line = {"key": "header", "value": {"summary": "nothing"}}
    url = f"{loopback_hub.endpoint}/api/models/{repo}/commit/main"
    get_session().post(url, content=json.dumps(line), headers={"Authorization": f"Bearer {WRITE_TOKEN}"})
    assert loopback_hub.commits(repo) == ["initial commit", "nothing"]


def test_files_and_folders_are_deleted_and_an_old_parent_is_refused(loopback_hub, hub_client, repo, folder):
    before = hub_client.upload_folder(repo_id=repo, folder_path=folder).oid
    operations = [CommitOperationDelete("config.json"), CommitOperationDelete("notes/", is_folder=True)]
    after = hub_client.create_commit(repo, operations, commit_message="less", parent_commit=before).oid
    assert set(loopback_hub.repository(repo).files()) == {
        ".gitattributes",
        "README.md",
        "weights.safetensors",
        "notes.txt",
    }
    assert hub_client.file_exists(repo, "config.json", revision=before)
    with pytest.raises(HfHubHTTPError) as refused:
        hub_client.create_commit(repo, [CommitOperationAdd("a", b"a")], commit_message="late", parent_commit=before)
    assert refused.value.response.status_code == 412
    assert hub_client.model_info(repo).sha == after == hub_client.list_repo_commits(repo)[0].commit_id


def test_branches(loopback_hub, hub_client, repo):
    hub_client.create_branch(repo, branch="try/this")
    hub_client.create_branch(repo, branch="try/this", exist_ok=True)
    hub_client.upload_file(repo_id=repo, path_or_fileobj=b"x", path_in_repo="x", revision="try/this")
    assert not hub_client.file_exists(repo, "x") and hub_client.file_exists(repo, "x", revision="try/this")
    heads = {branch.name: branch.target_commit for branch in hub_client.list_repo_refs(repo).branches}
    assert heads["try/this"] == hub_client.model_info(repo, revision="try/this").sha != heads["main"]
    assert not hub_client.revision_exists(repo, "neither")


def test_lists_come_in_pages(loopback_hub, hub_client, repo, folder):
    hub_client.upload_folder(repo_id=repo, folder_path=folder)
    loopback_hub.page_size = 2
    assert len(hub_client.list_repo_files(repo)) == 7 and len(hub_client.list_repo_commits(repo)) == 2
    assert loopback_hub.count("GET", TREE) == 4  # seven files and a folder
    names = [entry.path for entry in hub_client.list_repo_tree(repo, "notes")]
    assert names == ["notes/empty.txt", "notes/long text.txt"]
    assert [entry.path for entry in hub_client.get_paths_info(repo, ["notes", "none"])] == ["notes"]


def test_tokens_and_private_repositories(loopback_hub, hub_client):
    hub_client.create_repo("workshop/secret", private=True)
    reader, nobody = (HfApi(endpoint=loopback_hub.endpoint, token=token) for token in (READ_TOKEN, False))
    assert hub_client.whoami()["name"] == "tester"
    assert reader.model_info("workshop/secret").private
    with pytest.raises(RepositoryNotFoundError):
        nobody.model_info("workshop/secret")
    with pytest.raises(RepositoryNotFoundError):
        hub_client.model_info("workshop/none")
    with pytest.raises(HfHubHTTPError) as refused:
        reader.upload_file(repo_id="workshop/secret", path_or_fileobj=b"x", path_in_repo="x")
    assert refused.value.response.status_code == 403
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(endpoint=loopback_hub.endpoint, token="hf_wrong").whoami()
    hub_client.update_repo_settings("workshop/secret", private=False)
    assert nobody.model_info("workshop/secret").private is False
    hub_client.delete_repo("workshop/secret")
    assert not hub_client.repo_exists("workshop/secret")


def test_repositories_are_made_once_and_in_ones_own_namespace(hub_client, repo):
    with pytest.raises(HfHubHTTPError) as refused:
        hub_client.create_repo(repo)
    assert refused.value.response.status_code == 409
    assert hub_client.create_repo(repo, exist_ok=True).repo_id == repo
    assert hub_client.create_repo("tester/space", repo_type="space", space_sdk="static").repo_type == "space"
    with pytest.raises(HfHubHTTPError) as refused:
        hub_client.create_repo("somebody/else")
    assert refused.value.response.status_code == 403


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_names_of_trees_and_commits_are_those_of_git(loopback_hub, hub_client, repo, folder):
    hub_client.upload_folder(repo_id=repo, folder_path=folder)
    commit = loopback_hub.repository(repo).find("main")

    def git(*arguments: str, **options) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()

    git("init", "--quiet")
    for path, file in commit.files.items():
        (folder / path).write_bytes(file.pointer if file.large else file.content)
    # our own .gitattributes would ask for git-lfs
    git("-c", "filter.lfs.clean=cat", "-c", "filter.lfs.required=false", "-c", "core.autocrlf=false", "add", ".")
    assert git("write-tree") == commit.folders[""]
    assert git("rev-parse", f"{commit.folders['']}:notes") == commit.folders["notes"]
    seconds = f"{int(commit.date.timestamp())} +0000"
    text = f"tree {commit.folders['']}\nparent {commit.parent}\nauthor tester <tester@localhost> {seconds}\n"
    text += f"committer tester <tester@localhost> {seconds}\n\n{commit.title}\n\n{commit.description}"
    assert git("hash-object", "-t", "commit", "--literally", "--stdin", input=text) == commit.oid


def test_what_it_does_not_serve_is_said(loopback_hub, hub_client, repo):
    with pytest.raises(HfHubHTTPError, match="does not serve GET /api/models/tester/little/discussions"):
        list(hub_client.get_repo_discussions(repo))


def test_a_program_of_its_own_uses_it_as_its_hub(loopback_hub):
    code = "import huggingface_hub; api = huggingface_hub.HfApi(); print(api.create_repo('made-there'))"
    result = loopback_hub.run("-c", code)
    assert result.stdout.strip() == f"{loopback_hub.endpoint}/tester/made-there", result.stderr
    assert loopback_hub.commits("tester/made-there") == ["initial commit"]
    result = loopback_hub.run("-c", "import huggingface_hub; print(huggingface_hub.get_token())", HF_TOKEN="")
    assert result.stdout.strip() == "None", result.stderr
    assert get_token() != WRITE_TOKEN  # this process is another matter


# What the client does by itself when something fails


def use(client: HfApi, pattern: str) -> None:
    """One call of the client that sends a request which the pattern fits."""
    calls = {
        WHOAMI: lambda: client.whoami(),
        CREATE: lambda: client.create_repo("tester/another"),
        INFO: lambda: client.model_info(REPO),
        TREE: lambda: client.list_repo_files(REPO),
        RESOLVE: lambda: client.file_exists(REPO, ".gitattributes"),
    }
    calls.get(pattern, lambda: commit(client, README__md=CONTENTS["README.md"], weights__bin=LARGE))()


REPEATED = [("POST", PREUPLOAD), ("POST", LARGE_BATCH), ("PUT", LARGE_OBJECT), ("POST", LARGE_VERIFY), ("GET", TREE)]
SENT_ONCE = [
    ("GET", WHOAMI),
    ("POST", CREATE),
    ("POST", CARD),
    ("POST", COMMIT),
    ("GET", INFO),
    ("HEAD", RESOLVE),
]


@repeats_as_written
@pytest.mark.parametrize(("method", "pattern"), REPEATED)
def test_requests_that_the_client_repeats(loopback_hub, hub_client, client_waits, repo, method, pattern):
    """Two failures (500) are mended after 1 and 2 seconds, a broken connection and 429 likewise."""
    for failure in (500, Cut.UPLOAD, 429):
        retry_after = 3 if failure == 429 else None
        loopback_hub.fail_next(method, pattern, failure, retry_after=retry_after)
    use(hub_client, pattern)
    assert client_waits == [1, 2, 4]  # Retry-After and a second; it happens to be the third wait too
    assert loopback_hub.statuses(method, pattern) == [500, None, 429, 200]


@repeats_as_written
def test_retry_after_is_obeyed_without_a_bound(loopback_hub, hub_client, client_waits, repo):
    loopback_hub.fail_next("POST", PREUPLOAD, 429, retry_after=86_400)
    commit(hub_client, a=b"a")
    assert client_waits == [86_401]


@repeats_as_written
@pytest.mark.parametrize(("method", "pattern"), REPEATED)
def test_the_client_gives_up_after_five_repetitions(loopback_hub, hub_client, client_waits, repo, method, pattern):
    """The last answer is raised as HfHubHTTPError; within the upload of a large file, as the cause of a RuntimeError."""
    loopback_hub.fail_next(method, pattern, 500, times=6)
    wrapped = pattern in (LARGE_OBJECT, LARGE_VERIFY)
    with pytest.raises(RuntimeError if wrapped else HfHubHTTPError) as failure:
        use(hub_client, pattern)
    error = failure.value.__cause__ if wrapped else failure.value
    assert isinstance(error, HfHubHTTPError) and error.response.status_code == 500
    assert client_waits == ALL_WAITS and loopback_hub.count(method, pattern) == 6
    assert loopback_hub.commits(repo) == ["initial commit"]


@pytest.mark.parametrize("failure", [500, 429, 409])
@pytest.mark.parametrize(("method", "pattern"), SENT_ONCE)
def test_requests_that_the_client_sends_once(loopback_hub, hub_client, client_waits, repo, method, pattern, failure):
    """Any status is raised as HfHubHTTPError at once, also those that mean "later"."""
    loopback_hub.fail_next(method, pattern, failure, retry_after=1)
    with pytest.raises(HfHubHTTPError) as raised:
        use(hub_client, pattern)
    assert raised.value.response.status_code == failure
    assert raised.value.response.headers["Retry-After"] == "1"
    assert client_waits == [] and loopback_hub.statuses(method, pattern).count(failure) == 1
    assert loopback_hub.commits(repo) == ["initial commit"]


@pytest.mark.parametrize("failure", [401, 403])
@pytest.mark.parametrize(("method", "pattern"), [*REPEATED, *SENT_ONCE])
def test_refusals_are_raised_at_once(loopback_hub, hub_client, client_waits, repo, method, pattern, failure):
    loopback_hub.fail_next(method, pattern, failure)
    with pytest.raises((HfHubHTTPError, RuntimeError)) as raised:
        use(hub_client, pattern)
    error = raised.value if isinstance(raised.value, HfHubHTTPError) else raised.value.__cause__
    assert error.response.status_code == failure and client_waits == []


@pytest.mark.parametrize("pattern", [CREATE, COMMIT, CARD])
def test_a_broken_connection_is_an_http_error_without_an_answer(loopback_hub, hub_client, client_waits, repo, pattern):
    """`HTTPError` of huggingface_hub.errors is the base of the HTTP library in use, whichever that is; no OSError."""
    loopback_hub.fail_next("POST", pattern, Cut.UPLOAD)
    with pytest.raises(HTTPError) as raised:
        use(hub_client, pattern)
    assert not isinstance(raised.value, (HfHubHTTPError, OSError))
    assert client_waits == [] and loopback_hub.commits(repo) == ["initial commit"]


def test_a_commit_whose_answer_is_lost_is_made_once(loopback_hub, hub_client, repo):
    """The commit is there; the whole call again, with new operations, finds nothing to do. The same request would not."""
    loopback_hub.fail_next("POST", COMMIT, Cut.ANSWER)
    with pytest.raises(HTTPError):
        commit(hub_client, a=b"a", weights__bin=LARGE)
    assert loopback_hub.commits(repo) == ["initial commit", "change"]
    assert commit(hub_client, a=b"a", weights__bin=LARGE) == loopback_hub.repository(repo).branches["main"]
    assert loopback_hub.commits(repo) == ["initial commit", "change"]


def test_a_creation_without_the_right_succeeds_where_the_repository_is(loopback_hub, hub_client, repo):
    """With exist_ok the client then looks for it: who may not write learns that only from preupload."""
    loopback_hub.fail_next("POST", CREATE, 403)
    assert hub_client.create_repo(repo, exist_ok=True).repo_id == repo
    loopback_hub.fail_next("POST", CREATE, 403)
    with pytest.raises(HfHubHTTPError) as raised:
        hub_client.create_repo("tester/none", exist_ok=True)
    assert raised.value.response.status_code == 403


def test_a_page_instead_of_json_breaks_the_check_of_the_card(loopback_hub, hub_client, repo):
    """The client reads the answer as JSON before it looks at the status: a proxy's error page is a JSONDecodeError."""
    loopback_hub.fail_next("POST", CARD, Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"}))
    with pytest.raises(json.JSONDecodeError):
        commit(hub_client, README__md=CONTENTS["README.md"])
    with pytest.raises(ValueError, match="Invalid metadata in README"):
        commit(hub_client, README__md=b"---\na: [\n---\n")


@repeats_as_written
@pytest.mark.parametrize("name", ["weights.bin", "short.txt"])
def test_a_download_that_breaks_is_resumed(loopback_hub, hub_client, client_waits, repo, name, monkeypatch):
    """The second request asks for what is not there yet: Range. The client keeps whole chunks only, of 10 MiB."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    content = LARGE if name == "weights.bin" else b"0123456789" * 100
    hub_client.upload_file(repo_id=repo, path_or_fileobj=content, path_in_repo=name)
    pattern = LARGE_OBJECT if name == "weights.bin" else RESOLVE
    loopback_hub.fail_next("GET", pattern, Cut.ANSWER)
    assert Path(hub_client.hf_hub_download(repo, name)).read_bytes() == content
    parts = [
        row for row in loopback_hub.requests if row.method == "GET" and row.path.startswith(("/objects", "/tester"))
    ]
    assert [row.status for row in parts] == [None, 206]
    assert f"bytes={len(content) // 2}-" in parts[1].headers.values() and client_waits == [1]


def test_an_ordered_failure_that_is_not_met_is_noticed():
    with LoopbackHub() as hub:
        hub.fail_next("GET", WHOAMI, 500, times=2)
        assert hub.unused_faults == 2
