"""Stand-in for kubectl and a cluster: pods are OS processes of this machine.

It accepts the calls that the backend makes and refuses all others. Manifests are checked against
the official schema where `kubernetes-validate` is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("KUBECTL_HOME", "."))
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
VERSION = "1.29"


def main(words: list[str]) -> str:
    match words:
        case ["create", "-f", "-"]:
            return create(json.load(sys.stdin))
    sys.exit(f"error: unknown call {words}")


def create(job: Any) -> str:
    try:
        import kubernetes_validate
    except ImportError:
        pass
    else:
        kubernetes_validate.validate(job, VERSION, strict=True)
    name = job["metadata"]["name"]
    (HOME / f"{name}.job").write_text(json.dumps(job))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    for index in range(job["spec"]["completions"]):
        pod = f"{name}-{index}"
        # A supervisor of each, which writes the exit code that a shell would see.
        script = 'JOB_COMPLETION_INDEX=$1 "$2" "$3" "$4" > "$5.log" 2>&1; echo $? > "$5.code"'
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", str(index), *container["command"], str(HOME / pod)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        facts = {"name": pod, "labels": {JOB_NAME: name, INDEX: str(index)}, "pid": process.pid}
        (HOME / f"{pod}.pod").write_text(json.dumps(facts))
    return ""


if __name__ == "__main__":
    print(main(sys.argv[1:]), end="")
