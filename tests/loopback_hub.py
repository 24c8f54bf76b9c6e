"""A Hugging Face Hub on loopback: as much of its API as publishing and downloading ask for, on connections that break.

The state is in memory: repositories with branches of commits, and large file storage (LFS) by SHA-256.
"""

import base64
import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from loopback_bucket import Handler

TOKEN = "hf_loopbackLoopbackLoopback0001"
LARGE = (".safetensors", ".h5", ".tfrecord", ".index", ".spm")


@dataclass
class Repository:
    """A repository: whether it is private, and of each branch its commits, each all files by path."""

    private: bool
    commits: dict[str, tuple[str, dict[str, bytes]]] = field(default_factory=dict)  # by id: message, files
    branches: dict[str, list[str]] = field(default_factory=lambda: {"main": []})

    def commit(self, branch: str, message: str, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr((branch, len(self.commits), message)).encode()).hexdigest()
        self.commits[name] = (message, files)
        self.branches[branch].append(name)
        return name

    def files(self, revision: str = "main") -> dict[str, bytes]:
        name = self.branches[revision][-1] if revision in self.branches else revision
        return self.commits[name][1]


class Hub:
    """The hub's state, and what goes wrong."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}  # by models/OWNER/NAME or datasets/OWNER/NAME
        self.large: dict[str, bytes] = {}
        self.cards: list[str] = []
        self.counts, self.breaks = Counter(), []
        self.url, self.lock = "", threading.Lock()

    def break_off(self, method: str, path: str, how: str, times: int = 1) -> None:
        """Let the next requests of this kind fail.

        how  reset: before anything is heard; half: in the middle of what is sent; lost: after it was done, with no
             answer; or a status of HTTP
        """
        self.breaks += [(method, path, how)] * times

    def fault(self, method: str, path: str) -> str | None:
        for number, (verb, part, how) in enumerate(self.breaks):
            if verb == method and part in path:
                del self.breaks[number]
                self.counts["broken"] += 1
                return how
        return None


def blob_id(content: bytes) -> str:
    """Return git's id of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubHandler(Handler):
    hub: Hub

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Send an answer: JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def any_method(self) -> None:
        place = urlsplit(self.path)
        path, self.query = unquote(place.path), parse_qs(place.query)
        fault, length = self.hub.fault(self.command, path), int(self.headers.get("Content-Length", 0))
        with contextlib.suppress(ConnectionError, TimeoutError):
            if fault in ("reset", "half"):
                self.rfile.read(length // 2 if fault == "half" else 0)
                self.reset()
                return
            body = self.rfile.read(length)
            if fault and fault.isdigit():
                self.answer(int(fault), {"error": "made up"})
                return
            if fault == "lost":
                self.answer = lambda *arguments, **named: self.reset()  # type: ignore[method-assign]
            if not path.startswith(("/large/", "/api/validate")) and self.command != "HEAD":
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, {"error": "Invalid credentials"})
                    return
            with self.hub.lock:
                self.serve(path.strip("/").split("/"), body)

    do_GET = do_POST = do_PUT = do_HEAD = any_method

    def serve(self, parts: list[str], body: bytes) -> None:
        if parts[:2] == ["api", "validate-yaml"]:
            self.hub.cards.append(json.loads(body)["content"])
            self.answer(200, {"errors": [], "warnings": []})
        elif parts[:3] == ["api", "repos", "create"]:
            self.create(json.loads(body))
        elif parts[0] == "large":
            self.hub.counts["large files"] += 1
            self.hub.large[hashlib.sha256(body).hexdigest()] = body
            self.answer(200)
        elif parts[-4:] == ["info", "lfs", "objects", "batch"]:
            self.batch(json.loads(body))
        elif parts[0] == "api":
            self.repository("/".join(parts[1:4]), parts[4:], body)
        elif "resolve" in parts:
            self.resolve(parts)
        else:
            self.answer(404, {"error": "no such thing"})

    def create(self, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        key = f"{asked.get('type', 'model')}s/{name}"
        if key in self.hub.repositories:
            self.answer(409, {"error": "You already created this repo", "url": f"{self.hub.url}/{name}"})
            return
        made = self.hub.repositories[key] = Repository(bool(asked.get("private")))
        made.commit("main", "initial commit", {})
        self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": "0"})

    def repository(self, key: str, rest: list[str], body: bytes) -> None:
        found = self.hub.repositories.get(key)
        if found is None:
            self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return
        what, revision = (rest[0], rest[1]) if rest else ("revision", "main")
        if what == "branch":
            self.answer(409 if revision in found.branches else 200, {})
            found.branches.setdefault(revision, list(found.branches["main"]))
        elif revision not in found.branches and revision not in found.commits:
            self.answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        elif what == "revision":
            sha = found.branches[revision][-1] if revision in found.branches else revision
            siblings = [{"rfilename": path} for path in found.files(revision)]
            name = key.partition("/")[2]
            self.answer(200, {"id": name, "sha": sha, "private": found.private, "siblings": siblings})
        elif what == "tree":
            whole = self.query.get("recursive", ["false"])[0].lower() == "true"
            self.answer(200, self.listing(found.files(revision), "".join(f"{part}/" for part in rest[2:]), whole))
        elif what == "preupload":
            self.preupload(found.files(revision), json.loads(body)["files"])
        elif what == "commit":
            self.commit(key, revision, [json.loads(line) for line in body.splitlines()])

    def listing(self, files: dict[str, bytes], inside: str, whole: bool) -> list[dict]:
        """Return the entries of a folder, "" or with a slash at the end; with `whole`, of those in it, too."""
        found = {path: content for path, content in files.items() if path.startswith(inside)}
        folders = {path[: at + 1] for path in found for at in range(len(inside), len(path)) if path[at] == "/"}
        told = [{"type": "file", "path": path, "size": len(found[path]), "oid": blob_id(found[path])} for path in found]
        told += [{"type": "directory", "path": path[:-1], "oid": blob_id(path.encode())} for path in sorted(folders)]
        return [entry for entry in told if whole or "/" not in entry["path"][len(inside) :]]

    def preupload(self, files: dict[str, bytes], asked: list[dict]) -> None:
        """Say how files are to be sent."""
        told = []
        for file in asked:
            mode = "lfs" if file["path"].endswith(LARGE) else "regular"
            content = files.get(file["path"])
            oid = content and (hashlib.sha256(content).hexdigest() if mode == "lfs" else blob_id(content))
            told.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer(200, {"files": told})

    def batch(self, asked: dict) -> None:
        """Say where large files are to be sent that are not there."""
        for item in asked["objects"]:
            if item["oid"] not in self.hub.large:
                item["actions"] = {"upload": {"href": f"{self.hub.url}/large/{item['oid']}"}}
        self.answer(200, {"transfer": "basic", "objects": asked["objects"]})

    def commit(self, key: str, branch: str, lines: list[dict]) -> None:
        found, url = self.hub.repositories[key], f"{self.hub.url}/{key.removeprefix('models/')}"
        files, message = dict(found.files(branch)), lines[0]["value"]["summary"]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            else:  # deletedFile
                del files[value["path"]]
        name = found.commit(branch, message, files)
        self.hub.counts["commits"] += 1
        self.answer(200, {"success": True, "commitOid": name, "commitUrl": f"{url}/commit/{name}"})

    def resolve(self, parts: list[str]) -> None:
        at = parts.index("resolve")
        key = "/".join(parts[:at]) if parts[0] == "datasets" else "models/" + "/".join(parts[:at])
        found, revision, path = self.hub.repositories.get(key), parts[at + 1], "/".join(parts[at + 2 :])
        if found is None or path not in found.files(revision):
            self.answer(404, {}, X_Error_Code="EntryNotFound" if found else "RepoNotFound")
            return
        content = found.files(revision)[path]
        commit = found.branches[revision][-1] if revision in found.branches else revision
        self.answer(200, content, ETag=f'"{blob_id(content)}"', X_Repo_Commit=commit)


@contextlib.contextmanager
def served() -> Iterator[Hub]:
    """Serve a hub from a thread of this process."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ThisHub", (HubHandler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
