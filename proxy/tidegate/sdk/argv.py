"""An argument vector that a model gave, checked before anything is made for it.

    argv = check_argv(arguments["command"])

It is a list and stays one: no shell reads it, so nothing in it needs quoting, and no word of it becomes two.
"""

from typing import Final

from tidegate.errors import LaunchError

__all__ = ["MOST_ARGUMENTS", "MOST_BYTES", "check_argv"]

MOST_ARGUMENTS: Final = 4096
MOST_BYTES: Final = 128 * 1024
"""Of all arguments together, in UTF-8 and with the byte that ends each."""


def check_argv(argv: object) -> tuple[str, ...]:
    """Return an argument vector, whatever it was taken from.

    Raises `LaunchError` unless it is a list or tuple of 1 to `MOST_ARGUMENTS` strings without NUL, of `MOST_BYTES` at
    the most, whose first, the program, is not empty.
    """
    if not isinstance(argv, list | tuple):
        raise _refused(f"it is {_kind(argv)}, and a list of strings is wanted", "argv")
    if len(argv) > MOST_ARGUMENTS:
        raise _refused(f"it has {len(argv)} arguments, more than {MOST_ARGUMENTS}", "argv")
    words = tuple(_word(word, f"argv[{number}]") for number, word in enumerate(argv))
    if not words or not words[0]:
        raise _refused("it names no program", "argv[0]")
    if (size := sum(len(word.encode("utf-8", "surrogateescape")) + 1 for word in words)) > MOST_BYTES:
        raise _refused(f"it has {size} bytes, more than {MOST_BYTES}; give what is long as an input file", "argv")
    return words


def _word(word: object, where: str) -> str:
    if not isinstance(word, str):
        raise _refused(f"it is {_kind(word)}, and a string is wanted", where)
    if "\0" in word:
        raise _refused("it holds a NUL, at which every program would take it to end", where)
    try:
        word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as fault:
        raise _refused("it is no text: half of a surrogate pair stands alone in it", where) from fault
    return word


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _refused(why: str, where: str) -> LaunchError:
    return LaunchError(f"the command is refused: {why}", where=where, hint='write such as ["python3", "-c", "…"]')
