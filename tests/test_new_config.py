"""Configs that a tool writes for a user's own text."""

import json
import random
import re
import runpy
import subprocess
import sys

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from tpulm.config.reading import read_config
from tpulm.core.accelerators import TPUS
from tpulm.corpus.sources import ALLOWED
from tpulm.corpus.stdlib import python_docs

PROGRAM = ROOT / "tools/new_config.py"


@pytest.fixture
def write(tmp_path, monkeypatch, capsys):
    """A function that runs the program in a folder, and returns what is on standard output, and what on error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # the program sets it, which must not last
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *arguments])
        try:
            runpy.run_path(str(PROGRAM), run_name="__main__")
        except SystemExit as end:
            assert isinstance(end.code, str), capsys.readouterr().err  # which Python prints, and exits with 1
            return capsys.readouterr().out, f"{end.code}\n"
        return capsys.readouterr()

    return run


def sentences(number, letters, glue, end):
    """Return sentences of random words, which repeat as words do."""
    chosen = random.Random(0)
    words = ["".join(chosen.choices(letters, k=chosen.randint(2, 9))) for _ in range(3000)]
    texts = (glue.join(words[int(3000 * chosen.random() ** 3)] for _ in range(7)) for _ in range(number))
    return [text.capitalize() + end for text in texts]


ENGLISH = sentences(2000, "abcdefghijklmnopqrst", " ", ".")
JAPANESE = sentences(2000, [chr(0x4E00 + number) for number in range(300)], "", "。")


def prose(folder):
    paragraphs = ["\n".join(ENGLISH[first : first + 4]) for first in range(0, len(ENGLISH), 4)]
    (folder / "a text.txt").write_text("\n\n".join(paragraphs))
    return "a text.txt", {"sample_by": "paragraph", "files": ["a text.txt"]}


def lines(folder):
    (folder / "[1].txt").write_text("\n".join(ENGLISH))
    return "[1].txt", {"sample_by": "line", "files": ["[[]1].txt"]}


def small_files(folder):
    for number in range(250):
        (folder / f"page-{number}.txt").write_text("\n\n".join(ENGLISH[8 * number : 8 * number + 8]))
    return ".", {"sample_by": "document", "files": ["./**/*.txt"]}


def few_files(folder):
    """Of files as documents, two would be in the test split."""
    for number in range(47):
        some = ["\n".join(ENGLISH[first : first + 4]) for first in range(40 * number, 40 * number + 40, 4)]
        (folder / f"page-{number}.txt").write_text("\n\n".join(some))
    return ".", {"sample_by": "paragraph", "files": ["./**/*.txt"]}


def long_files(folder):
    for number in range(40):
        some = random.Random(number).sample(ENGLISH, len(ENGLISH))
        (folder / f"book-{number}.txt").write_text("\n\n".join("\n".join(some[n : n + 4]) for n in range(0, 2000, 4)))
    return ".", {"sample_by": "paragraph", "files": ["./**/*.txt"]}


def json_lines(folder):
    rows = [{"id": str(number), "content": text, "note": None} for number, text in enumerate(ENGLISH)]
    (folder / "data").mkdir()
    for name, some in (("train", rows[200:]), ("test", rows[:200])):
        (folder / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    files = {"train": ["data/train.jsonl"], "test": ["data/test.jsonl"]}
    return "data/*.jsonl", {"column": "content", "files": files}


def many_json_lines(folder):
    for number in range(12):
        some = [json.dumps({"id": "x" * 300, "text": text if number else None}) for text in ENGLISH[number::12]]
        (folder / f"train-{number}.jsonl").write_text("\n".join(some))
    (folder / "test-a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in ENGLISH[::9]))
    return ".", {"column": "text", "files": {"train": ["./train*.jsonl"], "test": ["./test-a.jsonl"]}}


def csv(folder):
    pandas.DataFrame({"text": ENGLISH, "url": ["https://example.org/" + "x" * 200] * len(ENGLISH)}).to_csv(
        folder / "a.csv"
    )
    return "a.csv", {"column": "text"}


def parquet(folder):
    table = pa.table({"number": range(len(ENGLISH)), "tags": [["a"]] * len(ENGLISH), "body": ENGLISH})
    pq.write_table(table, folder / "a.parquet")
    return "a.parquet", {"column": "body"}


def japanese(folder):
    (folder / "ja.txt").write_text("\n".join("".join(JAPANESE[first : first + 4]) for first in range(0, 2000, 4)))
    return "ja.txt", {"sample_by": "line"}


ON_CPUS = [
    (text, None)
    for text in (prose, lines, small_files, few_files, long_files, json_lines, many_json_lines, csv, parquet, japanese)
]
ON_SLICES = [(prose, "v2-8"), (prose, "v4-1024"), (prose, "h100:3"), (json_lines, "v5e-8"), (japanese, "v5e-8")]


@pytest.mark.unit
@pytest.mark.parametrize(("text", "accelerator"), [*ON_CPUS, *ON_SLICES])
def test_a_config_is_short_and_valid_and_fits_the_text(write, tmp_path, text, accelerator):
    path, expected = text(tmp_path)
    out, said = write(path, *(["--accelerator", accelerator] if accelerator else []))
    assert out.count("\n") <= 40 and max(map(len, out.splitlines())) <= 150
    assert said.startswith("found: ") and "estimate: " in said
    (tmp_path / "my.yaml").write_text(out)
    config = read_config([tmp_path / "my.yaml"], {})
    assert {key: config["corpus"][key] for key in expected} == expected
    (masked,), (base,) = config["mlm"]["runs"].values(), config["base"].values()
    assert masked["backend"] == "jax" and "model" in base
    assert all(run["resources"].get("accelerator") == accelerator for run in (masked, base))
    assert config["plan"]["topologies"] == ([accelerator] if accelerator and ":" not in accelerator else [])
    shown = "".join(JAPANESE) if text is japanese else " ".join(ENGLISH)
    for prompt in config["prompts"]["fill_mask"]:
        before, after = prompt.split("[MASK]")
        assert before in shown and after in shown
    assert len(config["prompts"]["fill_mask"]) == len(config["prompts"]["generate"]) == 2


@pytest.mark.unit
def test_runs_of_spaces_are_words(write, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(ENGLISH).replace(" ", "     "))
    out, said = write("a.txt")
    assert "80% of the spaces follow a space" in said
    assert "whitespace: runs}" in out


@pytest.mark.unit
def test_many_files_of_the_shell_are_a_glob_again(write, tmp_path):
    small_files(tmp_path)
    out, _ = write(*(f"page-{number}.txt" for number in range(250)))
    assert '  files: ["*.txt"]\n' in out
    out, _ = write(*(f"page-{number}.txt" for number in range(249)))
    assert '"page-98.txt"' in out


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "content", "more", "sentence"),
    [
        ("nothing.txt", None, [], f"nothing.txt does not exist; allowed: a file, a folder or a glob, of {ALLOWED}."),
        ("*.csv", None, [], f"*.csv does not exist; allowed: a file, a folder or a glob, of {ALLOWED}."),
        (".", None, [], f". is a folder without text; allowed: one with files of {ALLOWED}."),
        ("a.docx", b"text", [], f"a.docx has an unknown extension; allowed: {ALLOWED}."),
        ("a.txt", b"", [], "a.txt: 0 characters in 0 documents is too little text; allowed: 20,000 characters or more"),
        ("a.txt", b"one\n" * 19 + b"caf\xe9\n", [], "a.txt, line 20, is not UTF-8 text: byte 4 of the line is 0xe9."),
        ("a.txt", b"a" * 30_000, [], "a.txt: 30,000 characters in 1 documents is too little text; allowed: "),
        ("a.jsonl", b'{"id": 7}\n', [], "a.jsonl has no text in its first row; allowed: rows with a column of text."),
        ("a.csv", b"", [], "a.csv is empty: "),
        (
            "a.txt",
            "\n".join(ENGLISH).encode(),
            ["v9-8"],
            '"v9-8" is not a TPU slice; allowed: one of ' + ", ".join(TPUS),
        ),
        ("a.txt", "\n".join(ENGLISH).encode(), ["v5e-7"], "allowed for v5e: 1, 4, 8, "),
        ("a.txt", "\n".join(ENGLISH).encode(), ["v5p-4096"], "v5p-4096 has 2,048 devices; allowed: 512 at most."),
    ],
)
def test_what_cannot_be_used_ends_in_a_sentence(write, tmp_path, name, content, more, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out, said = write(name, *(["--accelerator", *more] if more else []))
    assert out == "" and said.startswith("error: ") and sentence in said and said.count("\n") == 1


@pytest.mark.parametrize("text", [prose, japanese])
def test_epochs_are_those_of_the_records(fresh, text):
    """Within 10 %."""
    path, _ = text(fresh.folder)
    command = [sys.executable, ROOT / "tools/new_config.py", path]
    (fresh / "my.yaml").write_bytes(
        subprocess.run(command, cwd=fresh.folder, stdout=subprocess.PIPE, check=True).stdout
    )
    fresh("tfrecords", "--configfile", "my.yaml", "--cores", "2")
    config = (fresh / "my.yaml").read_text()
    for run, batch, folder in (("modernbert-mini", 32, "tfrecords"), ("gemma-mini", 16, "tokens/gemma-mini/corpus/*")):
        (manifest,) = fresh.folder.glob(f"experiments/*/results/{folder}/manifest.json")
        steps, said = re.search(rf"{run}:.*?steps: (\d+)   # about ([\d.,]+) epochs", config, re.DOTALL).groups()
        records = json.loads(manifest.read_text())["splits"]["train"]["records"]
        assert float(said.replace(",", "")) == pytest.approx(int(steps) * batch / records, rel=0.1), run


@pytest.mark.long
def test_a_model_learns_more_than_frequencies(fresh):
    (fresh / "text.txt").write_text("\n".join(python_docs()[::2]))
    done = subprocess.run([sys.executable, "tools/new_config.py", "text.txt"], cwd=fresh.folder, stdout=subprocess.PIPE)
    assert done.returncode == 0
    (fresh / "my.yaml").write_bytes(done.stdout)
    fresh("--configfile", "my.yaml", "--cores", "2")
    metrics = json.loads((fresh / "experiments/text/results/mlm/modernbert-mini/metrics.json").read_text())
    for split in ("validation", "test"):
        assert metrics[split]["loss"] < metrics[split]["frequency_loss"]
