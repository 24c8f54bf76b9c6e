"""Choose what of the rows of tables is text: a column, prompts with responses, or conversations."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tpulm.core.errors import UserError, describe, suggestion
from tpulm.corpus.chat_templates import find_chat_template
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import ROLES, ChatTemplate, Form
from tpulm.corpus.sources import format_of
from tpulm.specs.texts import GEMMA, chat_template_files

from newconfig.files import text_size

PROMPTS = ("instruction", "prompt", "question", "query", "problem", "input")
CONTEXTS = ("context", "passage", "input")
RESPONSES = ("response", "output", "answer", "completion", "solution")
TEXT = "text"  # the column of a text, as most datasets call it
# Identifiers, numbers and words of ASCII; addresses; dates and lists of numbers.
NO_TEXT = re.compile(r"[!-~]*|(https?://|www\.).*|[\d\s.,:;/+%()-]*", re.DOTALL)


class Rows(Form):
    """Rows as they are, with every column of a file."""

    def check(self, place: object, found: Sequence[object]) -> None:
        """Have every column read. Raises UserError for a CSV file that commas do not divide."""
        self.columns = dict.fromkeys(map(str, found), "column")
        first = next(iter(self.columns), "")
        if format_of(str(place)) == "csv" and len(self.columns) == 1 and re.search(r"[;\t]", first):
            mark = max(";\t", key=first.count)
            as_it_is = "dtype=str, keep_default_na=False, index_col=False"
            read = f"pandas.read_csv({json.dumps(str(place))}, sep={json.dumps(mark)}, {as_it_is})"
            program = f'import pandas; {read}.to_csv("commas.csv", index=False)'
            allowed = f"allowed: columns that commas divide, as `python -c {shlex.quote(program)}` writes them."
            raise UserError(f"{place} has the one column {first[:40]!r}; {allowed}")

    def document(self, place: object, values: Sequence[object]) -> object:
        """Return a row as a mapping."""
        return dict(zip(self.columns, values, strict=True))


ROWS = Rows("corpus", {"column": "text"})


@dataclass(frozen=True)
class Tuning:
    """What a model that is finetuned makes of rows.

    chats     whether prompts with responses become conversations
    template  its chat template, as the config names one
    """

    chats: bool
    template: str

    def choose(self, choices: Sequence[dict]) -> list[dict]:
        """Return the choices: conversations, prompts with responses, a column `text`, others."""
        kinds = ("messages", "template")
        by_kind = sorted(
            choices, key=lambda keys: [*(kind not in keys for kind in kinds), keys.get("column", "").lower() != TEXT]
        )
        return list(map(self.as_messages, by_kind))

    def as_messages(self, keys: Mapping) -> dict:
        """Return the keys of a conversation for prompts with responses, if it answers messages."""
        if not (self.chats and "response" in keys):
            return {key: value for key, value in keys.items() if key != "chat_template"}
        user, *context, answer = re.findall("{(.+?)}", keys["template"] + keys["response"])
        system = {"system": context[0]} if context else {}
        return {"messages": system | {"user": user, "assistant": answer}}


def choose_named(columns: Sequence[str], choices: Sequence[dict], names: Sequence[str]) -> list[dict]:
    """Return the choices that the columns of the command line leave; names  of all columns. Raises UserError."""
    plain = {plain_name(name): name for name in names}
    columns = [name if name in names else plain.get(plain_name(name), name) for name in columns]
    if absent := [name for name in columns if name not in names]:
        raise UserError(f"--columns has {absent[0]}, which is no column{suggestion(absent[0], names, 'found')}")
    if len(columns) == 1:
        return [keys for keys in choices if columns[0] in keys.values()] or [{"column": columns[0]}]
    return [asking(columns[:1], columns[1])] if columns else list(choices)


def check_named(place: str, choices: Sequence[Mapping], names: Sequence[str], tuning: Tuning | None) -> None:
    """Raise UserError if a column was chosen as text without a name that says so.

    A model that is trained from nothing takes any column of text, but not one beside a prompt without a response, or a
    response without a prompt: there, the name of the other column may be misspelled.
    """
    texts = [keys["column"] for keys in choices if "column" in keys]
    if choices[0].get("column", TEXT).lower() == TEXT:
        return
    halves = {plain_name(name) for name in names} & {*PROMPTS, *RESPONSES}
    if not tuning and (not halves or len(texts) == 1 or len(texts) < len(choices)):
        return
    header = ", after a first line with names if there is none" if format_of(place) == "csv" else ""
    shown = ", ".join(map(describe, names[:5])) + (", ..." if len(names) > 5 else "")
    raise UserError(
        f"{place} has the columns {shown}, which are not the names that prompts, responses, messages or texts "
        f"usually have; allowed: --columns PROMPT,RESPONSE, or --columns TEXT{header}."
    )


def form_of(keys: Mapping, tuning: Tuning | None = None) -> Form:
    """Return how rows become documents by keys of a source, such as `column`."""
    template, chat = tuning.template if tuning else GEMMA, None
    if "messages" in keys:
        chat = ChatTemplate(find_chat_template("chat_template", template, None, chat_template_files(template)))
    return Form("corpus", keys, chat)


def choose_tables(
    files: Sequence[str], columns: Sequence[str], tuning: Tuning | None
) -> tuple[list[dict], list[str], list[str]]:
    """Return the keys that say what is text in tables, those of most text first, and the files that the first fit.

    columns  that the command line names: one of text or conversations, or one of prompts and one of responses

    The names of the columns are last; none for files without rows. Raises UserError for a column that is not there.
    """
    amounts, rows, most = Counter[str](), dict[str, list[dict]](), max(20, 2000 // max(1, len(files)))
    for file in files:
        rows[file] = list(islice(chain.from_iterable(read_files([file], "line", ROWS)), most))
        per_character = text_size(file) / max(1, len(json.dumps(rows[file], default=str, ensure_ascii=False)))
        for keys, characters in forms_of(rows[file]).items():
            amounts[keys] += int(characters * per_character)
    choices = [json.loads(keys) for keys, _ in amounts.most_common()]
    names = list(dict.fromkeys(chain(*(chain(*some[:1]) for some in rows.values()))))
    if files:
        choices = choose_named(columns, choices, names)
    if tuning:
        choices = tuning.choose(choices)
    needed = set(form_of(choices[0], tuning).columns) if choices else {""}
    fitting = [file for file in files if needed <= set(chain(*rows[file][:1]))]
    if choices and not fitting:
        raise UserError(f"{', '.join(files[:3])}: no file has {' and '.join(sorted(needed))} in its first row.")
    return choices, fitting, names


def forms_of(rows: Sequence[Mapping]) -> dict[str, int]:
    """Return the keys that say what is text in rows, as JSON, each with the characters of that text."""
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in dict.fromkeys(chain(*rows))}
    texts = {name: len("".join(map(str, cells))) for name, cells in values.items() if is_text(cells)}
    found = {json.dumps({"column": name}): size for name, size in texts.items()}
    for name, cells in values.items():
        if cells and all(map(is_conversation, cells)):
            size = sum(len(message["content"]) for cell in cells for message in cell)
            found[json.dumps({"messages": name, "chat_template": GEMMA})] = size
    single = (name for name, cells in values.items() if any(isinstance(cell, str | int | float) for cell in cells))
    fields = {plain_name(name): name for name in single}
    prompt, response = (next((fields[name] for name in names if name in fields), "") for names in (PROMPTS, RESPONSES))
    if prompt and response:
        asked = list(dict.fromkeys([prompt, *(fields[name] for name in CONTEXTS if name in fields)]))
        found[json.dumps(asking(asked, response))] = sum(
            len(str(cell)) for name in (*asked, response) for cell in values[name]
        )
    return found


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, without spaces around it."""
    return name.strip().lower()


