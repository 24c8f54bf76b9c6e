"""Artifacts at the Hugging Face Hub and in buckets: what differs is written, and nothing else.

What is not of the artifact any more is deleted only where the receipt of the last publication names it: what others put
beside it, or another clone, stays.

At the hub, an attempt that fails is repeated after 1, 2, 4, 8 and 16 seconds, and begins with asking what is there:
files that arrived before the connection broke are not sent again, and a commit whose answer was lost is not made again.
HF_ENDPOINT sets another hub, as for all of its clients. HF_TOKEN is the token; no other place is looked at for one.
"""

import base64
import hashlib
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpulm.config.publications import CARD
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job_record import name_here
from tpulm.specs.artifacts import MANIFEST

# What tells of the other files: it comes when they are there.
LAST = (MANIFEST, CARD)


@dataclass(frozen=True)
class Content:
    """A file to be published."""

    path: Path

    @cached_property
    def bytes(self) -> int:
        """Its size."""
        return self.path.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """Its SHA-256, in hexadecimal."""
        return sha256(self.path)


def contents(recipe: Mapping, inputs: Sequence[str], card: Sequence[str]) -> dict[str, Content]:
    """Return the files of an artifact by their paths at the place that they go to, sorted.

    recipe  names, the paths there of the files `inputs`; whole, whether `inputs` is a folder instead, of whose files
            each goes where it is in there, apart from hidden ones
    card    README.md, if there is one
    """
    if recipe["whole"]:
        folder = Path(inputs[0])
        paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        found = {str(name): path for name, path in paths.items() if not any(p.startswith(".") for p in name.parts)}
    else:
        found = dict(zip(recipe["names"], map(Path, inputs), strict=True))
    if card:
        found[CARD] = Path(card[0])
    return {name: Content(found[name]) for name in sorted(found)}


def hashes(found: Mapping[str, Content]) -> dict[str, str]:
    """Return the SHA-256 of each file, for the receipt."""
    return {path: content.sha256 for path, content in found.items()}


def in_order(paths: Iterable[str]) -> list[str]:
    """Return paths in the order in which files are sent."""
    return sorted(paths, key=lambda path: (path in LAST, path))


def root_of(path: str, name: str) -> Path:
    """Return the folder of the results, of which `path` is the file or folder `name`.

    Raises UserError where it is not.
    """
    if not path.endswith(f"/{name}"):
        raise UserError(f"{path} is not {name} of the results.")
    return Path(path.removesuffix(f"/{name}"))


SENT = Path(".snakemake") / "published"  # copies of receipts: Snakemake deletes a receipt before its job runs


def last_receipt(path: str) -> dict:
    """Return the receipt of the last publication from this folder; an empty one where there is none."""
    kept = SENT / name_here(path)
    return dict(read_json(kept)) if kept.is_file() else {}


def was_published(receipt: str, recipe: Mapping) -> bool:
    """Return whether this folder has published the model that a run ends with, by the receipt of its checkpoint."""
    root, newest = receipt.removesuffix(f"{recipe['name']}.json"), recipe["newest"]
    return bool(newest and last_receipt(f"{root}{newest['model']}.json"))


def write_receipt(path: str, receipt: Mapping) -> None:
    """Write a receipt, and keep it for the next publication."""
    kept = SENT / name_here(path)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, receipt)
    write_json(path, receipt)


def outdated(there: Container[str], wanted: Container[str], before: Mapping, place: str) -> list[str]:
    """Return the files at a place that the last publication sent there, and that the artifact has no more.

    before  the receipt of the last publication
    """
    sent = before.get("files", {}) if before.get("place") == place else {}
    return sorted(path for path in sent if path in there and path not in wanted)


def publish_to_bucket(
    recipe: Mapping, found: Mapping[str, Content], before: Mapping, say: Callable[[str], None]
) -> dict:
    """Bring a folder of a bucket to hold these files; return the receipt.

    recipe  folder, gs://BUCKET/NAME
    found   the files by their paths there
    before  the receipt of the last publication

    Objects that arrived before a connection broke are not sent again. The receipt has `place`, and `files`, the SHA-256
    of each. Raises UserError.
    """
    folder = recipe["folder"]
    there = bucket.objects(folder)
    changed = in_order(path for path, content in found.items() if path not in there or there[path].md5 != md5(content))
    for path in changed:
        bucket.upload(found[path].path, f"{folder}/{path}")
    gone = outdated(there, found, before, folder)
    bucket.delete(f"{folder}/{path}" for path in gone)
    megabytes = sum(found[path].bytes for path in changed) / 1e6
    say(f"{folder}: {len(changed)} of {len(found)} files, {megabytes:,.1f} MB, {len(gone)} deleted")
    return {"place": folder, "files": hashes(found)}


