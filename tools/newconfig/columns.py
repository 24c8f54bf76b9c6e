"""Choose the column of a table that holds its text."""

from collections.abc import Sequence

from tpulm.core.errors import UserError
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Form


class Rows(Form):
    """Rows as they are, with every column of a file."""

    def check(self, place: object, found: Sequence[object]) -> None:
        """Have every column read."""
        self.columns = dict.fromkeys(map(str, found), "column")

    def document_of(self, place: object, row: object) -> object:
        """Return a value of JSON."""
        return row

    def documents(self, place: object, columns: Sequence[Sequence[object]]) -> list:
        """Return each row of a table as a mapping."""
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]


ROWS = Rows("corpus", {"column": "text"})


def column_of(files: Sequence[str]) -> str:
    """Return `text`, or else the column with the most characters in the first row. Raises UserError."""
    for file in files:
        for row in next(filter(None, read_files([file], "line", ROWS)), [])[:1]:
            cells = row if isinstance(row, dict) else {}
            lengths = {name: len(value) for name, value in cells.items() if isinstance(value, str)}
            if "text" in cells:
                return "text"
            if not lengths:
                raise UserError(f"{file} has no text in its first row; allowed: rows with a column of text.")
            return max(lengths, key=lambda name: lengths[name])
    raise UserError(f"{files[0]} is empty; allowed: rows with a column of text.")
