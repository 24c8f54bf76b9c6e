"""The exception for user errors, as opposed to bugs."""


class UserError(Exception):
    """Something the user can mend: one sentence naming the key or file, what was found and what is allowed."""
