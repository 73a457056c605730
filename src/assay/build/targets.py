"""Resolution of a target's text to a class or function, with the by-object half of the allow-list.

A name is easy to disguise, an object is not: whatever path a target takes, the module that defined
the object counts. Nothing is called on the way.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import linecache
import os
import pkgutil
import sys
import traceback
import types
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from assay.build.target_owners import (
    defined_name,
    is_trusted,
    listed_name,
    module_of,
    owner_in,
)
from assay.config.allow_list import (
    FORM,
    WRAP,
    is_target,
    nameless,
    refuse_by_name,
    target_parts,
    trust_command,
)
from assay.config.isolation import (
    is_user_module,
    results_until_closed,
    roots_of,
    user_code,
)
from assay.config.translator import translator
from assay.config.user_modules import UserModules
from assay.core.code_places import add_user_code, lies_under
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import InputError, did_you_mean, suggestion


class TargetError(InputError):
    """A target names nothing, cannot be imported, or is not allowed."""

    def __init__(
        self, kind: str, what: str, *, fix: str = "", raised_at: Sequence[Problem] = ()
    ) -> None:
        super().__init__(what, fix=fix)
        self.kind = kind
        self.raised_at = tuple(raised_at)

    def problem(self, origin: Origin, key: str = "") -> Problem:
        """Return the same error as a problem at the place of the target in the config."""
        return Problem(
            kind=self.kind,
            message=self.what,
            origin=origin,
            key=key,
            fix=self.fix,
            related=self.raised_at,
        )


def resolve(target: str, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()) -> Any:
    """Return the class or function of `target`; TargetError if a config may call none.

    Outside `user_code` the module is imported for this call only.
    """
    with user_code(user_dirs):
        return find_target(target, user_dirs=user_dirs, trusted=trusted)


def find_target(target: str, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()) -> Any:
    """Resolve a target with imports as they are now; see `resolve`."""
    results = results_until_closed(user_dirs)
    asked = (find_target, target, frozenset(trusted))
    if asked not in results:
        search = _Search(
            _name_here(target, user_dirs, trusted),
            tuple(user_dirs),
            roots_of(user_dirs),
            frozenset(trusted),
        )
        results[asked] = search.run()
    return results[asked]


def _name_here(target: str, user_dirs: Sequence[Path], trusted: Collection[str]) -> str:
    """Return the target of a registered short name or of a name of an older system."""
    if not translator().system_of(target) or target_parts(target)[0] in trusted:
        return look_up_registered(target, user_dirs)
    if UserModules(user_dirs).find(target) is not None:
        return target  # the user's own package of that name
    older = translator().older_name(target)
    if older is None:
        wrong = translator().explain_unmapped(target)
        raise TargetError("unknown-target", wrong.message, fix=wrong.fix)
    return older.target


def look_up_registered(target: str, user_dirs: Sequence[Path]) -> str:
    """Return the target of a registered short name; any other target unchanged."""
    if not target.isidentifier():
        return target
    found = UserModules(user_dirs).registered.get(target, [])
    return found[0].target if len(found) == 1 else target


def canonical_name(thing: Any, target: str, *, user_dirs: Sequence[Path]) -> str:
    """Return the one name of a target: the module that defines it and its name there.

    Torch and assay move things between internal modules: for those it is the name on the
    allow-list. An object that cannot be found under its own name (a partial, an instance) keeps the
    requested one.
    """
    written = look_up_registered(target, user_dirs).replace(":", ".")
    listed = listed_name(thing)
    if listed:
        return listed
    module, qualname = module_of(thing), str(getattr(thing, "__qualname__", ""))
    # A method of a class is named by this class, not by the parent that has it.
    if isinstance(thing, types.MethodType) and isinstance(thing.__self__, type):
        module, qualname = (
            thing.__self__.__module__,
            f"{thing.__self__.__qualname__}.{thing.__name__}",
        )
    if isinstance(thing, functools.partial) or not qualname or "<" in qualname:
        return written
    return f"{module}.{qualname}" if _reaches(module, qualname, thing) else written


def _reaches(module: str, qualname: str, thing: Any) -> bool:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = inspect.getattr_static(found, name, None)
        found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    return found is (thing.__func__ if isinstance(thing, types.MethodType) else thing)


@dataclass(frozen=True, slots=True)
class _Search:
    target: str
    user_dirs: tuple[Path, ...]
    roots: tuple[str, ...]
    trusted: frozenset[str]

    def run(self) -> Any:
        names = self._split()
        module, rest = self._import_longest(names)
        found = self._walk(module, rest)
        if isinstance(found, types.ModuleType):
            self._refuse_unknown(
                f"`{self.target}` is a module, not a class or function", "", public_names(found)
            )
        if not callable(found):
            raise TargetError(
                "unknown-target",
                f"`{self.target}` is a {type(found).__name__}; a target is a class or function",
            )
        if owner_in(found, self.roots, self.trusted) is None:
            self._refuse(
                f"`{self.target}` is {defined_name(found)}, which a config may not call",
                module_of(found),
            )
        return found

    def _split(self) -> list[str]:
        if (unnamed := nameless(self.target)) is not None:
            raise TargetError("unknown-target", unnamed.message, fix=unnamed.fix)
        if not is_target(self.target):
            fix = "write `package.module.Name` or `package.module:Class.method`"
            raise TargetError("unknown-target", f"`{self.target}` is no target", fix=fix)
        refusal = refuse_by_name(self.target, self.trusted)
        if refusal is not None:
            raise TargetError(refusal.kind, refusal.message, fix=refusal.fix)
        names = target_parts(self.target)
        if len(names) == 1:
            self._not_registered()
        self._check_top(names)
        return names

    def _not_registered(self) -> NoReturn:
        modules = UserModules(self.user_dirs)
        same = modules.registered.get(self.target, [])
        if same:
            both = " and ".join(str(one.origin) for one in same)
            fix = f'write "{same[0].target}" or "{same[1].target}"'
            raise TargetError(
                "duplicate-name", f"`{self.target}` is registered more than once: {both}", fix=fix
            )
        found = {module: modules.find(module) for module in modules.names()}
        places = [
            f"{module}.{self.target}"
            for module, it in found.items()
            if it and it.module and it.module.names and self.target in it.module.names
        ]
        fix = suggestion(places[:3]) or did_you_mean(self.target, modules.registered, 3) or FORM
        what = f"nothing is registered as `{self.target}`, and it names no module"
        raise TargetError("unknown-target", what, fix=fix)

    def _check_top(self, names: Sequence[str]) -> None:
        """Refuse by the first name what is never allowed, so that it is not even imported."""
        top = names[0]
        if top in ("assay", "torch"):
            return
        spec = _spec(top)
        if spec is None:
            known = [*UserModules(self.user_dirs).names(), "assay", "torch", *self.trusted]
            self._refuse_unknown(f"there is no module `{top}`", top, known)
        if _is_user_spec(spec, self.roots):
            return
        if not is_trusted(top, self.trusted, partly=True):
            hidden = top in sys.stdlib_module_names and top in UserModules(self.user_dirs).names()
            if hidden:
                raise TargetError(
                    "target-not-allowed",
                    f"`{self.target}`: Python's own module `{top}` hides your `{top}.py`",
                    fix="give it another name",
                )
            self._refuse(f"`{self.target}` is in `{top}`, which is not this project's code", top)
        add_user_code(spec.submodule_search_locations or filter(None, [spec.origin]))
        if any(name.startswith("_") for name in names):
            raise TargetError(
                "target-not-allowed", f"`{self.target}` is private to `{top}`", fix=WRAP
            )

    def _import_longest(self, names: Sequence[str]) -> tuple[types.ModuleType, Sequence[str]]:
        before, colon, _ = self.target.partition(":")
        limit = before.count(".") + 1 if colon else len(names)
        module = self._import(names[0])
        for i in range(1, limit):
            is_last = i == len(names) - 1
            if is_last and not isinstance(
                self._attribute(module, names[i]), types.ModuleType | _Missing
            ):
                return module, names[
                    i:
                ]  # a class named like the module it is in: `pkg.net` means the class
            name = ".".join(names[: i + 1])
            if not hasattr(module, "__path__") or _spec(name) is None:
                if colon:
                    self._refuse_unknown(
                        f"there is no module `{name}`", names[i], public_names(module)
                    )
                return module, names[i:]
            module = self._import(name)
        return module, names[limit:]

    def _import(self, name: str) -> types.ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module of the user may import an older system.
            if translator().offer_import(error):
                return self._import(name)
            self._import_failed(name, error)
        except (
            Exception,
            SystemExit,
        ) as error:  # the user's module runs here and may raise anything
            self._import_failed(name, error)

    def _import_failed(self, name: str, error: BaseException) -> NoReturn:
        frames = [
            _at_frame(frame)
            for frame in traceback.extract_tb(error.__traceback__)
            if self._is_users(frame)
        ]
        said = str(error)
        if isinstance(error, SyntaxError) and error.filename:
            said = error.msg
            frames.append(_at_syntax(error))
        fix = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            known = [
                *UserModules(self.user_dirs).names(),
                *(found.name for found in pkgutil.iter_modules()),
            ]
            near = did_you_mean(error.name, known, cutoff=0.75)
            fix = near or f"install `{error.name.partition('.')[0]}`, or correct the import"
        elif isinstance(error, ImportError) and "relative import with no known parent" in said:
            fix = (
                f"`{name}` is in no package: import by the full name, as in `from model import Net`"
            )
        place = f" ({frames[-1].origin.source}:{frames[-1].origin.line})" if frames else ""
        message = (
            f"`{name}` cannot be imported:"
            f" {type(error).__name__}{f': {said}' if said else ''}{place}"
        )
        raise TargetError("import-failed", message, fix=fix, raised_at=frames) from error

    def _is_users(self, frame: traceback.FrameSummary) -> bool:
        return lies_under(frame.filename, self.roots)

    def _walk(self, found: Any, rest: Sequence[str]) -> Any:
        for i, name in enumerate(rest):
            outer, is_last = found, i == len(rest) - 1
            found = self._attribute(outer, name)
            if isinstance(found, _Missing):
                label = getattr(outer, "__name__", str(outer))
                kind = "module" if isinstance(outer, types.ModuleType) else "class"
                self._refuse_unknown(
                    f"the {kind} `{label}` has no `{name}`", name, public_names(outer)
                )
            if not is_last and isinstance(found, types.ModuleType):
                self._refuse(
                    f"`{self.target}` reaches `{found.__name__}` only through `{outer.__name__}`",
                    "",
                )
            if not is_last and not isinstance(found, type):
                raise TargetError(
                    "unknown-target", f"`{name}` in `{self.target}` is neither a module nor a class"
                )
        return found

    def _attribute(self, outer: Any, name: str) -> Any:
        if isinstance(outer, types.ModuleType):
            try:
                return getattr(outer, name)
            except AttributeError:
                return _MISSING
            except (Exception, SystemExit) as error:  # a module that imports its parts on first use
                self._import_failed(outer.__name__, error)
        static = inspect.getattr_static(outer, name, _MISSING)
        # Other descriptors run code of their own when they are read.
        is_safe = isinstance(static, types.FunctionType | classmethod | staticmethod | type)
        return getattr(outer, name) if is_safe else static

    def _refuse_unknown(self, what: str, word: str, known: Collection[str]) -> NoReturn:
        fix = did_you_mean(word, known) if word else ""
        if not fix and known:
            names = sorted(known)
            fix = f"there are: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        message = f"`{self.target}` is unknown: {what}" if word else what
        raise TargetError("unknown-target", message, fix=fix)

    def _refuse(self, what: str, home: str) -> NoReturn:
        raise TargetError(
            "target-not-allowed", what, fix=trust_command(home.partition(".")[0]) or WRAP
        )


class _Missing:
    """Sentinel for a name that does not exist, as None is a value."""


_MISSING = _Missing()


def public_names(thing: Any) -> list[str]:
    """Return the names to suggest for a module or class: public ones that it defines itself."""
    names = [name for name in dir(thing) if not name.startswith("_")]
    if not isinstance(thing, types.ModuleType):
        return names
    submodules = [found.name for found in pkgutil.iter_modules(getattr(thing, "__path__", ()))]
    listed = getattr(thing, "__all__", None)
    if listed is None:
        listed = [name for name in names if not isinstance(vars(thing).get(name), types.ModuleType)]
    # AdamW is meant, not the module adamw that it lies in.
    lowered = {name.lower() for name in listed}
    others = [name for name in submodules if name[0] != "_" and name.lower() not in lowered]
    return sorted({*listed, *others})


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # no such parent, or a module made by hand
        return getattr(sys.modules.get(name), "__spec__", None)


def _is_user_spec(spec: Any, roots: Sequence[str]) -> bool:
    loaded = sys.modules.get(spec.name)
    if loaded is not None:
        return is_user_module(loaded, roots)
    if spec.has_location:
        return lies_under(spec.origin, roots)
    return any(lies_under(f"{place}/", roots) for place in spec.submodule_search_locations or ())


def _at_frame(frame: traceback.FrameSummary) -> Problem:
    line = linecache.getline(frame.filename, frame.lineno or 0).encode()
    column = end = 0
    # Python counts columns in bytes.
    if line and frame.colno is not None and frame.end_colno is not None:
        column = len(line[: frame.colno].decode(errors="replace")) + 1
        end = (
            len(line[: frame.end_colno].decode(errors="replace")) + 1
            if frame.end_lineno == frame.lineno
            else 0
        )
    origin = Origin(
        source=_from_here(frame.filename), line=frame.lineno or 0, column=column, end_column=end
    )
    where = "while the module runs" if frame.name == "<module>" else f"in {frame.name}"
    return Problem(
        kind="import-failed", message=f"raised here, {where}", origin=origin, severity="note"
    )


def _at_syntax(error: SyntaxError) -> Problem:
    origin = Origin(
        source=_from_here(str(error.filename)), line=error.lineno or 0, column=error.offset or 0
    )
    return Problem(kind="import-failed", message=error.msg, origin=origin, severity="note")


def _from_here(file: str) -> str:
    """Return a path as people read it: relative if it lies in the working directory."""
    here = f"{os.getcwd()}{os.sep}"
    return file.removeprefix(here)
