"""Run in an interpreter of its own by `test_house.py`: what does importing a module do?

It reads `{"modules": [...], "before": [...]}` from standard input, imports the modules of `before`
for good, and forks once for each module: every one is imported into an interpreter that has seen
nothing else. It prints one JSON object for each: what is loaded afterwards, and what was done on
the way.
"""

import gc
import importlib
import json
import os
import sys
import threading
from typing import Any

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
    for module in asked["modules"]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            with os.fdopen(write, "w", encoding="utf-8") as pipe:
                json.dump(look(module), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            silent = {"module": module, "error": "it ended the process", "loaded": [], "done": []}
            print(pipe.read() or json.dumps(silent), file=answers, flush=True)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
