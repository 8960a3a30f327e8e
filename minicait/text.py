"""Text from strangers: file, class and tensor names, made safe to print."""

from __future__ import annotations


def printable(text: object) -> str:
    """`text` on one line, with an escape such as \\x1b for everything that a terminal would obey instead of show.

    That is control characters, line breaks, marks that reverse the direction of text, and bytes that are no text.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
