"""Configs that a tool writes for a user's own text."""

import gzip
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from itertools import product

import loopback_hub
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from newconfig import sizes
from newconfig.files import find_files, globs_of
from newconfig.sample import look
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tpulm.config.reading import read_config
from tpulm.corpus.chat_templates import find_chat_template
from tpulm.corpus.files import read_files
from tpulm.corpus.parts import write_part
from tpulm.corpus.rows import ChatTemplate, Form
from tpulm.corpus.sources import ALLOWED, parts_of
from tpulm.corpus.splits import assign_splits
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.texts import chat_template_files
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.training import train

PROGRAM = ROOT / "tools/new_config.py"


@pytest.fixture
def write(tmp_path, monkeypatch, capsys):
    """A function that runs the program in a folder, and returns what is on standard output, and what on error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # the program sets it, which must not last
    monkeypatch.setattr(sizes, "TRIAL", 50_000)  # a smaller trial vocabulary
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), "--stdout", *arguments])
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
SIGNS = [chr(0x4E00 + number) for number in range(300)]
JAPANESE = sentences(2000, SIGNS, "", "。")
ENDLESS = [text[:9] for text in sentences(2500, SIGNS, "", "")]


def prose(folder):
    paragraphs = ["\n".join(ENGLISH[first : first + 4]) for first in range(0, len(ENGLISH), 4)]
    (folder / "a text.txt").write_text("\n\n".join(paragraphs))
    return "a text.txt", {"sample_by": "paragraph", "files": ["a text.txt"]}


def small_files(folder):
    for number in range(250):
        (folder / f"page-{number}.txt").write_text("\n\n".join(ENGLISH[8 * number : 8 * number + 8]))
    return ".", {"sample_by": "document", "files": ["./**/*.txt"]}


def json_lines(folder):
    for number in range(12):
        some = [json.dumps({"id": "x" * 300, "content": text if number else None}) for text in ENGLISH[number::12]]
        (folder / f"train-{number}.jsonl").write_text("\n".join(some))
    (folder / "test.jsonl").write_text("\n".join(json.dumps({"content": text}) for text in ENGLISH[::9]))
    return "*.jsonl", {"column": "content", "files": {"train": ["train*.jsonl"], "test": ["test.jsonl"]}}


def reviews(folder):
    rows = {"url": [f"https://example.org/{'x' * 90}/{number}" for number in range(len(ENGLISH))]}
    rows |= {"review": ["Good.", *ENGLISH[1:]], "stars": range(len(ENGLISH)), "title": [text[:20] for text in ENGLISH]}
    pandas.DataFrame(rows).to_csv(folder / "a.csv", index=False)
    return "a.csv", {"column": "review"}


def instructions(folder):
    rows = [{"instruction": a, "input": "", "output": b} for a, b in zip(ENGLISH, ENGLISH[::-1], strict=True)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "a.jsonl", {"template": "{instruction}\n{input}\n", "response": "{output}"}


def conversations(folder):
    talks = [[{"role": "user", "content": a}, {"role": "assistant", "content": a[::-1]}] for a in ENGLISH[::3]]
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"id": "a b", "talk": talk}) for talk in talks))
    return "a.jsonl", {"messages": "talk", "chat_template": "gemma"}


def mixed_files(folder):
    pandas.DataFrame({"number": range(2000), "body": ENGLISH}).to_csv(folder / "a.csv", index=False)
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in ENGLISH))
    pandas.DataFrame({"longitude": range(9000), "latitude": range(9000)}).to_csv(folder / "c.csv")
    (folder / "LICENSE.txt").write_text("\n".join(ENGLISH[:99]))
    return ".", {"column": "body", "files": ["./**/*.jsonl", "./a.csv"]}


def links(folder):
    """Symbolic links that lead back, so many that a glob which followed them would not end."""
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/1.txt").write_text("\n".join(ENGLISH))
    for number in range(3):
        (folder / f"a/back{number}").symlink_to("..")
    (folder / "2.txt").symlink_to("a/b/1.txt")
    return ".", {"sample_by": "line"}


def japanese(folder):
    (folder / "[1].txt").write_text("\n".join("".join(JAPANESE[first : first + 4]) for first in range(0, 2000, 4)))
    return "[1].txt", {"sample_by": "line", "files": ["[[]1].txt"]}


def without_ends(folder):
    """Lines in which neither words nor sentences end."""
    (folder / "a.txt").write_text("\n".join(ENDLESS))
    return "a.txt", {"sample_by": "line"}


TEXTS = [prose, small_files, json_lines, reviews, instructions, conversations, mixed_files, links, japanese]
# What was chosen of some of them.
NOTES = {
    reviews: 'the text of a row is column: "review"; also possible: column: "title"',
    mixed_files: "2 of 4 files (1 .txt, 2 .csv, 1 .jsonl) fit together and are taken; left out: ./LICENSE.txt, ",
    links: "each file is read once; symbolic links and repeated paths that lead to others: 4",
}


@pytest.mark.unit
@pytest.mark.parametrize("text", TEXTS)
def test_what_a_text_is_made_of_is_found(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path, expected = text(tmp_path)
    found = look([path])
    assert {key: found.source[key] for key in expected} == expected
    assert NOTES.get(text, "") in " ".join(found.notes)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "accelerator"),
    [
        (reviews, None), (conversations, None), (japanese, None), (without_ends, None), (prose, "v4-1024"),
        (prose, "h100:3"),
    ],
)  # fmt: skip
def test_a_config_is_short_and_valid_and_fits_the_text(write, tmp_path, text, accelerator):
    path, expected = text(tmp_path)
    out, said = write(path, *(["--accelerator", accelerator] if accelerator else []))
    assert out.count("\n") <= 52 and max(map(len, out.splitlines())) <= 250
    assert said.startswith("found: ") and "estimate: " in said
    note = NOTES.get(text, "")
    assert note in said and note in " ".join(out.split()).replace(" # ", " ")
    (tmp_path / "my.yaml").write_text(out)
    config = read_config([tmp_path / "my.yaml"], {})
    assert {key: config["corpus"][key] for key in expected} == expected
    shares = config["corpus"]["held_out"].values()
    assert (f"note: {sum(shares):.0%} of the documents" in said) == (sum(shares) > 0.2)
    (masked,), (base,) = config["mlm"]["runs"].values(), config["base"].values()
    assert masked["backend"] == "jax" and "model" in base
    assert all(run["resources"].get("accelerator") == accelerator for run in (masked, base))
    assert config["plan"]["topologies"] == ([accelerator] if accelerator and ":" not in accelerator else [])
    scripts = {japanese: "".join(JAPANESE), without_ends: "\n".join(ENDLESS)}
    shown = scripts.get(text) or " ".join([*ENGLISH, *(one[::-1] for one in ENGLISH)])
    for prompt in config["prompts"]["fill_mask"]:
        before, after = prompt.split("[MASK]")
        assert before in shown and after in shown
    for run in (masked, base):  # as much as such a short text is good for
        assert float(re.findall(rf"steps: {run['steps']}   # about ([\d.]+) epochs", out)[0]) < 120
    assert len(config["prompts"]["fill_mask"]) == len(config["prompts"]["generate"]) == 2


@pytest.mark.unit
def test_a_vocabulary_for_rows_of_one_pattern_can_be_trained(write, tmp_path):
    names = ["".join(parts) for parts in product("bal tor mis ren sul kad fen".split(), repeat=3)][:300]
    asked = "What is the capital of {}? The capital of the country {} is {}, with {} thousand people."
    rows = [asked.format(name, name, names[-1 - row], row) for row, name in enumerate(names)]
    (tmp_path / "rows.txt").write_text("\n".join(rows))
    size = re.search(r"vocab_size: (\d+)", write("rows.txt")[0])[1]
    train([random.Random(0).sample(rows, 180)], Recipe("unigram", int(size)))  # 20 % are held out for each other split


@pytest.mark.unit
def test_a_long_text_is_enough_for_larger_models(write, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(ENGLISH * 120).encode(), 1))
    out, said = write("a.txt.gz", "--accelerator", "v5e-8")
    assert "roberta-base:" in out and "gemma-small:" in out and "note: " not in said
    assert "found: 1 file, 11.5 MB, about 240,000 documents" in said
    assert "the models are small because " in write(prose(tmp_path)[0], "--accelerator", "v5e-8")[1]


def test_a_dataset_of_a_hub(tmp_path):
    with loopback_hub.served() as hub:
        repository = hub.repositories["datasets/some/reviews"] = loopback_hub.Repository(False)
        repository.commit("main", "old", {})
        files = {}
        for split, texts in {"validation": ENGLISH[:100], "train": ENGLISH[100:1000]}.items():
            pq.write_table(pa.table({"url": ["https://" + "x" * 99] * len(texts), "review": texts}), tmp_path / "a")
            files[f"data/{split}-0.parquet"] = (tmp_path / "a").read_bytes()
        newest = repository.commit("main", "new", files)
        place = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        place |= {"HF_TOKEN": loopback_hub.TOKEN}
        command = [sys.executable, PROGRAM, "--stdout", "hf://some/reviews"]
        done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "about 900 documents" in done.stderr, done.stderr
    (tmp_path / "my.yaml").write_text(done.stdout)
    corpus = read_config([tmp_path / "my.yaml"], {})["corpus"]
    splits = {"train": "train", "validation": "validation"}
    expected = {"source": "hub", "dataset": "some/reviews", "column": "review", "revision": newest, "splits": splits}
    assert corpus | expected == corpus


@pytest.mark.unit
def test_runs_of_spaces_and_names_of_files_many_times(write, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(ENGLISH).replace(" ", "     "))
    out, said = write("a.txt", "./a.txt", "../" + tmp_path.name + "/a.txt")
    assert "80% of the spaces follow a space" in said and "whitespace: runs}" in out
    assert "found: 1 file, " in said and "lead to others: 2." in said and 'files: ["a.txt"]' in out


@pytest.mark.unit
def test_a_first_line_that_is_long_is_noted_as_the_names_of_columns(tmp_path):
    pandas.DataFrame({ENGLISH[0] * 2: ENGLISH}).to_csv(tmp_path / "a.csv", index=False)
    assert [note for note in look([str(tmp_path / "a.csv")]).notes if "the names of columns" in note]


@pytest.mark.unit
def test_few_files_are_read_by_paragraphs(tmp_path):
    """Of files as documents, two would be in the test split."""
    for number in range(47):
        some = ["\n".join(ENGLISH[first : first + 4]) for first in range(40 * number, 40 * number + 40, 4)]
        (tmp_path / f"page-{number}.txt").write_text("\n\n".join(some))
    assert look([str(tmp_path)]).source["sample_by"] == "paragraph"


@pytest.mark.unit
def test_many_files_of_the_shell_are_a_glob_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"page-{number}.txt" for number in range(20)]
    for name in names:
        (tmp_path / name).touch()
    assert globs_of(find_files(names)[0], names) == ["*.txt"]
    assert globs_of(find_files(names[1:])[0], names[1:]) == names[1:]


def questions(folder):
    rows = {"id": range(400), "question": [f"{text} {n}?" for n, text in enumerate(ENGLISH[:400])]}
    pandas.DataFrame(rows | {"answer": ENGLISH[400:800]}).to_csv(folder / "qa.csv", index=False)
    return "qa.csv", {"messages": {"user": "question", "assistant": "answer"}}


def prompts_of_base(folder):
    pandas.DataFrame({"Prompt": ENGLISH, "Response": ENGLISH[::-1]}).to_parquet(folder / "qa.parquet")
    return "qa.parquet", {"template": "{Prompt}\n", "response": "{Response}"}


def one_column(folder):
    pandas.DataFrame({"text": ENGLISH}).to_csv(folder / "a.csv", index=False)
    return "a.csv", {"column": "text"}


def llama(folder):
    """A folder of transformers with a chat template and a tokenizer of its own."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64}
    files = {
        "config.json": json.dumps(sizes | {"model_type": "llama", "intermediate_size": 128, "vocab_size": 512}),
        "chat_template.jinja": "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}",
        "tokenizer.json": Tokenizer(WordLevel({"[UNK]": 0}, "[UNK]")).to_str(),
    }
    (folder / "my-llama").mkdir()
    for name, content in files.items():
        (folder / "my-llama" / name).write_text(content)
    return files


