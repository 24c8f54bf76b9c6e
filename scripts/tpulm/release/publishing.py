"""Artifacts at the Hugging Face Hub and in buckets: what differs is written, and nothing else.

What is not of the artifact any more is deleted only where the receipt of the last publication names it: what others put
beside it, or another clone, stays.

At the hub, an attempt that fails is repeated after 1, 2, 4, 8 and 16 seconds. huggingface_hub asks what is there: it
sends no file again that arrived before the connection broke, and makes no commit where nothing differs.
HF_ENDPOINT sets another hub, as for all of its clients. HF_TOKEN is the token; no other place is looked at for one.
"""

import base64
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpulm.core import bucket, job_record, ledger
from tpulm.core.errors import UserError
from tpulm.core.files import files_of, sha256, write_json
from tpulm.specs.artifacts import CARD, MANIFEST

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# What tells of the other files: it comes when they are there.
LAST = (MANIFEST, CARD)


def checked(recipe: Mapping, inputs: Sequence[str]) -> dict[str, Path]:
    """Return the files of an artifact, see `published_files`. Raises UserError where one is not as its job left it.

    recipe  names
    """
    ledger.refuse_changed(inputs, job_record.known_jobs())
    return published_files(recipe["names"], inputs)


def published_files(names: Iterable[str], inputs: Iterable[str]) -> dict[str, Path]:
    """Return the files of an artifact by their paths at the place that they go to, in the order in which they go.

    names  the paths there of `inputs`; of a folder, each file goes where it is in there, apart from hidden ones
    """
    found = {}
    for name, path in zip(names, map(Path, inputs), strict=True):
        for file in files_of(path):
            found[(Path(name) / file.relative_to(path)).as_posix()] = file
    return {name: found[name] for name in sorted(found, key=lambda name: (name in LAST, name))}


def last_receipt(log: str) -> dict:
    """Return the receipt of the last publication by the job with this log; an empty one where there is none."""
    return dict(([{}] + ledger.notes_of(ledger.path_of(log), "receipt"))[-1])


def write_receipt(path: str, receipt: Mapping) -> None:
    """Write a receipt, and note it for the next publication: Snakemake deletes the file before its job runs."""
    job_record.note(receipt=receipt)
    write_json(path, receipt)


def receipt_of(place: str, found: Mapping[str, Path], **more: str) -> dict:
    """Return the receipt of a publication: place; files, the SHA-256 of each; and `more`."""
    return {"place": place, **more, "files": {name: sha256(path) for name, path in found.items()}}


def outdated(found: Mapping[str, Path], before: Mapping, place: str) -> list[str]:
    """Return the files of the last publication, by its receipt `before`, that the artifact has no more."""
    sent = before.get("files", {}) if before.get("place") == place else {}
    return sorted(sent.keys() - found.keys())


def publish_to_bucket(folder: str, found: Mapping[str, Path], before: Mapping, say: Callable[[str], None]) -> dict:
    """Bring a folder of a bucket to hold these files; return the receipt.

    folder  gs://BUCKET/NAME
    found   the files by their paths there
    before  the receipt of the last publication

    Objects that arrived before a connection broke are not sent again. Raises UserError.
    """
    there = bucket.objects(folder)
    changed = [name for name, path in found.items() if name not in there or there[name].md5 != md5(path)]
    for name in changed:
        bucket.upload(found[name], f"{folder}/{name}")
    gone = [name for name in outdated(found, before, folder) if name in there]
    bucket.delete(f"{folder}/{name}" for name in gone)
    megabytes = sum(found[name].stat().st_size for name in changed) / 1e6
    say(f"{folder}: {len(changed)} of {len(found)} files, {megabytes:,.1f} MB, {len(gone)} deleted")
    return receipt_of(folder, found)


def md5(path: Path) -> str:
    """Return the MD5 of a file as Google writes it: in base64."""
    with open(path, "rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()


WAITS = (1, 2, 4, 8, 16)  # seconds between attempts
# Of HTTP: another job has just committed (409, 412), or what was just made is not yet known everywhere (404), too.
TEMPORARY = {404, 408, 409, 412, 425, 429, 500, 502, 503, 504}
AT_ONCE = 500  # files of a commit: the hub ends requests that take long


def publish_to_hub(recipe: Mapping, found: Mapping[str, Path], before: Mapping, say: Callable[[str], None]) -> dict:
    """Bring a branch of a repository to hold these files, in a commit if one is needed; return the receipt.

    recipe  repository, OWNER/NAME; type, model or dataset; branch; private; name, of the artifact
    found   the files by their paths there
    before  the receipt of the last publication

    The receipt has the commit that the branch is at, too. Raises UserError where the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api, place = HfApi(token=os.environ["HF_TOKEN"]), f"{recipe['repository']}@{recipe['branch']}"
    gone = outdated(found, before, place)
    for wait in (*WAITS, None):
        try:
            commit = bring(api, recipe, found, gone)
            break
        except Exception as error:
            temporary, sentence = reason(error)
            if not temporary or wait is None:
                raise UserError(f"{recipe['repository']} cannot be published: {sentence}") from error
            say(f"{recipe['repository']}: {sentence}; retrying in {wait} s")
            time.sleep(wait)
    say(f"{recipe['repository']}: {len(found)} files at commit {commit[:12]}")
    return receipt_of(place, found, commit=commit)


def bring(api: "HfApi", recipe: Mapping, found: Mapping[str, Path], gone: Sequence[str]) -> str:
    """Make repository and branch, if there are none, and commit what differs; return the commit of the branch.

    gone  files that are deleted where they are there

    One commit takes a part of many files. Raises UserError where the repository is public and private: true asks for
    one that is not.
    """
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
    there = api.list_repo_files(**place, revision=recipe["branch"]) if gone else []
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationDelete(name) for name in gone if name in there),
        *(CommitOperationAdd(name, path) for name, path in found.items()),
    ]
    for start in range(0, len(operations), AT_ONCE):
        part, message = operations[start : start + AT_ONCE], recipe["name"]
        done = api.create_commit(**place, operations=part, revision=recipe["branch"], commit_message=message)
    return str(done.oid)


def reason(error: BaseException) -> tuple[bool, str]:
    """Return whether an error of the hub may be gone later, and what to say of it. Raises errors of another kind."""
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
    if isinstance(error, ValueError) and not isinstance(error, UserError):
        return False, in_a_line(error)
    raise error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def in_a_line(error: BaseException) -> str:
    """Return the message of an error, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
