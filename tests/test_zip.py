"""The zip file of an archive, without a run: large ones, names that lead out of a folder, what is packed."""

import hashlib
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from kills import flipped
from tpulm.core.errors import UserError
from tpulm.release import verify
from tpulm.release.archive import source_files, version_of, write_zip
from tpulm.release.rebuild import rebuild, unpack
from tpulm.release.verify import MANIFEST, damages_of, read_manifest

pytestmark = pytest.mark.unit


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    """With the SHA-256 beside the archive; without it, in the files in it, and in what zipfile reads of headers."""
    path, beside = tmp_path / "a.zip", tmp_path / "a.zip.sha256"
    write_zip(path, {"a": b"some text", "b": b"another"}, {})
    content = path.read_bytes()
    beside.write_text(f"{hashlib.sha256(content).hexdigest()}  a.zip\n")
    subprocess.run(["sha256sum", "--check", "--quiet", beside.name], cwd=tmp_path, check=True)
    assert damages_of(path) == []
    with zipfile.ZipFile(path) as archive:
        entries, directory = archive.infolist(), archive.start_dir
    for place in range(len(content)):
        path.write_bytes(flipped(content, place))
        assert "a.zip.sha256" in damages_of(path)[0], place
    beside.unlink()
    start = entries[0].header_offset + 30 + len("a")
    for place in range(start, start + entries[0].compress_size - 1):  # the last byte has padding
        path.write_bytes(flipped(content, place))
        assert [damage.split()[0] for damage in damages_of(path)] == ["a"], place
    for place in (entries[1].header_offset, directory, len(content) - 22):  # signatures
        path.write_bytes(flipped(content, place))
        assert damages_of(path), place