@pytest.mark.unit
def test_a_mesh_is_chosen_on_which_devices_send_little(write, tmp_path):
    """By plans of the TPU compiler, a step takes 225 ms on [8, 1], 86 on [1, 8] and 61 on [2, 4]."""
    path, _ = questions(tmp_path)
    assert "mesh: [2, 4]" in write(path, "--finetune", "gemma2_instruct_2b_en", "--accelerator", "v5e-8")[0]


# Rows, what is found in them where that is not the same for a tuning, model and accelerator.
TUNED = [
    (questions, None, "gemma2_instruct_27b_en", "v5e-8"), (questions, None, "my-llama", None),
    (prompts_of_base, None, "gemma2_2b_en", "l4:1"), (one_column, None, "qwen3_8b_en", "v6e-8"),
    (instructions, {"messages": {"system": "input", "user": "instruction", "assistant": "output"}},
     "gemma_instruct_2b_en", "v5e-1"),
    (conversations, {"messages": "talk"}, "gemma3_instruct_270m", None),
]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(("rows", "found", "model", "accelerator"), TUNED)
def test_a_config_finetunes_a_published_model_on_rows(write, tmp_path, rows, found, model, accelerator):
    path, expected = rows(tmp_path)
    expected = found or expected
    llama(tmp_path)
    out, said = write(path, "--finetune", model, *(["--accelerator", accelerator] if accelerator else []))
    (tmp_path / "my.yaml").write_text(out)
    config = read_config([tmp_path / "my.yaml"], {})
    assert "corpus" not in config and not config["mlm"]["runs"]
    text, (run,) = config["finetune"]["text"], config["finetune"]["runs"].values()
    assert {key: text[key] for key in expected} == expected
    assert run["resources"].get("accelerator") == accelerator and run["steps"] >= 100
    steps, epochs, number = re.findall(r"steps: (\d+) +# about ([\d.]+) epochs of ([\d,]+) rows", out)[0]
    assert float(epochs) == pytest.approx(int(steps) * run["batch_size"] / int(number.replace(",", "")), abs=0.06)
    assert ("by its tokenizer" in out) == (model == "my-llama") and "machine has" not in said
    # The prompts are of rows that a run holds out for its test split.
    (part,) = parts_of("finetune.text", text)
    form, template = Form("x", text), text.get("chat_template")
    if template:
        described = find_chat_template("x", template, None, chat_template_files(template))
        form = Form("x", text, ChatTemplate(described))
    columns = {"seed": 0, "min_characters": 0, "responses": "column" not in text}
    record = write_part(str(tmp_path / "part"), read_files(part.files, "line", form), columns)
    recipe = {"parts": ["train"], "max_documents": None, "held_out": text["held_out"]}
    codes, _ = assign_splits("x", recipe, [str(tmp_path / "part")], [record])
    held_out = pq.read_table(tmp_path / "part")["text"].filter(codes == SPLITS.index("test")).to_pylist()
    assert len(config["prompts"]["generate"]) == 3
    assert all(any(one.startswith(prompt) for one in held_out) for prompt in config["prompts"]["generate"])


