"""The slot key: a secret number that determines where a table or a filter places ids.

An attacker who knows where a hash places ids can choose ids that all fall into the same place, so
that every write searches through all of them. The hash of every table therefore depends on a number
that is drawn at random. Rows, initial values, owners and counts do not depend on it.
"""

from __future__ import annotations

import secrets

from ..core.errors import ConfigError


def slot_key_of(given: int | None) -> int:
    """Returns the given key, or a random one from the operating system.

    >>> slot_key_of(5), 0 < slot_key_of(None) < 2**64
    (5, True)
    """
    return drawn_key() if given is None else given


def drawn_key() -> int:
    """Returns a random key in 1..2**64-1 that cannot be guessed.

    >>> drawn_key() != drawn_key()
    True
    """
    return secrets.randbelow(2**64 - 1) + 1


def check_slot_key(owner: str, key: object) -> None:
    """Raises if `key` is not a valid slot key; None means that a key is drawn later.

    >>> check_slot_key("TableConfig", None)
    """
    if key is not None and not (type(key) is int and 0 <= key < 2**64):
        raise ConfigError(
            f"{owner}.slot_key is {key!r}; it must be an int in 0..2**64-1, or None for a key that "
            f"is drawn at random."
        )
