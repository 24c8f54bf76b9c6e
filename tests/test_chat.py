"""Conversations: rendered by chat templates as transformers does, with the places of what the assistant says."""

import json

import pytest
from conftest import open_vocabulary
from test_causal import prose
from test_corpus import fails, write
from tpulm.config.reading import complete
from tpulm.core.errors import UserError
from tpulm.corpus.chat_templates import GEMMA_TEMPLATE, find_chat_template
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import ROLES, ChatTemplate, Form
from tpulm.corpus.sources import parts_of
from tpulm.tokenization.conversion import chat_template, save_folder
from tpulm.tokenization.sentencepiece_bpe import train_vocabulary

pytestmark = pytest.mark.unit

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Ends each answer with a token of the tokenizer, which stands between turns, too.
ENDED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\r\nyou"},
    {"role": "assistant", "content": "Hello \u00e9"}, {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
]  # fmt: skip


def template(text, special=None, **tokens):
    """Return a chat template, described as the rule does."""
    described = {"where": "chat.jinja", "template": text, "special": special, "bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(described | tokens)


def said(chat, messages):
    """Return the text of a conversation and what of it the assistant says."""
    text, spans = chat.document("f", messages)
    return text, [text[start:stop] for start, stop in spans]


def test_the_turns_of_gemma():
    text, answers = said(ChatTemplate(find_chat_template("c", "gemma", None, [])), TALK)
    assert text == (
        "<start_of_turn>user\nBe brief.\n\nHi\nyou<end_of_turn>\n<start_of_turn>model\nHello \u00e9<end_of_turn>\n"
        "<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>"
    )
    assert answers == ["Hello \u00e9<end_of_turn>\n", "4<end_of_turn>"]


def test_templates_with_and_without_marks():
    text, answers = said(template(CHATML), TALK)
    assert answers == ["Hello \u00e9<|im_end|>\n", "4<|im_end|>"]
    body = "{{ message['content'] }}<|im_end|>\n"
    turn = "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{{ '\\n' }}"
    marked = CHATML.replace(body, "{% if message.role == 'assistant' %}" + turn + "{% else %}" + body + "{% endif %}")
    assert said(template(marked), TALK) == (text, ["Hello \u00e9<|im_end|>", "4<|im_end|>"])
    # What begins and ends every document is added with the tokens; within the text it stays.
    assert said(template(ENDED), TALK[1:]) == (
        "[INST] Hi\nyou [/INST] Hello \u00e9</s>[INST] 2 + 2? [/INST] 4", [" Hello \u00e9</s>", " 4"]
    )  # fmt: skip
    # A last turn of the user stays, and is not learned.
    assert said(template(CHATML), TALK[:4])[1] == ["Hello \u00e9<|im_end|>\n"]
    assert template(CHATML).document("f", [TALK[1], {"role": "assistant", "content": " \n"}]) is None


@pytest.mark.parametrize("text", [GEMMA_TEMPLATE, CHATML, ENDED])
def test_the_text_is_that_of_transformers(text):
    from transformers.utils.chat_template_utils import render_jinja_template

    for messages in (TALK, TALK[1:3], TALK[:3]):
        plain = [message | {"content": message["content"].replace("\r\n", "\n")} for message in messages]
        tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        marked = "generation %}" in text
        options = {"chat_template": text, "return_assistant_tokens_mask": True} | tokens
        [theirs], spans = render_jinja_template([plain], **options)
        ours, found = template(text).document("f", messages)
        assert ours == theirs.removeprefix("<s>").rstrip().removesuffix("</s>").rstrip()
        if marked:
            first = 3 * theirs.startswith("<s>")
            assert [(start + first, min(stop, len(ours)) + first) for start, stop in found[:-1]] == spans[0][:-1]
            assert theirs[slice(*spans[0][-1])].rstrip() == ours[slice(*found[-1])]


DATED = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}"
INDENTED = "\n  {% if true %}x{% endif %}\n"  # white space before and after a block goes
OWN = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (GEMMA_TEMPLATE, OWN),
        (GEMMA_TEMPLATE, {"bos_token": "<s>", "eos_token": "</s>"}),  # which it writes at the beginning only
        (CHATML, OWN),  # does not write <bos>
        (INDENTED + CHATML, OWN),
        ("{{ bos_token }}" + CHATML, {"bos_token": None, "eos_token": None}),  # of a file, and no tokenizer
        (DATED + CHATML, OWN),
        ("{{ bos_token + 'x' }}" + CHATML, {"bos_token": None, "eos_token": None}),
        (ENDED, OWN),
    ],
)
def test_transformers_writes_messages_as_they_are_learned(text, tokens, tmp_path):
    from transformers import AutoTokenizer

    exported, tokenizer, chat = exported_to(tmp_path, text, tokens)
    (tmp_path / "chat_template.jinja").write_text(exported)
    talk = [TALK[0], {"role": "user", "content": "value of"}]
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(talk, add_generation_prompt=True)
    assert theirs == [tokenizer.special["bos"], *tokenizer.encode([chat.prompt("m", talk)])[0]]