# Files beside those of `questions`, and what ends in a sentence for the arguments.
FILES = {
    "short.txt": "a" * 30_000, "a.txt": "\n".join(ENGLISH), "number.jsonl": '{"id": 7}\n',
    "turns.jsonl": '{"talk": [{"from": "human"}]}\n', "one.csv": "url;review\nx;some words\n",
    "names.csv": "question,answer\n", "few.csv": "question,answer\n" + "Who?,I.\n" * 30,
    "typo.csv": "\n".join(["question,anwser", *(f"Who is {number}?,It is {number}." for number in range(30))]),
    "excel.csv": "question;answer\n" + "Who?;I.\n" * 30,
    "pointer/tokenizer.json": "version https://git-lfs.github.com/spec/v1\n", "newer/tokenizer.json": '{"model": {}}',
}  # fmt: skip
ON, TUNE = "--accelerator", "--finetune"
UNUSABLE = [
    (["nothing.txt"], f"nothing.txt does not exist; allowed: a file, a folder or a glob, of {ALLOWED}."),
    (["q.csv"], 'q.csv does not exist; did you mean "qa.csv"?'),
    (["typo.csv"], 'typo.csv has the columns "question", "anwser", which are not the names '),
    (["short.txt"], "short.txt: 30,000 characters in 1 different documents is too little text; allowed: "),
    (["number.jsonl"], "number.jsonl has no column of text, but "),
    (["turns.jsonl"], "turns.jsonl, line 1: talk[0] is an object with "),
    (["one.csv"], "one.csv has the one column 'url;review'; allowed: columns that "),
    (["wide.csv"], "wide.csv is not plain text: "),
    (["hf://some/absent"], "hf://some/absent cannot be read ("),
    (["a.txt", ON, "v9-8"], '"v9-8" is not a TPU slice; allowed: one of v2, '),
    (["a.txt", ON, "v5e-7"], "allowed for v5e: 1, 4, 8, "),
    (["a.txt", ON, "v5p-4096"], "v5p-4096 has 2,048 devices; allowed: 512 at most."),
    (["qa.csv", TUNE, "gemma3_instrct_1b"], 'did you mean "gemma3_instruct_1b"?'),
    (["qa.csv", TUNE, "gemma3_instruct_4b"], "allowed: gemma3_instruct_4b_text, "),
    (["qa.csv", TUNE, "gemma3_27b_text", ON, "v5e-1"], "which does not fit the accelerator: "),
    (["qa.csv", TUNE, "gemma3_1b", "--columns", "question,reply"], "found: id, question, answer."),
    (["qa.csv", TUNE, "gemma3_1b", "--columns", "a,b,c"], "allowed: PROMPT,RESPONSE, or one column"),
    (["qa.csv", "--columns", "ansver"], 'did you mean "answer"?'),
    (["few.csv", TUNE, "gemma3_1b"], " is too little text; allowed: 20 characters or more"),
    (["qa.csv", TUNE, "gemma3_1b", ON, ""], "--accelerator is empty; allowed: "),
    (["qa.csv", TUNE, "pointer"], "pointer/tokenizer.json is no JSON of a tokenizer; with Git LFS, "),
    (["qa.csv", TUNE, "newer"], "newer/tokenizer.json cannot be read by the library tokenizers ("),
    (["names.csv", TUNE, "gemma3_1b"], "names.csv has no rows; allowed: files with rows."),
    (["excel.csv", TUNE, "gemma3_1b"], '`python -c \'import pandas; pandas.read_csv("excel.csv", sep=";'),
    (["qa.csv", TUNE, "gemma3_1b", ON, "v5e:8"], 'did you mean "v5e-8"?'),
    (["qa.csv", TUNE, "hf://gemma"], "--finetune is hf://gemma; allowed: hf://OWNER/NAME."),
]


