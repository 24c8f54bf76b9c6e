"""Convert rows of tables to documents: the text of one column, a filled-in template, or a conversation.

A document is a str, or None for a row without text. Where the responses count, it is a pair of the text and the
characters of each response, as (start, stop), or None for a row without a prompt or a response.

Jinja's sandbox renders chat templates with the options of transformers (transformers.utils.chat_template_utils), so
that any tokenizer's template gives the same text. Only the clock, `strftime_now`, is not defined: templates then use
their default date.
"""

import contextlib
import json
import math
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

from tpulm.core.errors import UserError, did_you_mean, one_line
from tpulm.specs.texts import template_fields

Spans = list[tuple[int, int]]
Document = str | None | tuple[str, Spans]
Documents = Iterator[Sequence[Document]]


@dataclass
class Field:
    """A field of a row, for messages; converted to text only there, since counting lines takes time."""

    place: object
    name: str

    def __str__(self) -> str:
        """Return file, perhaps line, and field."""
        return f"{self.place}: {self.name}"


@dataclass
class Form:
    """Converts rows to documents by a source's recipe: `column`, `template` and `response`, or `messages`.

    `messages` is the column with a conversation, or the column of each role's message.
    """

    where: str  # config key of the source, for the messages
    recipe: Mapping
    chat: "ChatTemplate | None" = None  # with messages

    def __post_init__(self) -> None:
        """Read the templates. Raises UserError."""
        named = [name for name in ("template", "response") if name in self.recipe]
        self.templates = [template_fields(f"{self.where}.{name}", plain(self.recipe[name])) for name in named]
        fields = {field: name for name, parts in zip(named, self.templates, strict=True) for _, field in parts if field}
        messages = self.recipe.get("messages")
        # The column of each role, in the order of the conversation; empty for whole conversations.
        self.roles = {role: messages[role] for role in ROLES if role in messages} if isinstance(messages, dict) else {}
        # The key of the config by column that is read.
        self.columns = fields or {column: f"messages.{role}" for role, column in self.roles.items()}
        if not self.columns:
            key = "messages" if self.chat else "column"
            self.columns = {self.recipe[key]: key}

    def check(self, place: object, names: Sequence[object]) -> None:
        """Raise UserError if a table with the columns `names` lacks one; place  file, and perhaps line."""
        for column, key in self.columns.items():
            if column not in names:
                comma = len(names) == 1 and ";" in str(names[0])
                more = " Columns must be separated by commas, not semicolons." if comma else ""
                spaces = any(str(name) != str(name).strip() for name in names)
                shown = ", ".join(f'"{name}"' if spaces else str(name) for name in names)
                more = f".{more}" if comma or spaces else did_you_mean(column, map(str, names)) or "."
                raise UserError(f"{place} has no column {column} ({self.where}.{key}); found: {shown}{more}")
            if list(names).count(column) > 1:
                raise UserError(
                    f"{place} has {list(names).count(column)} columns {column} ({self.where}.{key}); allowed: 1."
                )

    def document(self, place: object, values: Sequence[object]) -> Document:
        """Return the document of a row, given the values of its columns. Raises UserError for what is no text."""
        if self.chat and not self.roles:
            return self.chat.document(Field(place, self.recipe["messages"]), values[0])
        texts = [self.text(place, name, value) for name, value in zip(self.columns, values, strict=True)]
        if self.roles:
            said = dict(zip(self.columns, (text or "" for text in texts), strict=True))
            if not said[self.roles["user"]].strip():
                return None
            messages = [{"role": role, "content": said[column]} for role, column in self.roles.items()]
            # Some rows may have no instructions.
            messages = [message for message in messages if message["role"] != "system" or message["content"].strip()]
            return self.chat.document(Field(place, "messages"), messages) if self.chat else None
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
        return (text, [(len(prompt), len(text))]) if answered and prompt.strip() else None

    def text(self, place: object, column: str, value: object) -> str | None:
        """Return the text of a value. Raises UserError for another type; templates and roles also take numbers."""
        filled = self.templates or self.roles
        if filled and isinstance(value, int | float):
            missing = isinstance(value, float) and math.isnan(value)  # as pandas writes it
            value = None if missing else str(value)
        if value is not None and not isinstance(value, str):
            allowed = "text or a number" if filled else "text"
            key = self.columns[column]
            raise UserError(f"{place}: {column} ({self.where}.{key}) holds {type(value).__name__}; allowed: {allowed}.")
        if value and filled:
            return plain(value)
        return encodable(value) if value else value

    def document_of(self, place: object, row: object) -> Document:
        """Return the document of a JSON object. Raises UserError."""
        if not isinstance(row, dict):
            name, key = next(iter(self.columns.items()))
            raise UserError(
                f"{place}, is not a JSON object; allowed: an object with the field {name} ({self.where}.{key})."
            )
        self.check(place, list(row))
        return self.document(place, [row[column] for column in self.columns])

    def documents(self, place: object, columns: Sequence[Sequence[object]]) -> list[Document]:
        """Return the documents of the rows of a table, given the values of each column."""
        return [self.document(place, values) for values in zip(*columns, strict=True)]


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(text: str) -> str:
    """Return a text without lone surrogates, its line ends "\\n"; to be called before characters are counted."""
    text = encodable(text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


ROLES = ("system", "user", "assistant")
# Marks of the text between {% generation %} and {% endgeneration %}: code points that are never characters.
BEGIN, END = "\ufdd0", "\ufdd1"
SAID = "\ufdd2"  # stands for a message; no template writes this character by itself
MARKER = re.compile(r"<[^<>\s'\"{}]+>|\[/?[A-Z_]+\]")


class Generation(Extension):
    """The block {% generation %}, which marks the assistant's text in a template."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the node that marks the text of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Any) -> str:
        """Return the text of the block between marks."""
        return f"{BEGIN}{caller()}{END}"


def environment() -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment that transformers has for chat templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    return sandbox


LONGEST = 10.0  # seconds of CPU time for the text of a conversation


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this block after `seconds` of CPU time of this process; only in the main thread."""

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
        """Compile a template as rule fetch_chat_template writes it: where, template, bos_token, eos_token, special.

        Raises UserError for an invalid template, or one that needs an unknown token.
        """
        where, template = described["where"], described["template"]
        jinja = environment()
        try:
            names = meta.find_undeclared_variables(jinja.parse(template))
            self.template = jinja.from_string(template)
        except jinja2.TemplateError as error:
            line = f", line {error.lineno}," if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise UserError(f"{where}{line} is not a valid chat template: {one_line(error)}.") from None
        except (RecursionError, MemoryError, SyntaxError):  # raised by Jinja, or by Python, which compiles Jinja's code
            raise UserError(f"{where} is not a valid chat template: it is nested too deeply.") from None
        self.tokens = {name: described[name] for name in ("bos_token", "eos_token")}
        if self.tokens["eos_token"] is None and "eos_token" in names:
            raise UserError(
                f"{where} uses eos_token, which only the folder of a tokenizer defines; allowed: such a folder."
            )
        self.marked = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        self.markers = markers(template, described["special"]) | {token for token in self.tokens.values() if token}

    def document(self, place: object, messages: object) -> tuple[str, Spans] | None:
        """Return the text of a conversation, and the characters of the assistant's messages, as (start, stop).

        place  file, and perhaps line, and field, for error messages

        Returns None if the assistant writes only white space. The text lacks white space at the end, and bos_token and
        eos_token around it, which are added to every document. Raises UserError for an invalid conversation, or one
        that the template cannot render.
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
        """Return the text of messages up to the answer of the assistant, without bos_token at the beginning.

        It has no spaces at the end: most vocabularies have a space in the first token of an answer. Raises UserError as
        `document` does.
        """
        checked = [self.message(place, number, message) for number, message in enumerate(messages)]
        text = unmarked(self.render(place, checked, prompt=True))[0]
        return text.removeprefix(self.tokens["bos_token"] or "").rstrip(" ")

    def described(self) -> dict[str, Any]:
        """Return facts about the template; none if it renders neither two turns nor one.

        begins   whether bos_token comes first
        ending   marker that follows an answer; "" without one
        between  which of bos_token and eos_token it writes between the beginning and the end
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
        endings = (marker for marker in possible if marker in self.markers or MARKER.fullmatch(marker))
        between = text.removeprefix(bos).removesuffix(eos)
        return {
            "begins": bool(bos) and text.startswith(bos),
            "ending": next(endings, ""),
            "between": [name for name, token in (("bos_token", bos), ("eos_token", eos)) if token and token in between],
        }

    def checked(self, place: object, messages: object) -> list[dict[str, str]]:
        """Return role and content of messages. Raises UserError for an invalid conversation."""
        if not isinstance(messages, list) or not messages:
            problem = "an empty list" if messages == [] else type(messages).__name__
            raise UserError(f"{place} holds {problem}; allowed: a list of messages, each with role and content.")
        checked = [self.message(place, number, message) for number, message in enumerate(messages)]
        if all(message["role"] != "assistant" for message in checked):
            raise UserError(f"{place} has no message of the assistant; allowed: one or more.")
        return checked

    def message(self, place: object, number: int, message: object) -> dict[str, str]:
        """Return role and content of message `number`. Raises UserError for an invalid one.

        A message with markup of the template is invalid, since it could pass for several.
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
        """Return the text of messages; with `prompt`, up to the beginning of an answer. Raises UserError."""
        tokens = {name: token or "" for name, token in self.tokens.items()}
        try:
            with at_most(LONGEST):
                text = self.template.render(messages=messages, add_generation_prompt=prompt, **tokens)
        except Exception as error:  # whatever the expressions of a template raise
            raise UserError(f"{place} cannot be rendered by the chat template: {one_line(error)}.") from None
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def by_beginnings(self, place: object, messages: list[dict[str, str]], text: str) -> Spans:
        """Return the spans of the assistant for a template without {% generation %}: after the prompt of each turn.

        text  of all messages. Raises UserError if it does not begin with the text of the first messages.
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
    """Return a text without the marks of {% generation %}, and the marked characters, as (start, stop)."""
    parts = re.split(f"[{BEGIN}{END}]", text)
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return "".join(parts), list(zip(ends[1:-1:2], ends[2::2], strict=False))


def markers(template: str, special: Sequence[str] | None) -> set[str]:
    """Return the markup of a template, which no message may have.

    special  special tokens of the tokenizer. If None, markup is what looks like them, <start> or [START], without
             pairs of tags such as <think> and </think>
    """
    if special is not None:
        return {token for token in special if token and token in template}
    markup = set(MARKER.findall(template))
    return {marker for marker in markup if not {f"<{marker.strip('</>')}>", f"</{marker.strip('</>')}>"} <= markup}
