"""The exception for user errors, as opposed to bugs."""

LONGEST = 2000  # characters; data can have names of any length


class UserError(Exception):
    """Something the user can mend: one sentence naming the key or file, what was found and what is allowed.

    Characters of data that a terminal may take for a command are escaped, as in a Python string.
    """

    def __str__(self) -> str:
        """Return the sentence, without its middle where it is too long."""
        sentence = super().__str__()
        if len(sentence) > LONGEST:
            sentence = f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"
        return "".join(
            one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in sentence
        )