def md5(content: Content) -> str:
    """Return the MD5 of a file as Google writes it: in base64."""
    with open(content.path, "rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()


if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

WAITS = (1, 2, 4, 8, 16)  # seconds between attempts
# Of HTTP: another job has just committed (409, 412), or what was just made is not yet known everywhere (404), too.
TEMPORARY = {404, 408, 409, 412, 425, 429, 500, 502, 503, 504}
AT_ONCE = 500  # files of a commit: the hub ends requests that take long

Result = TypeVar("Result")


def publish_to_hub(
    recipe: Mapping, found: Mapping[str, Content], before: Mapping, say: Callable[[str], None], published: bool = False
) -> dict:
    """Bring a repository to hold these files, in a commit if one is needed; return the receipt.

    recipe  repository, OWNER/NAME; type, model or dataset; branch; private; name, of the artifact; newest: None, or
            another branch, and which of `found` its files are then, by their paths there
    published  whether what the run ends with was published, which then stays in its place
    found   the files by their paths there
    before  the receipt of the last publication

    The receipt has `place`, `commit`, and `files`, the SHA-256 of each. Raises UserError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(token=os.environ["HF_TOKEN"])
    place = {"repo_id": recipe["repository"], "repo_type": recipe["type"]}

    def brought(recipe: Mapping, found: Mapping[str, Content], before: Mapping) -> str:
        patiently(lambda: make(api, place, recipe), recipe["repository"], say)
        return patiently(lambda: bring(api, place, recipe, found, before, say), recipe["repository"], say)

    commit = brought(recipe, found, before)
    newest = recipe["newest"]
    if newest and not published:
        brought({**recipe, **newest}, {path: found[name] for path, name in newest["files"].items()}, {})
    return {"place": place_of(recipe), "commit": commit, "files": hashes(found)}


def place_of(recipe: Mapping) -> str:
    """Return what a receipt calls the branch of a repository."""
    return f"{recipe['repository']}@{recipe['branch']}"


def make(api: "HfApi", place: Mapping, recipe: Mapping) -> None:
    """Make repository and branch, those that do not exist.

    Raises UserError where the repository is public and private: true asks for one that is not.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        private = api.repo_info(**place).private
    except RepositoryNotFoundError:
        api.create_repo(**place, private=recipe["private"], exist_ok=True)
        private = recipe["private"]
    if recipe["private"] and not private:
        raise UserError(
            f"{recipe['repository']} is public on the hub, but publish.private is true; make it private there, or set "
            "private: false."
        )
    if recipe["branch"] != "main":
        api.create_branch(**place, branch=recipe["branch"], exist_ok=True)


def bring(
    api: "HfApi", place: Mapping, recipe: Mapping, found: Mapping[str, Content], before: Mapping, say: Callable
) -> str:
    """Commit what differs; return the commit that the branch is at then.

    Of many files, a commit takes some, in the order of `in_order`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    there = listing(api, place, recipe["branch"])
    changed = in_order(path for path, content in found.items() if not same(content, there.get(path)))
    gone = outdated(there, found, before, place_of(recipe))
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationAdd(path, found[path].path) for path in changed),
        *(CommitOperationDelete(path) for path in gone),
    ]
    if not operations:
        say(f"{recipe['repository']} is up to date: {len(found)} files")
        return str(api.repo_info(**place, revision=recipe["branch"]).sha)
    commit = ""
    for start in range(0, len(operations), AT_ONCE):
        part = operations[start : start + AT_ONCE]
        message = (
            recipe["name"] if part == operations else f"{recipe['name']}: {len(part)} of {len(operations)} changes"
        )
        done = api.create_commit(**place, operations=part, revision=recipe["branch"], commit_message=message)
        commit = done.oid
    megabytes = sum(found[path].bytes for path in changed) / 1e6
    say(f"{recipe['repository']}: {len(changed)} files, {megabytes:,.1f} MB, {len(gone)} deleted, commit {commit[:12]}")
    return commit


def listing(api: "HfApi", place: Mapping, branch: str) -> dict[str, "RepoFile"]:
    """Return the files of a branch by path."""
    from huggingface_hub.hf_api import RepoFile

    tree = api.list_repo_tree(**place, recursive=True, revision=branch)
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def same(content: Content, there: "RepoFile | None") -> bool:
    """Return whether a file of a repository is this one: by SHA-256 in large file storage, by git's id otherwise."""
    from huggingface_hub.utils.sha import git_hash

    if there is None or there.size != content.bytes:
        return False
    if there.lfs:
        return there.lfs.sha256 == content.sha256
    return there.blob_id == git_hash(content.path.read_bytes())


def patiently(attempt: Callable[[], Result], repository: str, say: Callable[[str], None]) -> Result:
    """Return what `attempt` returns, after further attempts if need be. Raises UserError where the hub refuses."""
    for wait in (*WAITS, None):
        try:
            return attempt()
        except UserError:
            raise
        except Exception as error:
            said = reason(error)
            if said is None:
                raise
            temporary, sentence = said
            if not temporary or wait is None:
                raise UserError(f"{repository} cannot be published: {sentence}") from error
            say(f"{repository}: {sentence}; retrying in {wait} s")
            time.sleep(wait)
    raise AssertionError("an attempt returns or raises")


def reason(error: BaseException) -> tuple[bool, str] | None:
    """Return whether an error of the hub may be gone later, and what to say of it; None for one of another kind."""
    from huggingface_hub.errors import HfHubHTTPError
    from requests.exceptions import ChunkedEncodingError, ConnectionError, Timeout

    for cause in causes(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code if cause.response is not None else 0
            if status in (401, 403):
                what = "does not accept" if status == 401 else "does not give write access to"
                return False, f"the hub {what} the token in HF_TOKEN (HTTP {status})."
            return status in TEMPORARY, f"the hub answers {status}: {in_a_line(cause)}"
        if isinstance(cause, ConnectionError | Timeout | ChunkedEncodingError):
            return True, f"the hub cannot be reached: {in_a_line(cause)}"
    return (False, in_a_line(error)) if isinstance(error, ValueError) else None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def in_a_line(error: BaseException) -> str:
    """Return what an error says in a line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
