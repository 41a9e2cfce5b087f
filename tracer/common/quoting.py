"""What was given, as a sentence that refuses it quotes it: never more than a line of it."""

from os import PathLike

MOST = 80
"""Characters that are quoted at most, the quotation marks among them."""


def quoted(given: object, most: int = MOST) -> str:
    """`repr(given)`, its middle left out where it is longer than `most` characters: `'abc … xyz'`.

    A path is quoted as its text. A long text is cut before its `repr` is made, so that quoting costs the same for any.
    """
    given = str(given) if isinstance(given, PathLike) else given
    if isinstance(given, str | bytes | bytearray) and len(given) > 2 * most:
        given = given[:most] + given[-most:]
    return shortened(repr(given), most)


def shortened(said: str, most: int = MOST) -> str:
    """A text of any length as one line of at most `most` characters; what is left out in the middle is `…`."""
    said = said if len(said) <= 4 * most else said[: 2 * most] + said[-2 * most :]
    said = " ".join(said.split()) if "\n" in said else said
    head = 2 * (most - 3) // 3
    return said if len(said) <= most else f"{said[:head]} … {said[head + 3 - most :]}"