def asking(prompts: Sequence[str], response: str) -> dict[str, str]:
    """Return the keys of prompts with responses, by their columns."""
    return {"template": "".join(f"{{{name}}}\n" for name in prompts), "response": f"{{{response}}}"}


def check_conversations(files: Sequence[str]) -> None:
    """Raise UserError for the first message that no chat template takes, of files that have lists of messages."""
    for file in files:
        row = next(chain.from_iterable(read_files([file], "line", ROWS)), {})
        for name, cell in row.items():
            if isinstance(cell, list) and cell and isinstance(cell[0], dict):
                for _ in read_files([file], "line", form_of({"messages": name, "chat_template": GEMMA})):
                    pass


def is_text(cells: Sequence[object]) -> bool:
    """Return whether most cells have words, and are no addresses, numbers, identifiers or categories."""
    texts = [cell for cell in cells if isinstance(cell, str) and not NO_TEXT.fullmatch(cell.strip())]
    return 2 * len(texts) > len(cells) and len(set(texts)) > 0.2 * len(texts)


def is_conversation(cell: object) -> bool:
    """Return whether a value is a list of messages that chat templates take."""
    messages = cell if isinstance(cell, list) else []
    fit = [isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str) for m in messages]
    return all(fit) and any(message["role"] == "assistant" for message in messages)
