"""Run in an interpreter of its own by `test_house.py`: what does importing a module do?

It reads `{"modules": [...], "before": [...]}` from standard input, imports the modules of `before`
for good, and forks once for each module: every one is imported into an interpreter that has seen
nothing else but the packages around it, which Python imports before it anyway. It prints one JSON
object for each: what is loaded afterwards, and what was done on the way.
"""

import gc
import importlib
import json
import os
import sys
import threading
from typing import Any, TextIO

_DONE = 77
"""Exit status of a fork that came to its end: a module that ends the process has another one."""

DOINGS = {
    "socket.__new__",
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.fork",
    "os.putenv",
    "os.unsetenv",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.chdir",
}


def look(module: str) -> dict[str, object]:
    """Import `module` and tell what that did."""
    done: list[str] = []

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in DOINGS:
            done.append(f"{event}{arguments[:1]}")
        elif (
            event == "open"
            and set(arguments[1] or "") & set("wax+")
            and not str(arguments[0]).startswith("/dev/")
        ):
            done.append(f"open for writing: {arguments[0]}")

    def start(thread: threading.Thread) -> None:
        done.append(f"thread {thread.name}")

    threading.Thread.start = start  # type: ignore[method-assign]
    path = list(sys.path)
    sys.addaudithook(listen)
    try:
        importlib.import_module(module)
    except BaseException as error:
        return {
            "module": module,
            "error": f"{type(error).__name__}: {error}",
            "loaded": [],
            "done": [],
        }
    happened = list(done)  # what follows is our own doing
    if sys.path != path:
        happened.append(f"sys.path changed by {set(sys.path) ^ set(path)}")
    logging = sys.modules.get("logging")
    if logging is not None and logging.getLogger().handlers:
        happened.append(f"root log handlers {logging.getLogger().handlers}")
    return {"module": module, "error": "", "loaded": sorted(sys.modules), "done": happened}


def main() -> None:
    asked = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a module that prints when it is imported does not print among the answers
    for name in asked["before"]:
        importlib.import_module(name)
    gc.freeze()  # else the collector walks through all that was imported again in every fork
    visit("", asked["modules"], answers)


def visit(package: str, modules: list[str], answers: TextIO) -> None:
    """Import what lies in an imported package, each in a fork of its own, and all that is below."""
    inside: dict[str, list[str]] = {}
    for module in modules:
        rest = module.removeprefix(f"{package}.") if package else module
        first = rest.partition(".")[0]
        inside.setdefault(f"{package}.{first}" if package else first, []).append(module)
    for name, below in inside.items():
        pid = os.fork()
        if pid == 0:
            found = look(name)
            if name in below:
                print(json.dumps(found), file=answers, flush=True)
            visit(name, [module for module in below if module != name], answers)
            os._exit(_DONE)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != _DONE:
            silent = {"error": "it ended the process", "loaded": [], "done": []}
            for module in below:
                print(json.dumps({"module": module, **silent}), file=answers, flush=True)


if __name__ == "__main__":
    main()
