"""The one error class for mistakes that a user can mend, and how others' words are shown in a message."""


class UserError(Exception):
    """A mistake in a file, a key or a tensor that the user can mend.

    The message is one line: what is wrong, where (``file:line``, config key or tensor name),
    and how to mend it. The command line prints it without a traceback and exits with code 2;
    any other exception keeps its traceback.
    """


def printable(text: str) -> str:
    """Return text of another's making as a terminal may show it: no control character of it takes effect."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