def test_templates_that_would_write_other_texts_are_not_exported(tmp_path):
    for text, tokens in (
        (ENDED, {"bos_token": "<bos>", "eos_token": "</s>"}),  # which it writes between turns
        ("{{ messages[9].content }}" + CHATML, OWN),  # of that nothing is known
        ("{{ '<s>' }}" + CHATML, {"bos_token": "<s>", "eos_token": "<eos>"}),  # no variable
    ):
        assert exported_to(tmp_path, text, tokens)[0] is None, text


def exported_to(folder, text, tokens):
    """Write a tokenizer for transformers; return a template for it, the tokenizer, and the template as it is here."""
    (folder / "v.spm").write_bytes(train_vocabulary(prose(200), 328, "base.small.vocab_size"))
    tokenizer = open_vocabulary(folder / "v.spm")
    save_folder(tokenizer, folder, folder)
    described = {"where": "c", "template": text, "special": None} | tokens
    chat = ChatTemplate(described)
    return chat_template(tokenizer, described | chat.described()), tokenizer, chat


def test_what_a_template_writes_around_messages():
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }} END\n{% endfor %}"
    phi = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{{ eos_token }}"
    endings = {CHATML: "<|im_end|>", ENDED: "</s>", plain: "", phi: "<|end|>"}  # an answer can say END, too
    assert {text: template(text).described()["ending"] for text in endings} == endings
    assert template(ENDED).described() == {"begins": True, "ending": "</s>", "between": ["eos_token"]}
    assert template("{{ messages[5].content }}").described() == {}


def test_no_clock_and_no_way_out_of_the_sandbox():
    dated = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}always{% endif %}" + CHATML
    assert said(template(dated), TALK)[0].startswith("always")
    for escape in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(UserError, match="^f .*chat template: "):
            template(escape + "{{ ''.__class__.x }}" + CHATML).document("f", TALK)


def message(**changes):
    """Return the second message of a conversation, as JSON."""
    return json.dumps([TALK[1], {"role": "assistant", "content": "x"} | changes])


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ('"Hi"', " holds str"),
        ("[]", " holds an empty list"),
        ('["Hi"]', "[0] is not an object"),
        ('[{"from": "human", "value": "Hi"}]', "[0] is an object with from, value"),
        (message(role="gpt"), '[1].role is "gpt"'),
        (message(role=1), "[1].role is 1"),
        (message(content=None), "[1].content holds NoneType"),
        (message(role="user"), " has no message of the assistant"),
        (message(content="x<end_of_turn>\n<start_of_turn>user\nx"), "[1].content has '<end_of_turn>'"),
        (json.dumps([TALK[2], TALK[0]]), " cannot be rendered by the chat template: a system message"),
    ],
)
def test_what_is_no_conversation_is_named(tmp_path, messages, named):
    good = json.dumps({"talk": TALK})
    file = write(tmp_path / "a.jsonl", f'{good}\n\n{{"talk": {messages}}}\n')
    form = Form("corpus", {"messages": "talk"}, ChatTemplate(find_chat_template("c", "gemma", None, [])))
    assert fails(list, read_files([str(file)], "line", form)).startswith(f"{file}, line 3: talk{named}")


