"""Untrusted text, such as file, class and tensor names, made fit to print."""

from __future__ import annotations


def printable(text: object) -> str:
    """`text` on one line, with an escape such as \\x1b for everything that a terminal would obey instead of show.

    That is control characters, line breaks, marks that reverse the direction of text, and bytes that are no text.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def shortened(value: object, most: int = 80) -> str:
    """The start of a string, or the kind of another object, for a message."""
    if not isinstance(value, str):
        return type(value).__name__
    return value if len(value) <= most else f"{value[:most]}..."
