"""The one exception that stands for a mistake of the user's, not of the program's."""


class UserError(Exception):
    """Something the user can mend: one sentence naming the key or file, what was found and what is allowed."""
