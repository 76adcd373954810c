# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Reading of protocol buffer messages, by field number.

The few fields that are looked at do not justify a protocol buffer library.
"""

from __future__ import annotations

from collections.abc import Iterator

Field = tuple[int, int | bytes]


def varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number at `start` and where the next byte is."""
    value = shift = 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7


def fields(data: bytes) -> Iterator[Field]:
    """Yield number and value of each field: an int, or the bytes of a text or message.

    Raises
    ------
    ValueError
        If `data` is no message.
    """
    place, end = 0, len(data)
    try:
        while place < end:
            key, place = varint(data, place)
            kind = key & 7
            if kind == 0:
                value, place = varint(data, place)
                yield key >> 3, value
                continue
            if kind == 2:
                size, place = varint(data, place)
            else:
                size = {1: 8, 5: 4}[kind]
            if place + size > end:
                raise IndexError
            yield key >> 3, data[place : place + size]
            place += size
    except (IndexError, KeyError):
        raise ValueError("the bytes are not a protocol buffer message") from None


def numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field's entry, packed or not."""
    if isinstance(value, int):
        return [value]
    found, place = [], 0
    while place < len(value):
        number, place = varint(value, place)
        found.append(number)
    return found


def message(value: int | bytes) -> bytes:
    """Return `value`, which must be a message or text.

    Raises
    ------
    ValueError
        If it is a number.
    """
    if isinstance(value, int):
        raise ValueError("a protocol buffer field has another type than expected")
    return value
