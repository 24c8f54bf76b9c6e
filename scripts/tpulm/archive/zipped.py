"""An archive as a zip file of which every byte is determined by what is in it.

Times, owners and order are fixed. manifest.json, the last entry, has the sha256 of each other entry, of its content
(`sha256`) and as it lies in the file (`packed`, in which a flipped bit of padding shows, too); the comment of the zip
file has the sha256 of the manifest. tpulm.archive.verify holds a file against all that.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpulm.archive.verify import COMMENT, EPOCH, LOCAL_HEADER, MANIFEST, damages_of
from tpulm.core.errors import UserError

LARGEST = 2 * 10**9  # bytes of a file: larger ones need another header


def write_zip(path: Path, files: Mapping[str, bytes | Path], manifest: Mapping[str, Any]) -> None:
    """Write files by their names in the archive, and a manifest that has these keys and `files`.

    Raises UserError where a file is too large, or what was written is none that tpulm.archive.verify finds whole.
    """
    listed: dict[str, dict[str, Any]] = {}
    with open(path, "w+b") as target, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            source = files[name]
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            if size > LARGEST:
                raise UserError(f"{name} has {size:,} bytes; a file of an archive has at most {LARGEST:,}.")
            content = source if isinstance(source, bytes) else source.read_bytes()
            packed = add(archive, target, name, content)
            listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "packed": packed}
        text = json.dumps({**manifest, "files": listed}, indent=1, sort_keys=True, ensure_ascii=False).encode()
        add(archive, target, MANIFEST, text + b"\n")
        archive.comment = COMMENT + hashlib.sha256(text + b"\n").hexdigest().encode()
    damages = damages_of(path)
    if damages:
        raise UserError(f"the archive is not what was to be written, and is not kept; the first damage: {damages[0]}")


def add(archive: zipfile.ZipFile, target: Any, name: str, content: bytes) -> str:
    """Add an entry; return the sha256 of what it takes in the file after its header."""
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as Unix does, on any system
    archive.writestr(entry, content)
    end = target.tell()
    target.seek(entry.header_offset + LOCAL_HEADER.size + len(name.encode()))
    packed = hashlib.sha256(target.read(entry.compress_size)).hexdigest()
    target.seek(end)
    return packed
