"""Check every byte of an archive that `snakemake archive` made, and rebuild what it describes.

python verify.py models-1.zip                            is it whole? is a signature beside it?
    python verify.py models-1.zip --rebuild FOLDER           make everything again, and compare every artifact

It needs Python 3.11 or later and nothing else; --rebuild needs the version that the archive was made with, and a
package index, from which the locked environment is installed.
Hashes say whether an archive was damaged. Whoever changes it on purpose can compute them anew, and change the copy of
this program in it: against that there is the signature, checked with a public key and a program that you have from
elsewhere, by `pip install model-signing pyopenssl`:

    python -m model_signing verify key models-1.zip --signature models-1.zip.sig --public_key key.pub

A copy of this program that is not from the archive does the same with --public-key key.pub.
"""

import argparse
import hashlib
import importlib.util
import json
import mmap
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
COMMENT = b"sha256 of manifest.json: "
# What it says, and of each file.
KEYS = {"artifacts": dict, "outside": dict, "configfiles": dict, "overrides": dict, "target": str}
FACTS = {"bytes", "packed", "sha256"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every entry
DATE = 1 << 5 | 1  # the same, as zip files have it
ATTRIBUTES = 0o100644 << 16
LOCAL_HEADER = struct.Struct("<4s2B4HL2L2H")
CENTRAL_HEADER = struct.Struct("<4s4B4HL2L5H2L")
END = struct.Struct("<4s4H2LH")
# What zip files have beside these where they are large: a place in the file, the end, and where that is.
FAR_PLACE, FAR_END, FAR_LOCATOR = struct.Struct("<2HQ"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
FAR, MANY = 2**31 - 1, 2**16 - 1  # from more bytes or entries on they have it, as Python writes them
NEED, NEED_FAR = 20, 45  # version of the format, as everything is deflated
UTF8 = 0x800  # the flag of a name that is not ASCII
CHUNK = 2**20  # bytes that are inflated at once
LARGEST_MANIFEST = 2**28  # bytes
LONGEST = 2000  # characters of a sentence


def headers(entry: zipfile.ZipInfo) -> tuple[bytes, bytes]:
    """Return the two headers that an entry has to have, at its place and in the directory."""
    name, place, need, extra = entry.filename.encode(), entry.header_offset, NEED, b""
    flags = 0 if entry.filename.isascii() else UTF8
    sizes = entry.CRC, entry.compress_size, entry.file_size, len(name)
    local = LOCAL_HEADER.pack(b"PK\3\4", NEED, 0, flags, zipfile.ZIP_DEFLATED, 0, DATE, *sizes, 0)
    if place > FAR:
        place, need, extra = 2**32 - 1, NEED_FAR, FAR_PLACE.pack(1, 8, place)
    about = (len(extra), 0, 0, 0, ATTRIBUTES, place)
    central = CENTRAL_HEADER.pack(b"PK\1\2", need, 3, need, 0, flags, zipfile.ZIP_DEFLATED, 0, DATE, *sizes, *about)
    return local + name, central + name + extra


def end_of(count: int, size: int, place: int, comment: bytes) -> bytes:
    """Return how an archive has to end after its directory: of `count` entries, `size` bytes, at `place`."""
    far = b""
    if count > MANY or place > FAR or size > FAR:
        far = FAR_END.pack(b"PK\6\6", 44, NEED_FAR, NEED_FAR, 0, 0, count, count, size, place)
        far += FAR_LOCATOR.pack(b"PK\6\7", 0, place + size, 1)
    count, size, place = min(count, 2**16 - 1), min(size, 2**32 - 1), min(place, 2**32 - 1)
    return far + END.pack(b"PK\5\6", 0, 0, count, count, size, place, len(comment)) + comment


def inside(name: str) -> bool:
    """Return whether a name in an archive is that of a file below the folder that it is unpacked to."""
    return not any(part in ("", ".", "..") for part in name.split("/")) and "\\" not in name and "\0" not in name


def frame_damages(raw: mmap.mmap, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what is wrong around the contents: headers, their order, the directory, the end."""
    place, directory = 0, bytearray()
    for entry in archive.infolist():
        local, central = headers(entry)
        found = raw[place : place + len(local)]
        if entry.header_offset != place or found != local:
            yield f"{entry.filename} is corrupt: its header is not one that `snakemake archive` writes."
        place += len(local) + entry.compress_size
        directory += central
    if raw[place : place + len(directory)] != directory:
        yield "the directory at the end of the archive is corrupt."
    if raw[place + len(directory) :] != end_of(len(archive.infolist()), len(directory), place, archive.comment):
        yield "the end of the archive is corrupt."


def content_damages(raw: mmap.mmap, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what is wrong with the manifest, and each file that is not what the manifest says."""
    try:
        if archive.getinfo(MANIFEST).file_size > LARGEST_MANIFEST:
            raise ValueError(f"it has more than {LARGEST_MANIFEST:,} bytes")
        text = archive.read(MANIFEST)
        known = json.loads(text)["files"]
        if not all(FACTS <= facts.keys() for facts in known.values()):
            raise ValueError("of a file it has no size or no SHA-256")
    except Exception as error:
        yield f"{MANIFEST} is corrupt: {error}."
        return
    if COMMENT + hashlib.sha256(text).hexdigest().encode() != archive.comment:
        yield f"{MANIFEST} or the comment of the archive is corrupt: they do not agree."
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        yield "the archive has several files with the same name."
    for name in sorted(name for name in entries if not inside(name)):
        yield f"{name} was added: its path is outside the folder that the archive is unpacked to."
    for name in sorted(known.keys() - entries.keys()):
        yield f"{name} is missing."
    for name in sorted(entries.keys() - known.keys() - {MANIFEST}):
        yield f"{name} was added."
    for name in sorted(entries.keys() & known.keys()):
        entry = entries[name]
        start = entry.header_offset + LOCAL_HEADER.size + len(name.encode())
        with memoryview(raw) as view, view[start : start + entry.compress_size] as part:
            packed = hashlib.sha256(part).hexdigest()
        if (entry.file_size, packed) != (known[name]["bytes"], known[name]["packed"]):
            yield f"{name} is corrupt: its size or SHA-256 is not the one in {MANIFEST}."
        elif content_of(archive, entry) != known[name]["sha256"]:
            yield f"{name} is corrupt: its SHA-256 is not the one in {MANIFEST}."


def content_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    """Return the SHA-256 of the content of an entry, of which never more than a chunk is in memory; "" for none."""
    content = hashlib.sha256()
    try:
        with archive.open(entry) as file:
            while chunk := file.read(CHUNK):
                content.update(chunk)
    except Exception:  # of the many types that a damaged entry raises
        return ""
    return content.hexdigest()


def damages_of(path: Path) -> list[str]:
    """Return a sentence for each damage of an archive."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
            zipfile.ZipFile(file) as archive,
        ):
            return [shown(damage) for damage in (*content_damages(raw, archive), *frame_damages(raw, archive))]
    except Exception as error:  # what Python makes of a damaged directory is of many types
        return [shown(f"the archive cannot be opened, its directory or its end is corrupt: {error}.")]


def shown(sentence: str) -> str:
    """Return a sentence with a name of the archive in it as a terminal may show it, in one line.

    As tpulm.core.errors does; but this program runs alone.
    """
    safe = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in sentence)
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST // 2]} ... {safe[-LONGEST // 2 :]}"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an archive."""
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read(MANIFEST)))


def signature_command(path: str | Path, key: str) -> list[str]:
    """Return the arguments of the Python that checks an archive's signature."""
    signature = f"{path}.sig"
    return ["-m", "model_signing", "verify", "key", str(path), "--signature", signature, "--public_key", key]


def check_signature(path: Path, key: str | None) -> str:
    """Return what there is to say of the signature. Exits with a sentence where it is not that of the key."""
    signed = Path(f"{path}.sig").is_file()
    command = signature_command(path, key or "KEY.pub")
    if key is None:
        if not signed:
            return "it has no signature, so that deliberate changes cannot be detected."
        return f"it has a signature; to verify it: python {' '.join(command)}"
    if not Path(key).is_file():
        sys.exit(f"error: --public-key is {key}, which is not a file.")
    if not signed:
        sys.exit(f"error: {path}.sig does not exist, so the signature of the owner of {key} cannot be verified.")
    if not all(importlib.util.find_spec(name) for name in ("model_signing", "OpenSSL")):
        sys.exit("error: the signature was not verified: model-signing is not installed; "
                 "pip install model-signing pyopenssl.")  # fmt: skip
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["?"]
        sys.exit(f"error: {path} is not what the owner of {key} signed: {words[-1]}")
    return f"signed by the owner of {key}."


def main(default: str | None = None) -> None:
    """Check the archive of the command line; `default` is the one that runs itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if default is None:
        parser.add_argument("archive", type=Path, help="NAME-VERSION.zip")
    parser.add_argument(
        "--public-key",
        metavar="FILE",
        help="verify the signature with this key; not possible with the program in the archive",
    )
    parser.add_argument("--rebuild", type=Path, metavar="FOLDER", help="an empty folder in which to rebuild everything")
    parser.add_argument("--environment", default="local", help="for --rebuild: local, gpu, tpu or tpu-tensorflow")
    parser.add_argument("--cores", default="all", help="for --rebuild: as for snakemake")
    asked = parser.parse_args()
    path = Path(default) if default else asked.archive
    if not path.is_file():
        sys.exit(f"error: {path} is not a file.")
    if default and asked.public_key:
        command = " ".join(signature_command(path, asked.public_key))
        sys.exit("error: --public-key is not available in the program in the archive, which may have been changed too. "
                 f"To verify the signature: python {command}")  # fmt: skip
    damages = damages_of(path)
    if damages:
        for damage in damages:
            print(f"  {damage}", file=sys.stderr)
        sys.exit(f"error: {path} has {len(damages)} error(s); the first: {damages[0]}")
    manifest = read_manifest(path)
    for key, kind in KEYS.items():
        if not isinstance(manifest.get(key), kind):
            sys.exit(f"error: {MANIFEST} of {path} has no {key}: no archive of this workflow is like that.")
    kept = sum(bool(artifact.get("included")) for artifact in manifest["artifacts"].values())
    artifacts = len(manifest["artifacts"])
    print(f"{path} is intact: {len(manifest['files'])} files, {kept} of {artifacts} artifacts; for the others it has "
          "checksums.")  # fmt: skip
    print(check_signature(path, asked.public_key))
    if asked.rebuild:
        sys.path.insert(0, f"{path}/source/scripts")
        from tpulm.release.rebuild import rebuild

        failed = rebuild(path, manifest, asked.rebuild, asked.environment, asked.cores)
        sys.exit(failed and shown(failed))


if __name__ == "__main__":
    main()
