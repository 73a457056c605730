"""Plugins: ordered context managers around a run. Each one entered is left, whatever fails."""

from __future__ import annotations

import inspect
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.build.marks import provision_of
from assay.core.errors import InputError
from assay.core.events import Handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Plugin of a config: its path (`plugins.1`), and the object."""

    where: str
    thing: Any

    @property
    def name(self) -> str:
        return f"{self.where} ({type(self.thing).__qualname__})"

    def handlers(self) -> list[Handler]:
        """Return its handlers: methods under `on`, in the order of the class, then `handlers()`."""
        listed = getattr(self.thing, "handlers", None)
        own = listed() if callable(listed) else []
        marked = [
            value for value in _attributes(type(self.thing)).values() if isinstance(value, Handler)
        ]
        return [*(self._bind(handler) for handler in marked), *own]

    def _bind(self, handler: Handler) -> Handler:
        """Return a handler of the class with its method bound to the object."""
        return replace(handler, fn=types.MethodType(handler.fn, self.thing), name="")


def as_plugin(where: str, thing: Any) -> Plugin:
    """Return the plugin; InputError if it is no context manager, provider or listener."""
    kind = type(thing)
    is_manager = hasattr(kind, "__enter__") and hasattr(kind, "__exit__")
    is_called = any(callable(getattr(thing, name, None)) for name in ("handlers", "record_end"))
    if not is_manager and not _is_marked(kind) and not is_called:
        raise InputError(
            f"`{where}` is a {kind.__qualname__}, which is no plugin.",
            fix=(
                "give it __enter__ and __exit__, methods under `on` or `provides`, or a"
                " method handlers() or record_end(folder)"
            ),
        )
    return Plugin(where=where, thing=thing)


@contextmanager
def entered(plugins: Sequence[Plugin]) -> Iterator[None]:
    """Enter plugins in order, and leave in reverse order those entered, also after an error.

    The first exception is raised, with a note for each plugin that failed after it. If only leaving
    failed, that is raised: the one error, or all in an ExceptionGroup. No plugin can swallow an
    error.
    """
    inside: list[Plugin] = []
    try:
        for plugin in plugins:
            try:
                if hasattr(type(plugin.thing), "__enter__"):
                    plugin.thing.__enter__()
            except BaseException as error:
                error.add_note(f"while entering the plugin {plugin.name}")
                raise
            inside.append(plugin)
        yield
    except BaseException as error:
        for failed in _leave(inside, error):
            error.add_note(f"then another error: {_describe(failed)}")
        raise
    failures = _leave(inside, None)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup("several plugins failed at the end of the run", failures)


def call_record_end(plugins: Sequence[Plugin], folder: Path) -> list[str]:
    """Call `record_end(folder)` of the plugins that have it; return what failed, a line each."""
    failures = []
    for plugin in plugins:
        try:
            if hasattr(type(plugin.thing), "record_end"):
                plugin.thing.record_end(folder)
        except Exception as error:  # of the user's code, when the run has ended well
            failures.append(f"{plugin.name} after the end: {_describe(error)}")
    return failures


def _leave(plugins: Sequence[Plugin], error: BaseException | None) -> list[BaseException]:
    """Leave plugins in reverse order; return their exceptions in that order."""
    failures: list[BaseException] = []
    for plugin in reversed(plugins):
        leave = getattr(plugin.thing, "__exit__", None)
        if leave is None:
            continue
        try:
            leave(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as failed:
            if failed is error:  # a generator that let it pass through
                continue
            failed.add_note(f"while leaving the plugin {plugin.name}")
            failures.append(failed)
    return failures


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    first = "".join(traceback.format_exception_only(type(error), error)).splitlines()[0]
    return f"{first}{place}{notes}"


def _is_marked(kind: type) -> bool:
    names = _attributes(kind)
    return any(
        isinstance(value, Handler) or provision_of(value) is not None for value in names.values()
    )


def _attributes(kind: type) -> dict[str, Any]:
    """Return the attributes of a class, bases first, without running any code."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update(vars(base))
    return {name: inspect.getattr_static(kind, name) for name in found if not name.startswith("__")}