@pytest.mark.unit
@pytest.mark.parametrize(("arguments", "sentence"), UNUSABLE)
def test_what_cannot_be_used_ends_in_a_sentence(write, tmp_path, arguments, sentence):
    questions(tmp_path)
    llama(tmp_path)
    for name in ("pointer", "newer"):
        shutil.copytree(tmp_path / "my-llama", tmp_path / name)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "wide.csv").write_text("text,a\nä b,c\n", encoding="utf-16-le")
    out, said = write(*arguments)
    assert out == "" and said.startswith("error: ") and sentence in said and said.count("\n") == 1


def test_epochs_are_those_of_the_records(fresh):
    """Within 10 %, of a text whose words no space divides, and whose tokens are of few characters."""
    fresh.steady, (path, _) = True, japanese(fresh.folder)
    command = [sys.executable, "tools/new_config.py", path, "--experiment", "own"]
    subprocess.run(command, cwd=fresh.folder, check=True)
    again = subprocess.run(command, cwd=fresh.folder, capture_output=True, text=True)
    assert again.returncode == 1 and again.stderr.startswith("error: experiments/own/config.yaml is there already")
    fresh("-d", "experiments/own", "tfrecords", "--cores", "2")
    config = (fresh / "experiments/own/config.yaml").read_text()
    for run, batch, folder in (("modernbert-mini", 32, "tfrecords"), ("gemma-mini", 16, "tokens/gemma-mini/corpus/*")):
        (manifest,) = fresh.folder.glob(f"experiments/*/results/{folder}/manifest.json")
        steps, said = re.search(rf"{run}:.*?steps: (\d+)   # about ([\d.,]+) epochs", config, re.DOTALL).groups()
        records = json.loads(manifest.read_text())["splits"]["train"]["records"]
        assert float(said.replace(",", "")) == pytest.approx(int(steps) * batch / records, rel=0.1), run
