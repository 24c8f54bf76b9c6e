"""The corpus: what is read from each source and format, the splits, and that all that is wrong is named."""

import ast
import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import loopback_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tpulm.core.errors import UserError
from tpulm.corpus import sources, splits
from tpulm.corpus.files import load_hub, read_files, read_hub
from tpulm.corpus.parts import write_part
from tpulm.corpus.rows import Form
from tpulm.corpus.sources import Part, parts_of, parts_of_files, read_part_recipe, source_files
from tpulm.corpus.splits import assign_splits, write_splits
from tpulm.corpus.statistics import merged, rows_by_source, sum_parts
from tpulm.corpus.stdlib import functions, paragraphs
from tpulm.specs.artifacts import SPLITS

pytestmark = pytest.mark.unit

FAST = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
DEFAULTS = {
    "source": "files", "sample_by": "line", "column": "text", "held_out": {"validation": 0.05, "test": 0.05}, "seed": 0,
    "min_characters": 0, "max_documents": None, "filters": {},
}  # fmt: skip
# Text that a careless reader would change: an accent, a missing value's name, a number, a date.
TEXTS = ["one \u00e9", "NA", "001", "2020-01-01", "null"]


def build(folder, named, **changes):
    """Write the splits of documents that are given by split; return the texts and the figures of each split."""
    return build_parts(folder, [(split, [named[split]]) for split in SPLITS if split in named], **changes)


def build_parts(folder, parts, **changes):
    """Do what the three jobs do with parts, each a split and batches of documents; return documents and figures."""
    return build_sources(folder, parts, **changes)[:2]


def build_sources(folder, parts, **changes):
    """Do the same, and return the figures of each source, too."""
    recipe = DEFAULTS | changes | {"key": "corpus", "parts": [split for split, _ in parts]}
    outputs = {split: str(folder / f"{split}.parquet") for split in SPLITS}
    with tempfile.TemporaryDirectory() as place:
        paths = [f"{place}/{number}.parquet" for number in range(len(parts))]
        records = [write_part(path, batches, recipe) for path, (_, batches) in zip(paths, parts, strict=True)]
        codes, told = assign_splits("corpus", recipe, paths, records)
        splits, sources = write_splits(recipe, paths, codes, outputs)
        figures, sources = sum_parts([{"splits": splits, "sources": sources}], told["dropped"])
    return {split: pq.read_table(path)["text"].to_pylist() for split, path in outputs.items()}, figures, sources


def read(*files, unit="line", column="text", piece=(0, 1)):
    form = Form("corpus", {"column": column})
    return [text for batch in read_files(list(map(str, files)), unit, form, piece) for text in batch]