def forged(path: Path, files: dict[str, bytes], **facts) -> Path:
    """Write an archive that no check stands in the way of; `facts` of files go to the manifest, whatever they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpulm.release.archive.damages_of", lambda path: [])
        write_zip(path, files, {"outside": {}, "configfiles": {}, "overrides": {}} | facts)
    return path


NAMES = ["source/../../evil.txt", "/evil.txt", "source//etc", "config/given/..", "source/..\\evil"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    path = forged(tmp_path / "a.zip", {name: b"evil"}, configfiles={name: name}, outside={name: "0"})
    assert any(f"{name} was added: " in damage for damage in damages_of(path))
    folder = tmp_path / "in" / "again"
    with zipfile.ZipFile(path) as archive:
        said = unpack(archive, read_manifest(path), folder)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and folder not in file.parents and file != path]
    if name.startswith(("source/", "config/given/")):
        assert said.startswith(f"{name} ") and str(folder) in said


def test_files_of_the_user_are_not_written_elsewhere(tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "texts").mkdir(parents=True)
    monkeypatch.chdir(here)
    (here / "texts/a.txt").write_text("mine")
    (tmp_path / "b.txt").write_text("mine")
    (here / "b.txt").write_text("unrelated")
    digest = hashlib.sha256(b"mine").hexdigest()
    path = forged(tmp_path / "a.zip", {}, outside={"../b.txt": digest, "texts/a.txt": digest})
    with zipfile.ZipFile(path) as archive:
        said = unpack(archive, read_manifest(path), Path("again"))
        assert said.startswith("../b.txt ") and f"{here}/b.txt" in said
        assert (here / "b.txt").read_text() == "unrelated"
        (here / "b.txt").unlink()
        said = unpack(archive, read_manifest(path), Path("again"))
        assert said.startswith("../b.txt") and f"{here}/b.txt" in said
        # Where the workflow will read it from, it is the right one: nothing is to be copied.
        assert unpack(archive, read_manifest(path), tmp_path / "again") is None
    assert (tmp_path / "again/texts/a.txt").read_text() == "mine" and not (here / "b.txt").exists()


def test_a_huge_entry_is_not_held_in_memory(tmp_path):
    write_zip(tmp_path / "a.zip", {"zeros": bytes(100 * 2**20)}, {})
    tracemalloc.start()
    try:
        assert damages_of(tmp_path / "a.zip") == []
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"artifacts": None}, "manifest.json .*has no artifacts"),
        ({"target": 5}, "manifest.json .*has no target"),
        ({"files": {"a": {"bytes": 4}}}, "manifest.json is corrupt: .*sha256"),
        ({"files": {}}, "a was added"),
        ({"files": {"a": {"sha256": "0"}}}, "a is corrupt: its SHA-256 "),
        ({"files": [1]}, "manifest.json is corrupt"),
    ],
)
def test_a_manifest_that_lacks_something_is_told(tmp_path, monkeypatch, changes, said):
    path = forged(tmp_path / "a.zip", {"a": b"1234"}, artifacts={}, target="a.zip")
    monkeypatch.setattr(sys, "argv", ["verify.py", str(path)])
    verify.main()
    text = json.dumps(read_manifest(path) | changes)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"1234")
        archive.writestr(MANIFEST, text)
    with pytest.raises(SystemExit, match=f"^error: .*{said}"):
        verify.main()


def test_a_rebuild_needs_a_folder(tmp_path):
    path = forged(tmp_path / "a.zip", {"jobs.json": b"[]"})
    (tmp_path / "file").write_text("kept")
    for folder in (tmp_path / "file", tmp_path / "file" / "again", tmp_path):
        said = rebuild(path, read_manifest(path), folder, "local", "2")
        assert said.startswith(f"error: --rebuild is {folder}, ")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.fixture(params=[False, True], ids=["a folder", "a repository"])
def source(tmp_path, request) -> Path:
    """The source of a workflow with one rule, in a repository or not."""
    folder = tmp_path / "source"
    (folder / "recipes").mkdir(parents=True)
    (folder / "Snakefile").write_text("one\n")
    (folder / "recipes/größe.yaml").write_text("title: a\n")
    if request.param:
        for arguments in (["init"], ["add", "Snakefile"]):
            subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    return folder


def test_the_source_has_no_ignored_files(source):
    names = ["Snakefile", "recipes/größe.yaml"]
    assert list(source_files(source)) == names
    (source / "recipes/.gitignore").write_text("*.txt\n")
    (source / "recipes/text.txt").write_text("of the user")
    ignored = [] if (source / ".git").exists() else ["recipes/text.txt"]
    assert list(source_files(source)) == [names[0], "recipes/.gitignore", names[1], *ignored]
    if not ignored:
        assert version_of(source)[0]["untracked"] == ["recipes/.gitignore", names[1]]


def test_the_source_gives_no_key_and_no_other_folder_away(source, monkeypatch):
    def refuses(name, text, said):
        (source / name).write_text(text)
        with pytest.raises(UserError, match=f"^{re.escape(name)} .*{said}"):
            source_files(source)
        (source / name).unlink()

    for kind in ("", "EC ", "RSA "):
        refuses("recipes/key.pem", f"-----BEGIN {kind}PRIVATE KEY-----\n", "private key")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    for text, what in (
        ("# 0123456789abcdef", "a secret of the environment"),
        (f"token: hf_{'a1' * 17}", "a token"),
        (f"files: https://me:word{chr(64)}example.org/a", "a password in a URL"),
    ):
        refuses("recipes/a.yaml", f"title: x\n{text}\n", f"{what}, in line 2, ")
    refuses("recipes/.env", "", "secrets")
    (source / "recipes/a.yaml").write_text("files: https://example.org/a:b@c\nhf_model: hf_transfer\n")
    (source / "recipes/inside.yaml").symlink_to("größe.yaml")
    assert "recipes/inside.yaml" in source_files(source)
    (source.parent / "private.txt").write_text("private")
    for target in ("../../private.txt", "nowhere", "../.."):
        (source / "recipes/link").symlink_to(target)
        with pytest.raises(UserError, match="^recipes/link .* link to /"):
            source_files(source)
        (source / "recipes/link").unlink()
    (source / "recipes/a\nb").write_text("")
    with pytest.raises(UserError, match=r"'recipes/a\\nb'"):
        source_files(source)
