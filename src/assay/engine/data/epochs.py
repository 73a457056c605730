"""Epochs told to data: whatever in it has a `set_epoch` is called, however deep it is wrapped."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from assay.core import object_graph

MAX_SEARCHED = 5_000
"""Objects of data that are searched for a `set_epoch`; the nearest come first."""

_TOLD: dict[int, tuple[weakref.ref[Any], int]] = {}
"""The newest epoch of each object, by its id: a data set may be part of several loaders."""


def epoch_followers(*things: object) -> list[Any]:
    """Return the objects that are or lie inside of `things` and have a `set_epoch`."""
    followers = {
        id(inner): inner
        for thing in things
        for inner, _ in object_graph.inside(thing, limit=MAX_SEARCHED)
        if callable(getattr(type(inner), "set_epoch", None))
    }
    return list(followers.values())


def set_epoch(followers: Iterable[Any], epoch: int, *, again: bool = False) -> None:
    """Call `set_epoch` of each of them; of one that is in that epoch only if `again`."""
    for follower in followers:
        if not again and _is_in(follower, epoch):
            continue
        follower.set_epoch(epoch)
        # Of slots without __weakref__ nothing is kept: it is told before each batch.
        with suppress(TypeError):
            _TOLD[id(follower)] = weakref.ref(follower, partial(_forget, id(follower))), epoch


def _is_in(follower: object, epoch: int) -> bool:
    told = _TOLD.get(id(follower))
    return told is not None and told[1] == epoch and told[0]() is follower


def _forget(number: int, _: object) -> None:
    _TOLD.pop(number, None)