def fails(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def write(path, data, packed=False):
    """Write bytes or text, through gzip where asked, and return the path."""
    data = data.encode() if isinstance(data, str) else data
    path = path.with_name(path.name + ".gz") if packed else path
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


FORMATS = {
    "a.txt": "".join(f"{text}\n" for text in TEXTS),
    "a.jsonl": "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)),
    "lines.json": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
    "later.json": "\n" + "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
    "list.json": json.dumps([{"text": text} for text in TEXTS], indent=1),
    "a.csv": "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)),
    "a.parquet": parquet(id=range(5), text=TEXTS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_its_texts_unchanged_and_asks_nothing_of_the_network(tmp_path, name, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: asked.append(host) or [])
    assert read(write(tmp_path / name, FORMATS[name])) == TEXTS
    assert read(write(tmp_path / name, FORMATS[name], packed=True)) == TEXTS
    if isinstance(FORMATS[name], str):  # a byte order mark is no text
        assert read(write(tmp_path / name, "\ufeff" + FORMATS[name])) == TEXTS
    assert asked == []


def test_what_files_may_hold(tmp_path):
    file = write(tmp_path / "a.txt", "a\r\nb\r\n\r\n\r\nc\nd\n")
    assert read(file) == ["a", "b", "", "", "c", "d"]
    assert read(file, unit="paragraph") == ["a\nb", "c\nd"]
    assert read(file, unit="document") == ["a\nb\n\n\nc\nd\n"]
    rows = [{"text": "a"}, {"text": None, "more": {"x": [1]}}, {"text": "\ud83d\ude00 \ud800", "more": "y"}]
    file = write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert read(file) == ["a", None, "\U0001f600 \ufffd"]
    assert read(write(tmp_path / "a.csv", 'text,id\n"a\r\nb",1\n,2\n')) == ["a\r\nb", ""]
    assert read(write(tmp_path / "b.csv", "body,text\nx,y\n"), column="body") == ["x"]


def test_a_name_is_no_pattern_and_files_are_read_once_in_their_order(tmp_path):
    names = ["b[1] #x.txt", "a::b.txt", "c d?.TXT", "empty.txt"]
    files = [write(tmp_path / name, f"{name}\n" if name != "empty.txt" else "") for name in names]
    assert read(*files) == names[:3]
    for number in range(3):
        (tmp_path / f"back{number}").symlink_to(".")
    globs = [f"{tmp_path}/*.[tT]*", f"{tmp_path}/**/a*", f"{tmp_path}/../{tmp_path.name}/**"]
    assert source_files("corpus", DEFAULTS | {"files": globs}) == {"train": sorted(map(str, files))}


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl", "long.csv"])
def test_a_long_document_in_one_line(tmp_path, name):
    text = "word " * 1_000_000  # more than a block that is read
    data = {"long.txt": text, "long.jsonl": json.dumps({"text": text}), "long.csv": f"text\n{text}\n"}[name]
    assert read(write(tmp_path / name, data)) == [text]


# The sentence begins with the file, and says where in it, or what was found.
WRONG_FILES = [
    ("bad.txt", b"ok\nsecond\nbad \xff here\n", ", line 3,", "byte 5 ", "0xff"),
    ("bad.csv", b"text\nok\n\xe9\n", ", line 3,", "byte 1 ", "0xe9"),
    ("bad.txt.gz", b"not packed", "", "gzip"),
    ("cut.jsonl.gz", gzip.compress(FORMATS["a.jsonl"].encode())[:-9], "", "gzip"),
    ("none.csv", b"", " is empty", "CSV"),
    ("bad.parquet", b"text\n" * 9, "", "Parquet"),
    ("semicolons.csv", b"id;text\n1;some\n", "", "corpus.column", "id;text", "commas"),
    ("ragged.csv", b"text\na\nb,c\n", ", line 3,", "2 fields"),
    ("more.csv", b"\n\ntext\na,b\n", ", line 4,", "line 3"),
    ("open.csv", b'text\n"a\nb"\n"c, d\ne\n', ", line 4: "),
    ("quote.csv", b'text\n"a\n"b"\nc\n', ", line 2: "),  # the next row is read into this one: none is lost in silence
    ("twice.csv", b"text,text\na,b\n", " has 2 columns text "),
    ("late.csv", b"\n\nwords\na\n", "", "found: words."),
    ("space.csv", b"text ,label\na,b\n", "", 'found: "text ", "label"'),
    ("text.jsonl", b'{"text": "a"}\nhello\n', ", line 2,", "JSON"),
    ("text.json", b"hello\n", "", "JSON"),
    ("number.jsonl", b"3\n", ", line 1,", "corpus.column"),
    ("a.csv", b"id,body\n1,x\n", " has no column text", "corpus.column", "id, body"),
    ("a.jsonl", b'{"text": "a"}\n{"id": 1}\n', ", line 2 has no column text", "corpus.column", "id"),
    ("a.json", b'[{"text": "a"},\n{"body": 1}]', ", entry 2 has no column text", "corpus.column", "body"),
    ("a.parquet", parquet(id=[1], body=["x"]), " has no column text", "corpus.column", "id, body"),
    ("int.parquet", parquet(text=[1]), "", "corpus.column", "int"),
]


@pytest.mark.parametrize("row", WRONG_FILES, ids=[row[0] for row in WRONG_FILES])
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(tmp_path, row):
    name, data, place, *said = row
    file = write(tmp_path / name, data)
    sentence = fails(read, file)
    assert sentence.startswith(f"{file}{place}") and sentence.endswith(".") and "\n" not in sentence
    assert [text for text in said if text not in sentence.removeprefix(str(file))] == []


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("a.txt", "utf-16"), ("a b.txt", "utf-16-le"), ("a.csv", "utf-16-be"), ("a.txt", "utf-32"), ("a.json", "cp1252")],
)
def test_the_advice_on_an_encoding_is_right(tmp_path, name, encoding):
    text = "text\n" + "“It’s a naïve text”; he said – and left.\n" * 99
    file = write(tmp_path / name, text.encode(encoding), packed=" " in name)
    sentence = fails(read, file)
    assert sentence.startswith(str(file)) and sentence.endswith("` converts.") and "\n" not in sentence
    subprocess.run(sentence.split("`")[1], shell=True, check=True, cwd=tmp_path)
    (new,) = tmp_path.glob("NEW.*")
    assert new.read_text() == text and new.suffix == (".txt" if " " in name else file.suffix)


def test_a_broken_byte_of_utf_8_is_no_other_encoding(tmp_path):
    whole = ("“It’s a naïve café”; he said.\n" * 99).encode()
    file = write(tmp_path / "a.txt", whole[:-40] + b"\xe2\x80 and on.\n" * 2)
    sentence = fails(read, file)
    assert sentence.startswith(str(file)) and "WINDOWS" not in sentence and "8859" not in sentence


def test_globs_that_do_not_fit(tmp_path):
    recipe = DEFAULTS | {"files": [f"{tmp_path}/*"]}
    assert fails(source_files, "finetune.text", recipe).startswith(f"finetune.text.files: no file matches {tmp_path}/*")
    folder = fails(source_files, "finetune.text", recipe | {"files": [str(tmp_path)]})
    assert folder.startswith(f"finetune.text.files: no file matches {tmp_path}, which is a folder")
    write(tmp_path / "a.csv", "text\nx\n")
    said = fails(source_files, "finetune.text", recipe | {"sample_by": "document"})
    assert said == "finetune.text.sample_by is document, which only .txt files have; allowed: line, or no sample_by."
    write(tmp_path / "a.docx", "x")
    assert fails(source_files, "finetune.text", recipe).startswith(f"finetune.text.files: {tmp_path}/a.docx ")


def test_named_splits_share_nothing_and_test_wins(tmp_path):
    named = {"train": ["a", "b", "b", " c\t", "", None, "d"], "validation": ["b", "c"], "test": ["c", " ", "e", "e"]}
    texts, figures = build(tmp_path, named)
    assert texts == {"train": ["a", "d"], "validation": ["b"], "test": ["c", "e", "e"]}
    dropped = {s: [figures[s][f"dropped_{why}"] for why in ("empty", "short", "duplicates")] for s in SPLITS}
    assert dropped == {"train": [2, 0, 3], "validation": [0, 0, 1], "test": [1, 0, 0]}
    assert figures["test"]["documents"] == 3 and figures["test"]["characters"] == figures["test"]["words"] == 3


def test_line_ends_and_row_groups(tmp_path):
    many = [f"{i}\r\nx\ry" for i in range(25_000)]
    texts, figures = build(tmp_path, {"train": many, "validation": ["v"], "test": ["t"]})
    assert texts["train"][1] == "1\nx\ny"
    metadata = pq.ParquetFile(tmp_path / "train.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10_000, 10_000, 5_000]
    digest = hashlib.sha256()
    for text in texts["train"]:
        digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
    assert figures["train"]["fingerprint"] == digest.hexdigest()


@pytest.mark.parametrize(
    "named, changes, said",
    [
        ({"train": []}, {}, ["train", "no document"]),
        ({"train": ["a", ""], "validation": ["b"], "test": ["a"]}, {}, ["train", "1 empty", "1 also in another"]),
        ({"train": ["long enough"], "test": ["b", " "]}, {"min_characters": 5}, ["test", "1 empty", "1 shorter"]),
        ({"train": ["a", "b"]}, {}, ["1 for test", "1 for validation", "2 distinct"]),
    ],
)
def test_a_split_that_stays_empty_is_an_error_and_leaves_no_file(tmp_path, named, changes, said):
    sentence = fails(build, tmp_path, named, **changes)
    assert sentence.startswith("corpus: ") and [text for text in said if text not in sentence] == []
    assert not list(tmp_path.iterdir())


LINES = st.text(st.sampled_from("ab \u00e9\n\n\n\r"), max_size=60)


@given(st.lists(LINES, min_size=1, max_size=3), st.integers(1, 30), st.sampled_from(["line", "paragraph", "document"]))
@FAST
def test_any_partition_of_text_files_has_the_same_documents(tmp_path_factory, texts, size, unit):
    folder = tmp_path_factory.mktemp("texts")
    files = []
    for number, text in enumerate(texts):
        files.append(str(folder / f"{number}.txt"))
        Path(files[-1]).write_bytes(text.replace("b\n", "b\r\n").encode())
    expected = read(*files, unit=unit)
    parts = list(parts_of_files("train", files, unit, size))
    found = [text for part in parts for text in read(*part.files, unit=unit, piece=part.piece)]
    assert found == expected
    assert len(parts) >= len([file for file in files if os.path.getsize(file) > size])


def test_parts_of_a_very_large_source_are_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PART_BYTES", 10)
    monkeypatch.setattr(sources, "MOST_PARTS", 8)
    file = write(tmp_path / "a.txt", "x\n" * 5000)
    text = DEFAULTS | {"files": [str(file)]}
    parts = parts_of("corpus", text)
    assert len(parts) == 8 and sum((read(file, piece=part.piece) for part in parts), []) == ["x"] * 5000
    monkeypatch.setattr(sources, "WHOLE_PARTS", 7)
    limited, named = text | {"max_documents": 9}, [*parts, Part("test", (str(file),))]
    assert sources.split_files("corpus", "test", limited, parts) == ["<results>/corpus/test.parquet"]
    assert sources.split_files("corpus", "test", text, named) == ["<results>/corpus/test/00008.parquet"]
    assert len(sources.split_files("corpus", "validation", text, named)) == 8


def test_parts_are_of_one_size_about(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PART_BYTES", 100)
    sizes = {"a.txt": 60, "b.csv": 30, "c.txt": 20, "d.jsonl": 250, "e.csv": 500, "f.txt.gz": 40, "g.txt": 60}
    files = {name: str(write(tmp_path / name, "x" * size)) for name, size in sizes.items()}
    parts = parts_of("corpus", DEFAULTS | {"files": {"train": [f"{tmp_path}/[a-f]*"], "test": [f"{tmp_path}/g*"]}})
    assert parts == [
        Part("train", (files["a.txt"], files["b.csv"])),
        Part("train", (files["c.txt"],)),
        *(Part("train", (files["d.jsonl"],), (number, 3)) for number in range(3)),
        Part("train", (files["e.csv"],)),
        Part("train", (files["f.txt.gz"],)),
        Part("test", (files["g.txt"],)),
    ]


@pytest.mark.parametrize("bad", [0, 17, 39])
def test_a_wrong_line_in_a_piece_has_its_number_in_the_file(tmp_path, bad):
    lines = ["\ufeff" * (n == 0) + json.dumps({"text": "\u00e9" * n}, ensure_ascii=False) for n in range(40)]
    lines[bad] = "[]"
    file = write(tmp_path / "a.jsonl", "\r\n".join(lines))
    said = []
    for number in range(7):
        try:
            read(file, piece=(number, 7))
        except UserError as error:
            said.append(str(error))
    (sentence,) = said
    assert sentence.startswith(f"{file}, line {bad + 1},")


def test_a_file_that_changes_while_it_is_read(tmp_path):
    file = write(tmp_path / "a.txt", "line\n" * 10)
    batches = read_files([str(file)], "line", Form("corpus", DEFAULTS))
    next(batches)
    with open(file, "a") as more:
        more.write("line\n")
    assert fails(list, batches).startswith(f"{file} changed while it was read")
    pieces = [{"source": {"source": "files"}, "files": [{"path": "a.txt", "bytes": size}]} for size in (5, 6)]
    assert fails(merged, {"parts": ["train"] * 2}, pieces).startswith("a.txt changed while it was read")


def split_by_hand(parts, held_out, most, seed):
    """Return the documents of each split: what the jobs do, in memory and without partitions."""
    named = {split: [text for name, texts in parts if name == split for text in texts] for split, _ in parts}
    normal = lambda text: " ".join(text.split())  # noqa: E731
    kept, taken = {}, set()
    for split in ("test", "validation"):
        if split in named:
            kept[split] = [text for text in named[split] if normal(text) not in taken][:most]
            taken |= set(map(normal, kept[split]))
    train = [text for text in named["train"] if normal(text) not in taken]
    order = sorted(set(map(normal, train)), key=lambda text: hashlib.sha256(f"{seed}\0{text}".encode()).digest())
    for split in ("test", "validation"):
        if split not in named:
            size = max(1, int(held_out[split] * len(set(map(normal, train))) + 0.5))
            chosen, order = set(order[:size]), order[size:]
            kept[split] = [text for text in train if normal(text) in chosen][:most]
    return kept | {"train": [text for text in train if normal(text) in set(order)][:most]}


WORDS = st.lists(st.sampled_from([f"{i} {'x' * (i % 7)}" for i in range(40)] + ["1  x", "2   xx"]), min_size=1)


PARTS = st.lists(st.tuples(st.sampled_from(SPLITS), WORDS), max_size=6)


@given(PARTS, st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 1))
@settings(FAST, max_examples=25)
def test_splits_are_the_same_for_any_partition_of_keys_and_parts(tmp_path_factory, more, most, seed):
    folder = tmp_path_factory.mktemp("splits")
    parts = [("train", [f"{i} and {i % 5} more" for i in range(30)]), *more]
    held_out = {"validation": 0.1, "test": 0.2}
    expected = split_by_hand(parts, held_out, most, seed)
    changes = {"held_out": held_out, "max_documents": most, "seed": seed}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "PARTITION", 7)
        if any(not texts for texts in expected.values()):
            assert "empty" in fails(build_parts, folder, [(name, [texts]) for name, texts in parts], **changes)
            return
        texts, _ = build_parts(folder, [(name, [texts]) for name, texts in parts], **changes)
    assert texts == expected


def test_weights_repeat_and_thin_out_training_documents_only(tmp_path):
    names = {"a": 2.0, "b": 0.25, "c": 1.5, "d": 1.0}
    parts = [("train", [[f"{name} {number}" for number in range(400)]]) for name in names]
    parts.append(("validation", [["a 0", "b 0", "d x"]]))
    weights = {"sources": [*names, "d"], "weights": names}
    plain, _ = build_parts(tmp_path, parts)
    texts, figures = build_parts(tmp_path, parts, **weights)
    assert texts | {"train": []} == plain | {"train": []}
    times = Counter(texts["train"])
    of = {name: [times[text] for text in plain["train"] if text.startswith(name)] for name in names}
    assert set(of["a"]) == {2} and set(of["b"]) == {0, 1} and set(of["c"]) == {1, 2} and set(of["d"]) == {1}
    assert 0.15 < sum(of["b"]) / len(of["b"]) < 0.35 and 1.4 < sum(of["c"]) / len(of["c"]) < 1.6
    # Once all, in their order; then those that are taken twice.
    second = [text for text in plain["train"] if times[text] == 2]
    assert texts["train"] == [text for text in plain["train"] if times[text]] + second
    more, _ = build_parts(tmp_path, parts, sources=weights["sources"], weights=names | {"b": 0.5})
    assert {text for text in texts["train"] if text[0] == "b"} < {text for text in more["train"] if text[0] == "b"}
    other, _ = build_parts(tmp_path, parts, seed=1, **weights)
    assert set(other["train"]) != set(texts["train"])
    assert figures["train"]["documents"] == len(texts["train"])


def test_the_held_out_documents_of_each_source_are_found(tmp_path):
    names = {"a": 2.0, "b": 0.25, "c": 1.0}
    parts = [("train", [[f"{name} {number}" for number in range(400)]]) for name in names]
    parts.append(("test", [["c 0", "c x"]]))
    texts, _, sources = build_sources(tmp_path, parts, sources=[*names, "c"], weights=names)
    record = {"sources": {name: {"splits": splits} for name, splits in sources.items()}}
    for split in ("validation", "test"):
        rows = np.arange(len(texts[split]))[::2]
        found = rows_by_source(record, split, rows)
        assert np.concatenate(list(found.values())).tolist() == rows.tolist()
        assert all({texts[split][row][0] for row in own} <= {name} for name, own in found.items())
    assert rows_by_source({}, "test", rows)[""] is rows


def test_parts_of_several_sources(tmp_path):
    for name in ("a.txt", "b.txt"):
        write(tmp_path / name, "x\n")
    code = {"source": "files", "files": {"train": [f"{tmp_path}/a*"], "test": [f"{tmp_path}/b*"]}, "sample_by": "line"}
    text = DEFAULTS | {"sources": {"code": code, "docs": {"source": "python-docs", "weight": 2.0}}}
    parts = parts_of("corpus", text)
    assert [(part.source, part.split) for part in parts] == [("code", "train"), ("code", "test"), ("docs", "train")]
    recipe = read_part_recipe("finetune.text", text | {"seed": 3}, parts[1])
    assert recipe == {
        "key": "finetune.text.sources.code", "source": "files", "sample_by": "line", "seed": 3, "min_characters": 0,
    }  # fmt: skip
    code["files"] = [f"{tmp_path}/none"]
    assert fails(parts_of, "corpus", text).startswith(f"corpus.sources.code.files: no file matches {tmp_path}/none")


def test_functions_are_kept_as_they_are_written():
    source = f"""class A:
    @property
    def f(self):
        '''Say.'''

        # why {"x" * 99}
        return  1

    def h(self): return 1
"""
    expected = f"@property\ndef f(self):\n    # why {'x' * 99}\n    return  1"
    assert list(functions(source, ast.parse(source))) == [expected]


def test_paragraphs_lose_markup_and_code():
    page = """Return the :class:`Foo` of *bar*, see `the docs` and ``x`` [1]_ for
    what it says::

        >>> code(1, 2)

    ==== ====
    a    b
    ==== ====

    - a short item of a list
    - another item of it that is one too,
      or more
    """
    assert list(paragraphs(page)) == [
        "Return the Foo of bar, see the docs and x for what it says:",
        "another item of it that is one too, or more",
    ]


def test_a_folder_laid_out_as_a_dataset(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", '{"body": "a"}\n{"body": "b"}\n{"body": "c"}\n{"body": "d"}\n')
    recipe = DEFAULTS | {"source": "hub", "dataset": str(folder), "column": "body"}
    recipe["splits"] = {"train": "train[:75%]", "test": "train[75%:]"}
    assert source_files("corpus", recipe) == {"dataset": [str(folder / "train.jsonl")]}
    parts = parts_of("corpus", recipe)
    assert parts == [Part("train", (str(folder / "train.jsonl"),), (0, 2)), Part("test", parts[0].files, (1, 2))]
    texts = {}
    for part in parts:
        form = Form("corpus", recipe)
        loaded = load_hub("corpus", read_part_recipe("corpus", recipe, part), form)
        texts[part.split] = [text for batch in read_hub(loaded, "set", form) for text in batch]
    assert texts == {"train": ["a", "b", "c"], "test": ["d"]}
    without = fails(load_hub, "corpus", recipe | {"splits": {"train": "train"}}, Form("corpus", {"column": "text"}))
    assert without.startswith(f"{folder} has no column text (corpus.column)")
    without = fails(load_hub, "corpus", recipe | {"splits": {"train": "other"}}, form)
    assert without.startswith(f"corpus: {folder} ") and "splits.train other" in without and "['train']" in without


COMMIT = "0123456789abcdef0123456789abcdef01234567"
PUBLISHED = {"data/train-00000-of-00001.parquet": parquet(text=["a b", "c d", "e f"], id=[1, 2, 3])}
READ_HUB = f"""
from tpulm.core.errors import UserError
from tpulm.corpus.files import load_hub, read_hub
from tpulm.corpus.rows import Form
for changes in ({{}}, {{"name": "other"}}, {{"dataset": "some/absent"}}):
    recipe = {{"dataset": "some/set", "revision": "{COMMIT}", "splits": {{"train": "train[:67%]"}}, "column": "text"}}
    try:
        form = Form("corpus", recipe)
        print(list(read_hub(load_hub("corpus", recipe | changes, form), "some/set", form)))
    except UserError as error:
        print(error)
"""


def test_a_dataset_of_a_hub(tmp_path):
    with loopback_hub.served() as hub:
        repository = hub.repositories["datasets/some/set"] = loopback_hub.Repository(False)
        repository.commits[COMMIT] = ("data", PUBLISHED)
        place = {"PYTHONPATH": str(ROOT / "scripts"), "HF_HOME": str(tmp_path / "home")}
        place |= {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": loopback_hub.TOKEN}  # read at the start
        command = [sys.executable, "-c", READ_HUB]
        done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True)
    texts, other, absent = done.stdout.splitlines()
    assert texts == "[['a b', 'c d']]"
    assert other.startswith("corpus: some/set ") and "name other" in other and "['default']" in other
    assert absent.startswith(f"corpus.dataset is some/absent at revision {COMMIT}") and "HF_TOKEN" in absent
