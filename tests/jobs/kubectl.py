"""Stand-in for kubectl and a cluster: pods are OS processes of this machine.

It accepts the calls that the backend makes and refuses all others. Manifests are checked against
the official schema where `kubernetes-validate` is installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("KUBECTL_HOME", "."))
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
VERSION = "1.29"


def main(words: list[str]) -> str:
    match words:
        case ["create", "-f", "-"]:
            return create(json.load(sys.stdin))
        case ["get", "job", name, "--ignore-not-found", "-o", "json"]:
            file = HOME / f"{name}.job"
            return file.read_text() if file.exists() else ""
        case ["get", "pods", "-l", chosen, "-o", "json"]:
            name = chosen.removeprefix(f"{JOB_NAME}=")
            files = sorted(HOME.glob(f"{name}-*.pod"))
            return json.dumps(
                {"items": [described(json.loads(each.read_text())) for each in files]}
            )
        case ["annotate", "--overwrite", "job", name, annotation]:
            job = json.loads((HOME / f"{name}.job").read_text())
            key, _, value = annotation.partition("=")
            job["metadata"].setdefault("annotations", {})[key] = value
            (HOME / f"{name}.job").write_text(json.dumps(job))
            return ""
        case ["delete", "pods", "--wait=false", "-l", chosen]:
            found = re.fullmatch(
                rf"{re.escape(JOB_NAME)}=(\S+),{re.escape(INDEX)} in \((.*)\)", chosen
            )
            assert found, chosen
            for index in found[2].split(","):
                delete(HOME / f"{found[1]}-{index}.pod")
            return ""
        case ["logs", *_, pod]:
            return (HOME / f"{pod}.log").read_text()
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


def described(facts: Any) -> Any:
    code = HOME / f"{facts['name']}.code"
    status: dict[str, Any] = {"phase": "Running", "startTime": "2026-11-23T02:00:00Z"}
    if code.exists() and code.read_text().strip():
        number = int(code.read_text())
        ended = {"exitCode": number, "finishedAt": "2026-11-23T02:01:00Z"}
        status["phase"] = "Failed" if number else "Succeeded"
        status["containerStatuses"] = [{"state": {"terminated": ended}}]
    return {"metadata": {"name": facts["name"], "labels": facts["labels"]}, "status": status}


def delete(file: Path) -> None:
    """End a pod as the kubelet does: SIGTERM to the container's process alone."""
    shell = json.loads(file.read_text())["pid"]
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
    until = time.monotonic() + 60
    while Path(f"/proc/{shell}/stat").exists() and time.monotonic() < until:
        if Path(f"/proc/{shell}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    file.unlink()


if __name__ == "__main__":
    print(main(sys.argv[1:]), end="")
