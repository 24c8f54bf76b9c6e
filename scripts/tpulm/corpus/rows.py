"""How a row of a table becomes a document: the text of one column, a template that is filled in, or a conversation.

A document is a str, None where a row has no text, or a pair where the responses count: the text, and the characters of
each response, as (start, stop).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpulm.config.texts import template_fields
from tpulm.core.errors import UserError

if TYPE_CHECKING:
    from tpulm.corpus.chat import ChatTemplate

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
                more = " Columns are separated by commas, not semicolons." if comma else ""
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
                f"{place}, is no JSON object; allowed: an object with the field {name} ({self.where}.{key})."
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