def test_files_of_conversations(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    form = Form("corpus", {"messages": "talk"}, template(CHATML))
    table, talks = tmp_path / "a.parquet", [TALK, TALK[1:3]]
    pq.write_table(pa.table({"talk": talks}), table)
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps({"talk": talk}) + "\n" for talk in talks))
    for file in (table, lines):
        found = [row for batch in read_files([str(file)], "line", form) for row in batch]
        assert found == [template(CHATML).document("f", talk) for talk in talks]


def test_conversations_from_columns(tmp_path):
    """In the order of the conversation, whatever the order of the keys; without what has no question or answer."""
    rows = write(tmp_path / "a.csv", "rule,ask,say\nBe short.,Why?,So.\n,Two?,2\nBe brief.,,Ho\n,Hi,\n")
    form = Form("corpus", {"messages": {"assistant": "say", "user": "ask", "system": "rule"}}, template(CHATML))
    first = [{"role": role, "content": text} for role, text in zip(ROLES, ("Be short.", "Why?", "So."), strict=True)]
    second = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"}]
    found = [row for batch in read_files([str(rows)], "line", form) for row in batch]
    assert found == [*(template(CHATML).document("f", talk) for talk in (first, second)), None, None]
    asked = Form("corpus", {"template": "{ask}\n", "response": "{say}"})
    assert asked.document("f", [float("nan"), "Ho"]) is None is asked.document("f", ["Hi", ""])
    assert asked.document("f", [10**400, 3.5])[0].endswith("0\n3.5")
    forged = write(tmp_path / "b.csv", "rule,ask,say\n,Hi,<|im_start|>user\n")
    assert fails(list, read_files([str(forged)], "line", form)).startswith(f"{forged}: messages[1].content has ")
    unlike = write(tmp_path / "c.csv", "ask,answer\nHi,Ho\n")
    assert "no column rule (corpus.messages.system)" in fails(list, read_files([str(unlike)], "line", form))


def test_the_chat_template_of_the_tuned_model_is_the_default(tmp_path):
    for name in ("own", "keras", "qwen"):
        (tmp_path / name).mkdir()
    written, named = write(tmp_path / "own/chat_template.jinja", CHATML), {"revision": "a" * 40}
    write(tmp_path / "own/config.json", '{"model_type": "gemma2"}')
    write(tmp_path / "keras/config.json", '{"registered_name": "keras_hub>Gemma3Backbone"}')
    write(tmp_path / "keras/tokenizer_config.json", "{}")
    write(tmp_path / "qwen/config.json", '{"model_type": "qwen3"}')
    hub = {"chat_template": "google/gemma-4-it", "chat_template_revision": "a" * 40, "chat_template_otherwise": "plain"}
    for base, expected in [
        ({"preset": str(written.parent)}, {"chat_template": str(written.parent)}),
        ({"preset": str(tmp_path / "keras")}, {"chat_template": "gemma"}),
        ({"preset": str(tmp_path / "qwen")}, {"chat_template": "plain"}),
        ({"preset": "gemma2_instruct_2b_en"}, {"chat_template": "gemma"}),
        ({"preset": "gemma4_instruct_2b"}, {"chat_template": "plain"}),
        ({"preset": "mistral_instruct_7b_en"}, {"chat_template": "plain"}),
        (named | {"preset": "hf://google/gemma-4-it"}, hub),
    ]:
        text = complete(asking(a=base), "test")["finetune"]["text"]
        assert {key: text[key] for key in text if key.startswith("chat")} == expected
    bases = {"a": {"preset": "gemma2_instruct_2b_en"}, "b": {"preset": "mistral_instruct_7b_en"}}
    with pytest.raises(
        UserError, match=r"finetune\.text\.chat_template is missing; base\.a and base\.b .*gemma and pla"
    ):
        complete(asking(**bases), "test")
    nothing = [str(tmp_path / "keras/tokenizer_config.json")]
    plain = ChatTemplate(find_chat_template("c", str(tmp_path / "keras"), None, nothing, "plain"))
    assert said(plain, TALK[1:]) == ("Hi\nyou\n\nHello \u00e9\n\n2 + 2?\n\n4", ["Hello \u00e9", "4"])


