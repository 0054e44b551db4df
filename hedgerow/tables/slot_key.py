"""The key by which a table or a filter places ids.

Whoever knows where a hash puts ids can choose ids that all fall into one place, and make every
write of them a search through the others. So the hash of every table depends on a number that is
drawn at random. No row, first value, owner or count depends on it.
"""

from __future__ import annotations

import secrets

from ..core.errors import ConfigError


def slot_key_of(given: int | None) -> int:
    """The key that was given, or one drawn from the operating system's randomness.

    >>> slot_key_of(5), 0 < slot_key_of(None) < 2**64
    (5, True)
    """
    return drawn_key() if given is None else given


def drawn_key() -> int:
    """One of 1..2**64-1 that cannot be guessed.

    >>> drawn_key() != drawn_key()
    True
    """
    return secrets.randbelow(2**64 - 1) + 1


def check_slot_key(owner: str, key: object) -> None:
    """Refuses what is no key; None is drawn later.

    >>> check_slot_key("TableConfig", None)
    """
    if key is not None and not (type(key) is int and 0 <= key < 2**64):
        raise ConfigError(
            f"{owner}.slot_key is {key!r}; it must be an int in 0..2**64-1, or None for a key that "
            f"is drawn at random."
        )
