"""Publish artifacts to the Hugging Face Hub and to buckets, writing only what differs.

Files that the artifact no longer has are deleted only if the receipt of the last publication names them: files of
others, or of another clone, stay.

A failed attempt at the hub is repeated after 1, 2, 4, 8 and 16 seconds. huggingface_hub uploads no file twice, and
makes no commit without a difference. HF_ENDPOINT sets another hub. The token is only read from HF_TOKEN.
"""

import base64
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpulm.core import bucket, job_record, ledger
from tpulm.core.errors import UserError, causes, one_line
from tpulm.core.files import files_of, sha256, write_json
from tpulm.specs.artifacts import CARD, MANIFEST

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Files that describe the others, and are written after them.
LAST = (MANIFEST, CARD)


def checked(recipe: Mapping, inputs: Sequence[str]) -> dict[str, Path]:
    """Return `published_files` of recipe["names"]. Raises UserError for a file that has changed since its job."""
    ledger.refuse_changed(inputs, job_record.known_jobs())
    return published_files(recipe["names"], inputs)


def published_files(names: Iterable[str], inputs: Iterable[str]) -> dict[str, Path]:
    """Return the files of an artifact by their paths at the destination, in the order of writing."""
    files = {}
    for name, path in zip(names, map(Path, inputs), strict=True):
        for file in files_of(path):
            files[(Path(name) / file.relative_to(path)).as_posix()] = file
    return {name: files[name] for name in sorted(files, key=lambda name: (name in LAST, name))}


def last_receipt(log: str) -> dict:
    """Return the receipt of the last publication by the job with this log; {} without one."""
    return dict(([{}] + ledger.notes_of(ledger.path_of(log), "receipt"))[-1])


def write_receipt(path: str, receipt: Mapping) -> None:
    """Write a receipt, and note it for the next publication: Snakemake deletes the file before its job runs."""
    job_record.note(receipt=receipt)
    write_json(path, receipt)


def receipt_of(place: str, files: Mapping[str, Path], **extra: str) -> dict:
    """Return the receipt of a publication: place, the SHA-256 of each file under "files", and `extra`."""
    return {"place": place, **extra, "files": {name: sha256(path) for name, path in files.items()}}


def outdated(files: Mapping[str, Path], last: Mapping, place: str) -> list[str]:
    """Return the sorted files in the receipt `last` of the same place that the artifact no longer has."""
    sent = last.get("files", {}) if last.get("place") == place else {}
    return sorted(sent.keys() - files.keys())


def publish_to_bucket(folder: str, files: Mapping[str, Path], last: Mapping, say: Callable[[str], None]) -> dict:
    """Upload the files that differ to a folder of a bucket, delete outdated ones, and return the receipt.

    folder  gs://BUCKET/NAME
    files   by their paths in the folder
    last    receipt of the last publication

    Objects that arrived before a connection broke are not sent again. Raises UserError.
    """
    objects = bucket.objects(folder)
    changed = [name for name, path in files.items() if name not in objects or objects[name].md5 != md5(path)]
    for name in changed:
        bucket.upload(files[name], f"{folder}/{name}")
    removed = [name for name in outdated(files, last, folder) if name in objects]
    bucket.delete(f"{folder}/{name}" for name in removed)
    megabytes = sum(files[name].stat().st_size for name in changed) / 1e6
    say(f"{folder}: {len(changed)} of {len(files)} files, {megabytes:,.1f} MB, {len(removed)} deleted")
    return receipt_of(folder, files)


def md5(path: Path) -> str:
    """Return the MD5 of a file in base64, as Google Cloud Storage has it."""
    with open(path, "rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()


WAITS = (1, 2, 4, 8, 16)  # seconds between attempts
# HTTP statuses to retry. 409 and 412: another job has just committed. 404: a new repository is not known everywhere.
TEMPORARY = {404, 408, 409, 412, 425, 429, 500, 502, 503, 504}
AT_ONCE = 500  # files of a commit, because the hub ends requests that take long


def publish_to_hub(recipe: Mapping, files: Mapping[str, Path], last: Mapping, say: Callable[[str], None]) -> dict:
    """Commit the files that differ to a branch of a repository, and return the receipt with the branch's commit.

    recipe  repository (OWNER/NAME), type (model or dataset), branch, private, name (of the artifact)
    files   by their paths in the repository
    last    receipt of the last publication

    Raises UserError if the hub refuses, or still fails after all retries.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api, place = HfApi(token=os.environ["HF_TOKEN"]), f"{recipe['repository']}@{recipe['branch']}"
    removed = outdated(files, last, place)
    for wait in (*WAITS, None):
        try:
            commit = commit_files(api, recipe, files, removed)
            break
        except Exception as error:
            temporary, sentence = reason(error)
            if not temporary or wait is None:
                raise UserError(f"{recipe['repository']} cannot be published: {sentence}.") from error
            say(f"{recipe['repository']}: {sentence}; retrying in {wait} s")
            time.sleep(wait)
    say(f"{recipe['repository']}: {len(files)} files at commit {commit[:12]}")
    return receipt_of(place, files, commit=commit)


def commit_files(api: "HfApi", recipe: Mapping, files: Mapping[str, Path], removed: Sequence[str]) -> str:
    """Create repository and branch if needed, commit what differs, and return the id of the branch's last commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    place = {"repo_id": recipe["repository"], "repo_type": recipe["type"]}
    api.create_repo(**place, private=recipe["private"], exist_ok=True)
    if not api.repo_info(**place).private and recipe["private"]:
        raise UserError(
            f"{recipe['repository']} is public on the hub, but publish.private is true; make it private there, or set "
            "private: false."
        )
    if recipe["branch"] != "main":
        api.create_branch(**place, branch=recipe["branch"], exist_ok=True)
    remote_files = api.list_repo_files(**place, revision=recipe["branch"]) if removed else []
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationDelete(name) for name in removed if name in remote_files),
        *(CommitOperationAdd(name, path) for name, path in files.items()),
    ]
    for start in range(0, len(operations), AT_ONCE):
        batch, message = operations[start : start + AT_ONCE], recipe["name"]
        commit = api.create_commit(**place, operations=batch, revision=recipe["branch"], commit_message=message)
    return str(commit.oid)


def reason(error: BaseException) -> tuple[bool, str]:
    """Return whether an error of the hub may be temporary, and what it says. Raises any other error."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from requests.exceptions import ChunkedEncodingError, ConnectionError, Timeout

    for cause in causes(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code if cause.response is not None else 0
            if status in (401, 403):
                refusal = "does not accept" if status == 401 else "does not give write access to"
                return False, f"the hub {refusal} the token in HF_TOKEN (HTTP {status})"
            return status in TEMPORARY, f"the hub answers {status}: {one_line(cause)}"
        if isinstance(cause, OfflineModeIsEnabled):
            return False, "HF_HUB_OFFLINE forbids requests to the hub; unset it, and run again"
        if isinstance(cause, ConnectionError | Timeout | ChunkedEncodingError):
            return True, f"the hub cannot be reached: {one_line(cause)}"
    if isinstance(error, ValueError) and not isinstance(error, UserError):
        return False, one_line(error)
    raise error