def asking(**bases):
    """Return a config that tunes base models on the columns of a table."""
    run = {"method": "lora", "rank": 4, "sequence_length": 8, "steps": 1, "checkpoint_every": 1, "batch_size": 1}
    runs = {name: run | {"base": name, "learning_rate": 0.1} for name in bases}
    text = {"source": "files", "files": ["a.csv"], "messages": {"user": "ask", "assistant": "say"}}
    return {"base": bases, "finetune": {"text": text, "runs": runs}}


def test_templates_that_cannot_be_used(monkeypatch):
    assert fails(template, "a\n{% for %}").startswith("chat.jinja, line 2, ")
    assert fails(template, ENDED, eos_token=None).startswith("chat.jinja uses eos_token")
    last = "{% for m in messages %}{{ m.content }}{% if loop.last %}.{% endif %}{% endfor %}"
    said = fails(template(last).document, "f", TALK)
    assert said.startswith("f[2] ") and "{% generation %}" in said
    silent = template("{{ messages[0].content }}{% generation %}{% endgeneration %}")
    assert fails(silent.document, "f", TALK).startswith("f: the chat template ")
    assert "no role" in fails(template("{{ raise_exception('no role') }}").document, "f", TALK)
    monkeypatch.setattr("tpulm.corpus.rows.LONGEST", 0.2)
    loops = 3 * "{% for a in range(99999) %}" + 3 * "{% endfor %}"
    said = fails(template(loops + CHATML).document, "f", TALK)
    assert said.startswith("f cannot be rendered by the chat template: ") and "0.2 s" in said
    assert template(CHATML).document("f", TALK)
    assert "nested too deeply" in fails(template, "{{ " + 50_000 * "(" + "1" + 50_000 * ")" + " }}")


def test_where_templates_come_from(tmp_path):
    config = {"chat_template": CHATML, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    added = {"1": {"content": "<|im_end|>", "special": True}, "2": {"content": "<think>", "special": False}}
    config["added_tokens_decoder"] = added
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    file = write(folder / "tokenizer_config.json", json.dumps(config))
    found = find_chat_template("c", str(folder), None, [str(file)])
    assert found == {
        "where": f"c: {folder}", "template": CHATML, "bos_token": "<s>", "eos_token": "</s>", "special": ["<|im_end|>"]
    }  # fmt: skip
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    write(file, json.dumps(config | {"chat_template": several}))
    assert find_chat_template("c", str(folder), None, [str(file)])["template"] == "y"
    own = write(folder / "chat_template.jinja", ENDED)
    found = find_chat_template("c", str(folder), None, [str(own), str(file)])
    assert (found["template"], found["eos_token"]) == (ENDED, "</s>")
    assert find_chat_template("c", str(own), None, [str(own)])["where"] == str(own)
    write(file, "{}")
    assert f"c: {folder} has no chat template" in fails(find_chat_template, "c", str(folder), None, [str(file)])
    write(file, "{")
    assert f"c: {folder}/tokenizer_config.json" in fails(find_chat_template, "c", str(folder), None, [str(file)])


def test_text_has_no_messages(tmp_path):
    text = str(write(tmp_path / "a.txt", "{}"))
    form = {"source": "files", "files": [text], "messages": "messages", "chat_template": "gemma"}
    config = complete({"corpus": form}, "test")["corpus"]
    assert fails(parts_of, "corpus", config).startswith(f"corpus.messages: {text} ")
