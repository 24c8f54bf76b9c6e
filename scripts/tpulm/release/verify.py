"""Check an archive that `snakemake archive` made, and rebuild what it describes.

Each file in it is compared with its SHA-256 in manifest.json. Where models-1.zip.sha256 lies beside the archive, the
whole archive is compared with that, too, as `sha256sum -c models-1.zip.sha256` does.

    python verify.py models-1.zip                            is it whole?
    python verify.py models-1.zip --rebuild FOLDER           make everything again, and compare every artifact

It needs Python 3.11 or later and nothing else; --rebuild needs the version that the archive was made with, and a
package index, from which the locked environment is installed.
Hashes find damage. They do not protect against somebody who changes the archive on purpose, who can compute them anew
and change the copy of this program in it.
"""

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
# Types of the values of a manifest by key.
KEYS = {"artifacts": dict, "outside": dict, "configfiles": dict, "overrides": dict, "target": str}
LARGEST_MANIFEST = 1 << 28  # bytes; the manifest is read into memory
LONGEST = 2000  # characters of a sentence


def sum_file(path: str | Path) -> Path:
    """Return the path of the file next to an archive with its SHA-256, in the format of `sha256sum`."""
    return Path(f"{path}.sha256")


def inside(name: str) -> bool:
    """Return whether a name in an archive stays inside the folder that it is unpacked to."""
    return not any(part in ("", ".", "..") for part in name.split("/")) and "\\" not in name and "\0" not in name


def damages_of(path: Path) -> list[str]:
    """Return a sentence for each damage of an archive."""
    damages: list[str] = []
    try:
        damages += damages_of_whole(path)
        with zipfile.ZipFile(path) as archive:
            damages += damages_of_files(archive)
    except Exception as error:  # damaged bytes raise many types, here and below
        damages.append(f"the archive cannot be read, its directory or its end is corrupt: {error}.")
    return [shown(damage) for damage in damages]


def damages_of_whole(path: Path) -> Iterator[str]:
    """Yield a sentence if an archive differs from the SHA-256 next to it."""
    checksum = sum_file(path)
    if checksum.is_file():
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum.read_bytes().split()[:1] != [digest.encode()]:
            yield f"the archive is corrupt: its SHA-256 is not the one in {checksum.name}."


def damages_of_files(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield a sentence for each file in an archive that differs from the manifest."""
    try:
        if archive.getinfo(MANIFEST).file_size > LARGEST_MANIFEST:
            raise ValueError(f"it has more than {LARGEST_MANIFEST:,} bytes")
        known = {name: facts["sha256"] for name, facts in json.loads(archive.read(MANIFEST))["files"].items()}
    except Exception as error:
        yield f"{MANIFEST} is corrupt: {type(error).__name__}: {error}."
        return
    names = set(archive.namelist())
    if len(names) != len(archive.namelist()):
        yield "the archive has several files with the same name."
    for name in sorted({*names, *known} - {MANIFEST}):
        if name not in names:
            yield f"{name} is missing."
        elif not inside(name):
            yield f"{name} was added: its path is outside the folder that the archive is unpacked to."
        elif name not in known:
            yield f"{name} was added."
        elif digest_of(archive, name) != known[name]:
            yield f"{name} is corrupt: its SHA-256 is not the one in {MANIFEST}."


def digest_of(archive: zipfile.ZipFile, name: str) -> str:
    """Return the SHA-256 of a file in an archive, read in parts; empty if it cannot be read."""
    try:
        with archive.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
    except Exception:
        return ""


def shown(sentence: str) -> str:
    """Return a sentence in one printable line, as tpulm.core.errors does, which is not at hand in an archive."""
    safe = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in sentence)
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST // 2]} ... {safe[-LONGEST // 2 :]}"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an archive."""
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read(MANIFEST)))


def main(default: str | None = None) -> None:
    """Check an archive, and with --rebuild make it again. Exits with an error if it is damaged or differs.

    default  the archive that runs this program; None for the one that the command line names
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if default is None:
        parser.add_argument("archive", type=Path, help="NAME-VERSION.zip")
    parser.add_argument("--rebuild", type=Path, metavar="FOLDER", help="an empty folder in which to rebuild everything")
    parser.add_argument("--environment", default="local", help="for --rebuild: local, gpu, tpu or tpu-tensorflow")
    parser.add_argument("--cores", default="all", help="for --rebuild: as for snakemake")
    arguments = parser.parse_args()
    path = Path(default) if default else arguments.archive
    if not path.is_file():
        sys.exit(f"error: {path} is not a file.")
    damages = damages_of(path)
    if damages:
        for damage in damages:
            print(f"  {damage}", file=sys.stderr)
        sys.exit(f"error: {path} has {len(damages)} error(s); the first: {damages[0]}")
    manifest = read_manifest(path)
    for key, kind in KEYS.items():
        if not isinstance(manifest.get(key), kind):
            sys.exit(f"error: {MANIFEST} of {path} has no {key}: no archive of this workflow is like that.")
    stored = sum(bool(artifact.get("included")) for artifact in manifest["artifacts"].values())
    artifacts = len(manifest["artifacts"])
    print(f"{path} is intact: {len(manifest['files'])} files, {stored} of {artifacts} artifacts; for the others it has "
          "checksums.")  # fmt: skip
    if not sum_file(path).is_file():
        print(f"{sum_file(path).name} is not beside it, so only the files in it were checked.")
    if arguments.rebuild:
        sys.path.insert(0, f"{path}/source/scripts")
        from tpulm.release.rebuild import rebuild

        failed = rebuild(path, manifest, arguments.rebuild, arguments.environment, arguments.cores)
        sys.exit(failed and shown(failed))


if __name__ == "__main__":
    main()
