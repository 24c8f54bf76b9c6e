"""Check every byte of an archive that `snakemake archive` made, and rebuild what it describes.

    python verify.py models-1.zip                            is it whole? is a signature beside it?
    python verify.py models-1.zip --public-key key.pub       is it what the owner of the key signed?
    python verify.py models-1.zip --rebuild FOLDER           make everything again, and compare every artifact

It needs Python 3.11 and nothing else; a signature needs `pip install model-signing pyopenssl`, and --rebuild a package
index, from which the locked environment is installed. Hashes say whether an archive was damaged. Who changes it on
purpose can compute them anew, this program included: against that there is the signature, checked with a public key
that you have from elsewhere.
"""

import argparse
import hashlib
import importlib.util
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
COMMENT = b"sha256 of manifest.json: "
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every entry
DATE = 1 << 5 | 1  # the same, as zip files have it
ATTRIBUTES = 0o100644 << 16
LOCAL_HEADER = struct.Struct("<4s2B4HL2L2H")
CENTRAL_HEADER = struct.Struct("<4s4B4HL2L5H2L")
END = struct.Struct("<4s4H2LH")
NEED = 20  # version of the format, as everything is deflated


def headers(entry: zipfile.ZipInfo) -> tuple[bytes, bytes]:
    """Return the two headers that an entry has to have, at its place and in the directory."""
    name = entry.filename.encode()
    sizes = entry.CRC, entry.compress_size, entry.file_size, len(name), 0
    local = LOCAL_HEADER.pack(b"PK\3\4", NEED, 0, 0, zipfile.ZIP_DEFLATED, 0, DATE, *sizes)
    about = (0, 0, 0, ATTRIBUTES, entry.header_offset)
    central = CENTRAL_HEADER.pack(b"PK\1\2", NEED, 3, NEED, 0, 0, zipfile.ZIP_DEFLATED, 0, DATE, *sizes, *about)
    return local + name, central + name


def frame_damages(raw: bytes, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what is wrong around the contents: headers, their order, the directory, the end."""
    place, directory = 0, b""
    for entry in archive.infolist():
        local, central = headers(entry)
        found = raw[place : place + len(local)]
        if entry.header_offset != place or found != local:
            yield f"{entry.filename} is damaged: its header is not one that `snakemake archive` writes."
        place += len(local) + entry.compress_size
        directory += central
    if raw[place : place + len(directory)] != directory:
        yield "the directory at the end of the archive is damaged."
    count = len(archive.infolist())
    end = END.pack(b"PK\5\6", 0, 0, count, count, len(directory), place, len(archive.comment)) + archive.comment
    if raw[place + len(directory) :] != end:
        yield "the end of the archive is damaged."


def content_damages(raw: bytes, archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what is wrong with the manifest, and each file that is not what the manifest says."""
    try:
        text = archive.read(MANIFEST)
        known = json.loads(text)["files"]
    except Exception as error:
        yield f"{MANIFEST} is damaged: {error}."
        return
    if COMMENT + hashlib.sha256(text).hexdigest().encode() != archive.comment:
        yield f"{MANIFEST} or the comment of the archive is damaged: they do not agree."
    entries = {entry.filename: entry for entry in archive.infolist()}
    for name in sorted(known.keys() - entries.keys()):
        yield f"{name} is missing."
    for name in sorted(entries.keys() - known.keys() - {MANIFEST}):
        yield f"{name} was added."
    for name in sorted(entries.keys() & known.keys()):
        entry = entries[name]
        start = entry.header_offset + LOCAL_HEADER.size + len(name.encode())
        packed = hashlib.sha256(raw[start : start + entry.compress_size]).hexdigest()
        try:
            content = hashlib.sha256(archive.read(name)).hexdigest()
        except Exception:
            content = ""
        if (content, packed) != (known[name]["sha256"], known[name]["packed"]):
            yield f"{name} is damaged: its SHA-256 is not the one in {MANIFEST}."


def damages_of(path: Path) -> list[str]:
    """Return a sentence for each damage of an archive."""
    raw = path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            return [*content_damages(raw, archive), *frame_damages(raw, archive)]
    except Exception as error:  # what Python makes of a damaged directory is of many types
        return [f"the archive cannot be opened, its directory or its end is damaged: {error}."]


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an archive."""
    with zipfile.ZipFile(path) as archive:
        return dict(json.loads(archive.read(MANIFEST)))


def signature_command(path: Path, key: str) -> list[str]:
    """Return the command that checks an archive's signature."""
    signature = f"{path}.sig"
    return ["-m", "model_signing", "verify", "key", str(path), "--signature", signature, "--public_key", key]


def check_signature(path: Path, key: str | None) -> str:
    """Return what there is to say of the signature. Exits with a sentence where it is not that of the key."""
    signed = Path(f"{path}.sig").is_file()
    command = signature_command(path, key or "KEY.pub")
    if key is None:
        if not signed:
            return "no signature is beside it: who changed it on purpose would not be found out."
        return f"a signature is beside it; this checks it: python {' '.join(command)}"
    if not Path(key).is_file():
        sys.exit(f"error: --public-key is {key}, which is no file.")
    if not signed:
        sys.exit(f"error: {path}.sig is not there, so nothing says that the owner of {key} signed this archive.")
    if not all(importlib.util.find_spec(name) for name in ("model_signing", "OpenSSL")):
        sys.exit("error: the signature was not checked: model-signing is not installed; "
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
    parser.add_argument("--public-key", metavar="FILE", help="check the signature with this key")
    parser.add_argument("--rebuild", type=Path, metavar="FOLDER", help="an empty folder to make everything again in")
    parser.add_argument("--environment", default="local", help="for --rebuild: local, gpu, tpu or tpu-tensorflow")
    parser.add_argument("--cores", default="all", help="for --rebuild: as for snakemake")
    asked = parser.parse_args()
    path = Path(default) if default else asked.archive
    if not path.is_file():
        sys.exit(f"error: {path} is no file.")
    damages = damages_of(path)
    if damages:
        for damage in damages:
            print(f"  {damage}", file=sys.stderr)
        sys.exit(f"error: {path} has {len(damages)} damage(s); the first: {damages[0]}")
    manifest = read_manifest(path)
    inside = sum(artifact["included"] for artifact in manifest["artifacts"].values())
    artifacts = len(manifest["artifacts"])
    print(f"{path} is whole: {len(manifest['files'])} files, {inside} of {artifacts} artifacts; of the others it has "
          "the checksums.")  # fmt: skip
    print(check_signature(path, asked.public_key))
    if asked.rebuild:
        sys.path.insert(0, f"{path}/source/scripts")
        from tpulm.archive.rebuild import rebuild

        sys.exit(rebuild(path, manifest, asked.rebuild, asked.environment, asked.cores))


if __name__ == "__main__":
    main()
