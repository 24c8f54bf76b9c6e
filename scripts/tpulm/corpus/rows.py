"""How a row of a table becomes a document: the text of one column, a template that is filled in, or a conversation.

A document is a str, None where a row has no text, or a pair where the responses count: the text, and the characters of
each response, as (start, stop).

A chat template is Jinja, which transformers renders in a sandbox; this is the same sandbox with the same options
(transformers.utils.chat_template_utils), so that any tokenizer's template gives the same text. Only the clock is left
out: `strftime_now` is not defined, and templates then take the date that they have for that case.
"""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tpulm.core.errors import UserError
from tpulm.specs.texts import template_fields

Spans = list[tuple[int, int]]
Document = str | None | tuple[str, Spans]
Documents = Iterator[Sequence[Document]]


@dataclass
class Field:
    """A field of a row, for messages: made into text only there, since to count lines takes time."""

    place: object
    name: str

    def __str__(self) -> str:
        """Return file, perhaps line, and field."""
        return f"{self.place}: {self.name}"


@dataclass
class Form:
    """How rows become documents, as a source's recipe says it: `column`, `template` and `response`, or `messages`."""

    where: str  # config key of the source, for the messages
    recipe: Mapping
    chat: "ChatTemplate | None" = None  # with messages

    def __post_init__(self) -> None:
        """Read the templates. Raises UserError."""
        named = [name for name in ("template", "response") if name in self.recipe]
        self.templates = [template_fields(f"{self.where}.{name}", plain(self.recipe[name])) for name in named]
        fields = {field: name for name, parts in zip(named, self.templates, strict=True) for _, field in parts if field}
        # The columns that are read, each with the key that names it.
        key = "messages" if self.chat else "column"
        self.columns = fields if named else {self.recipe[key]: key}

    def check(self, place: object, found: Sequence[object]) -> None:
        """Raise UserError when a table lacks a column; `place` is the file, and perhaps a line."""
        for column, key in self.columns.items():
            if column not in found:
                comma = len(found) == 1 and ";" in str(found[0])
                more = " Columns must be separated by commas, not semicolons." if comma else ""
                raise UserError(
                    f"{place} has no column {column} ({self.where}.{key}); found: {', '.join(map(str, found))}.{more}"
                )

    def document(self, place: object, values: Sequence[object]) -> Document:
        """Return the document of the values of the columns. Raises UserError for what is no text."""
        if self.chat:
            return self.chat.document(Field(place, self.recipe["messages"]), values[0])
        texts = [self.text(place, name, value) for name, value in zip(self.columns, values, strict=True)]
        if not self.templates:
            return texts[0]
        filled = dict(zip(self.columns, (text or "" for text in texts), strict=True))
        prompt, *response = [
            "".join(text + filled.get(field or "", "") for text, field in parts) for parts in self.templates
        ]
        if "response" not in self.recipe:
            return prompt
        answered = any(filled[field].strip() for _, field in self.templates[-1] if field)
        text = prompt + response[0]
        return (text, [(len(prompt), len(text))]) if answered else None

    def text(self, place: object, column: str, value: object) -> str | None:
        """Return a value of a column as text; numbers are text in templates only."""
        if self.templates and isinstance(value, int | float):
            value = str(value)
        if value is not None and not isinstance(value, str):
            allowed = "text or a number" if self.templates else "text"
            key = self.columns[column]
            raise UserError(f"{place}: {column} ({self.where}.{key}) holds {type(value).__name__}; allowed: {allowed}.")
        if value and self.templates:
            return plain(value)
        return encodable(value) if value else value

    def document_of(self, place: object, row: object) -> Document:
        """Return the document of a JSON object. Raises UserError where there is none."""
        if not isinstance(row, dict):
            name, key = next(iter(self.columns.items()))
            raise UserError(
                f"{place}, is not a JSON object; allowed: an object with the field {name} ({self.where}.{key})."
            )
        self.check(place, list(row))
        return self.document(place, [row[column] for column in self.columns])

    def documents(self, place: object, columns: Sequence[Sequence[object]]) -> list[Document]:
        """Return the documents of the rows of a table, from the values of each column that is read."""
        return [self.document(place, values) for values in zip(*columns, strict=True)]


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: JSON can escape halves of a pair of surrogates, which no encoding can."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(text: str) -> str:
    """Return a text that UTF-8 can hold, its line ends "\\n": before characters are counted."""
    text = encodable(text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


ROLES = ("system", "user", "assistant")
# Around what is between {% generation %} and {% endgeneration %}: code points that are never characters.
BEGIN, END = "\ufdd0", "\ufdd1"
SAID = "\ufdd2"  # a message that no template writes by itself
MARKER = re.compile(r"<[^<>\s'\"{}]+>|\[/?[A-Z_]+\]")


class Generation(Extension):
    """The block {% generation %}, by which a template says what the assistant generates."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the node that marks what the block writes."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Any) -> str:
        """Return the text of the block between marks."""
        return f"{BEGIN}{caller()}{END}"


def environment() -> ImmutableSandboxedEnvironment:
    """Return Jinja as transformers sets it up for chat templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


LONGEST = 10.0  # seconds of CPU time for the text of a conversation


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this block after so many seconds of CPU time of this process, in its main thread."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} s of CPU time")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class ChatTemplate:
    """A chat template, ready to render."""

    def __init__(self, described: Mapping):
        """Take a template as rule fetch_chat_template describes it: where, template, bos_token, eos_token, special.

        Raises UserError where it is no template, or needs a token that is not known.
        """
        where, template = described["where"], described["template"]
        jinja = environment()
        try:
            names = meta.find_undeclared_variables(jinja.parse(template))
            self.template = jinja.from_string(template)
        except jinja2.TemplateError as error:
            line = f", line {error.lineno}," if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise UserError(f"{where}{line} is not a valid chat template: {said(error)}.") from None
        except (RecursionError, MemoryError, SyntaxError):  # of Jinja, or of Python, which compiles what it makes
            raise UserError(f"{where} is not a valid chat template: it is nested too deeply.") from None
        self.tokens = {name: described[name] for name in ("bos_token", "eos_token")}
        if self.tokens["eos_token"] is None and "eos_token" in names:
            raise UserError(
                f"{where} uses eos_token, which only the folder of a tokenizer defines; allowed: such a folder."
            )
        self.marked = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        self.markers = markers(template, described["special"]) | {token for token in self.tokens.values() if token}

    def document(self, place: object, messages: object) -> tuple[str, Spans] | None:
        """Return the text of a conversation and the characters that the assistant says, as (start, stop).

        place  file, and perhaps line, and field: for the messages, made into text only there

        None where the assistant says nothing but white space. The token that begins a text and the one that ends it
        are left out where the template writes them there: they are added to every document. So is white space at the
        end. Raises UserError for what is no conversation, or not for this template.
        """
        checked = self.checked(place, messages)
        if not any(message["content"].strip() for message in checked if message["role"] == "assistant"):
            return None
        marked = self.render(place, checked)
        text, spans = unmarked(marked) if self.marked else (marked, self.by_beginnings(place, checked, marked))
        first = len(self.tokens["bos_token"] or "")
        first = first if first and text.startswith(self.tokens["bos_token"] or "") else 0
        end = text.rstrip()
        end = end.removesuffix(self.tokens["eos_token"] or "").rstrip()
        clipped = [(max(start, first) - first, min(stop, len(end)) - first) for start, stop in spans]
        clipped = [(start, stop) for start, stop in clipped if start < stop]
        if not clipped:
            raise UserError(f"{place}: the chat template does not write the messages of the assistant.")
        return end[first:], clipped

    def prompt(self, place: object, messages: Sequence[object]) -> str:
        """Return the text of messages up to where the assistant answers, without the token that begins a text.

        Without spaces at the end: most vocabularies have a space in the first token of an answer. Raises UserError as
        `document` does.
        """
        checked = [self.message(place, number, message) for number, message in enumerate(messages)]
        text = unmarked(self.render(place, checked, prompt=True))[0]
        return text.removeprefix(self.tokens["bos_token"] or "").rstrip(" ")

    def described(self) -> dict[str, Any]:
        """Return facts about the template; none where it renders neither two turns nor one.

        begins   whether bos_token comes first
        ending   the marker that follows an answer; empty where none does
        between  which of bos_token and eos_token it writes elsewhere than at the beginning and the end
        """
        talk = [{"role": role, "content": SAID} for role in ("user", "assistant") * 2]
        for messages in (talk, talk[:2]):
            with contextlib.suppress(UserError):
                text = unmarked(self.render("the chat template", messages))[0].rstrip()
                break
        else:
            return {}
        bos, eos = (self.tokens[name] or "" for name in ("bos_token", "eos_token"))
        rest = text.rpartition(SAID)[2].strip()
        possible = (rest, rest.removesuffix(eos).strip())
        endings = (one for one in possible if one in self.markers or MARKER.fullmatch(one))
        between = text.removeprefix(bos).removesuffix(eos)
        return {
            "begins": bool(bos) and text.startswith(bos),
            "ending": next(endings, ""),
            "between": [name for name, token in (("bos_token", bos), ("eos_token", eos)) if token and token in between],
        }

    def checked(self, place: object, messages: object) -> list[dict[str, str]]:
        """Return role and content of messages. Raises UserError for what is no conversation."""
        if not isinstance(messages, list) or not messages:
            found = "an empty list" if messages == [] else type(messages).__name__
            raise UserError(f"{place} holds {found}; allowed: a list of messages, each with role and content.")
        checked = [self.message(place, number, message) for number, message in enumerate(messages)]
        if all(message["role"] != "assistant" for message in checked):
            raise UserError(f"{place} has no message of the assistant; allowed: one or more.")
        return checked

    def message(self, place: object, number: int, message: object) -> dict[str, str]:
        """Return role and content of a message, by its number. Raises UserError for what is none.

        Also for one that has what the template itself writes around messages: it could pass for several.
        """
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            has = f"an object with {', '.join(map(str, message))}" if isinstance(message, dict) else "not an object"
            raise UserError(f"{place}[{number}] is {has}; allowed: an object with role and content.")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise UserError(f"{place}[{number}].role is {json.dumps(role)[:50]}; allowed: {', '.join(ROLES)}.")
        if not isinstance(content, str):
            raise UserError(f"{place}[{number}].content holds {type(content).__name__}; allowed: text.")
        forged = sorted(marker for marker in (*self.markers, BEGIN, END) if marker in content)
        if forged:
            raise UserError(
                f"{place}[{number}].content has {forged[0]!a}, which is markup of the chat template; "
                "allowed: text without it."
            )
        return {"role": role, "content": plain(content)}

    def render(self, place: object, messages: Sequence[Mapping], prompt: bool = False) -> str:
        """Return messages as text; with `prompt`, up to where the assistant begins. Raises UserError."""
        tokens = {name: token or "" for name, token in self.tokens.items()}
        try:
            with at_most(LONGEST):
                text = self.template.render(messages=messages, add_generation_prompt=prompt, **tokens)
        except Exception as error:  # whatever the expressions of a template raise
            raise UserError(f"{place} cannot be rendered by the chat template: {said(error)}.") from None
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def by_beginnings(self, place: object, messages: list[dict[str, str]], text: str) -> Spans:
        """Return where the assistant speaks, of a template that does not say: after the prompt of each of its turns.

        text  of all messages. Raises UserError where the text of the first messages is not how that of all begins.
        """
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self.render(place, messages[:number], prompt=True)
                after = self.render(place, messages[: number + 1])
                if not text.startswith(after) or not after.startswith(before):
                    raise UserError(
                        f"{place}[{number}] is rendered differently by the chat template when it is the last message; "
                        "allowed: a template that renders it the same, or that has {% generation %} and "
                        "{% endgeneration %} around the messages of the assistant."
                    )
                spans.append((len(before), len(after)))
        return spans


def unmarked(text: str) -> tuple[str, Spans]:
    """Return a text without the marks of {% generation %}, and where they were, as (start, stop)."""
    parts = re.split(f"[{BEGIN}{END}]", text)
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return "".join(parts), list(zip(ends[1:-1:2], ends[2::2], strict=False))


def markers(template: str, special: Sequence[str] | None) -> set[str]:
    """Return the markup of a template, which no message may have.

    special  the special tokens of the tokenizer; None where there is none: then what looks like them, <start> or
             [START], but not the tags of a pair such as <think> and </think>, which a message may have
    """
    if special is not None:
        return {token for token in special if token and token in template}
    found = set(MARKER.findall(template))
    return {one for one in found if not {f"<{one.strip('</>')}>", f"</{one.strip('</>')}>"} <= found}


def said(error: Exception) -> str:
    """Return the message of an error of Jinja, in one line."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
