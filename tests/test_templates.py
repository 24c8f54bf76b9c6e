"""Templates: documents made of the fields of rows, and where the response is."""

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus import DEFAULTS, FAST, build_parts, fails, parquet, write
from tpulm.corpus.documents import read_responses
from tpulm.corpus.files import read_files
from tpulm.corpus.parts import write_part
from tpulm.corpus.rows import Form
from tpulm.corpus.sources import parts_of

pytestmark = pytest.mark.unit

INFERENCE_MODELS = {"template": "Q: {question} {{{n}}}\n", "response": "A: {answer}"}
ROWS = [
    {"question": "Who?", "n": 1, "answer": "Me."}, {"question": "\u00e9 a\r\nb", "n": 2, "answer": "x"},
    {"question": "none", "n": 3, "answer": None}, {"question": None, "n": 4, "answer": "y"},
]  # fmt: skip
FILES = {
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a.json": json.dumps(ROWS),
    "a.parquet": parquet(**{name: [row[name] for row in ROWS] for name in ROWS[0]}),
    "a.csv": 'question,n,answer\nWho?,1,Me.\n"\u00e9 a\r\nb",2,x\nnone,3,\n,4,y\n',
}


@pytest.mark.parametrize("name", FILES)
def test_fields_of_every_format(tmp_path, name):
    file = write(tmp_path / name, FILES[name])
    found = [row for batch in read_files([str(file)], "line", Form("corpus", INFERENCE_MODELS)) for row in batch]
    expected = [("Q: Who? {1}\n", "A: Me."), ("Q: \u00e9 a\nb {2}\n", "A: x"), ("Q:  {4}\n", "A: y")]
    made = [(prompt + answer, [(len(prompt), len(prompt + answer))]) for prompt, answer in expected]
    assert found == [*made[:2], None, *made[2:]]  # nothing is answered in the third row
    plain = [row for batch in read_files([str(file)], "line", Form("corpus", {"template": "{n}"})) for row in batch]
    assert plain == ["1", "2", "3", "4"]


def test_where_the_responses_are_is_a_column(tmp_path):
    rows = [(f"Prompt {number}: ", f"answer {number}") for number in range(100)]
    batches = [[(prompt + answer, [(len(prompt), len(prompt + answer))]) for prompt, answer in rows]]
    texts, record = build_parts(tmp_path, [("train", batches), ("train", [["no prompt"]])], responses=True)
    for split, found in texts.items():
        path = str(tmp_path / f"{split}.parquet")
        table = pq.read_table(path)
        assert table.column_names == ["text", "responses"]
        places = [spans for batch in read_responses(path, size=7) for spans in batch]  # cut as its row groups are not
        said = [[text[start:stop] for start, stop in spans] for text, spans in zip(found, places, strict=True)]
        assert all(one[0].startswith("answer ") and len(one) == 1 for one in said if one != ["no prompt"])
        answers = [one[0] for one in said if one != ["no prompt"]]
        figures = record[split]
        assert figures["responses"] == {"documents": len(answers), "characters": len("".join(answers))}
    assert "no prompt" in texts["train"] + texts["validation"] + texts["test"]
    path = str(tmp_path / "part.parquet")
    write_part(path, [["text"]], {"seed": 0, "min_characters": 0})
    assert pq.read_schema(path).names == ["text", "words", "key"]


@given(st.lists(st.text("a\r\n \u00e9", max_size=5), min_size=2, max_size=2))
@FAST
def test_the_boundary_is_right_whatever_the_line_ends(tmp_path_factory, values):
    prompt, answer = values
    document = Form("corpus", {"template": "{a}|\r\n", "response": "{b}"}).document("x", [prompt, answer])
    if not answer.strip():
        assert document is None
        return
    path = str(tmp_path_factory.mktemp("part") / "part.parquet")
    write_part(path, [[document]], {"seed": 0, "min_characters": 0, "responses": True})
    table = pq.read_table(path)
    text, [(start, stop)] = table["text"][0].as_py(), [span.values() for span in table["responses"][0].as_py()]
    normal = lambda text: text.replace("\r\n", "\n").replace("\r", "\n")  # noqa: E731
    assert (text[:start], text[start:stop], text[stop:]) == (normal(prompt) + "|\n", normal(answer), "")


@pytest.mark.parametrize(
    ("name", "text", "place", "said"),
    [
        (
            "a.jsonl", '{"question": "a", "n": 1, "answer": "b"}\n{"question": "a", "answer": "b"}\n', ", line 2 ",
            "no column n (corpus.template)",
        ),
        ("b.jsonl", '{"question": "a", "n": 1, "answer": ["b"]}\n', ", line 1", "answer (corpus.response) holds list"),
        ("c.csv", "question,answer\na,b\n", " ", "no column n (corpus.template)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_fields(tmp_path, name, text, place, said):
    file = write(tmp_path / name, text)
    sentence = fails(list, read_files([str(file)], "line", Form("corpus", INFERENCE_MODELS)))
    assert sentence.startswith(f"{file}{place}") and said in sentence


def test_text_has_no_fields(tmp_path):
    file = write(tmp_path / "d.txt", "x")
    sentence = fails(parts_of, "corpus", DEFAULTS | INFERENCE_MODELS | {"files": [str(file)]})
    assert sentence.startswith(f"corpus.template: {file} ")
