"""Bill of materials of a release in CycloneDX: `python requirements/bom.py WHEEL SDIST > FILE`.

It lists what the lock of a bare install has (requirements/core.txt), what is built into the page
(package-lock.json of the front end), and data of others in the package, each with version, licence
and digests. The same files give the same bytes. In a release, FILE is `assay.cdx.json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Container, Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SPEC = "1.6"
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, as RFC 4122 has it


def bill(files: list[Path]) -> dict[str, Any]:
    """Return the whole bill of the release that these files are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    hashes = _locked()
    needed = dict(_needed(project["dependencies"], hashes.keys()))
    reference = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [_of_pypi(name, hashes) for name in sorted(needed)]
    components += [*_of_page(), _rules()]
    whole = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, whole)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": project["name"],
                "version": project["version"],
                "purl": reference,
                "licenses": [{"license": {"id": project["license"]}}],
                "components": [
                    {"type": "file", "name": path.name, "hashes": [_sha256(path.read_bytes())]}
                    for path in files
                ],
            },
        },
        "components": components,
        "dependencies": [
            {
                "ref": reference,
                "dependsOn": sorted(
                    each["bom-ref"] for each in components if _is_direct(each, project)
                ),
            },
            *(
                {"ref": _pypi(name), "dependsOn": sorted(map(_pypi, needed[name]))}
                for name in sorted(needed)
            ),
        ],
    }


def _locked() -> dict[str, tuple[str, list[str]]]:
    """Return version and digests of each package in the lock."""
    text = (ROOT / "requirements" / "core.txt").read_text(encoding="utf-8")
    found = {}
    for match in re.finditer(
        r"^([\w.-]+)==([^ ;\\]+)(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL
    ):
        found[_name(match[1])] = match[2], re.findall(r"sha256:([0-9a-f]{64})", match[3])
    return found


def _needed(requirements: list[str], locked: Container[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield each package that these requirements need, with its own needs, on any locked system."""
    todo, seen = [Requirement(each) for each in requirements], set()
    while todo:
        name = _name(todo.pop().name)
        if name in seen:
            continue
        seen.add(name)
        found = [Requirement(each) for each in _metadata(name).get_all("Requires-Dist", [])]
        own = [
            each for each in found if "extra" not in str(each.marker) and _name(each.name) in locked
        ]
        todo += own
        yield name, {_name(each.name) for each in own}


def _of_pypi(name: str, hashes: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    version, digests = hashes[name]
    about = _metadata(name)
    licence = about.get("License-Expression") or about.get("License") or "see its distribution"
    return {
        "type": "library",
        "bom-ref": _pypi(name),
        "name": name,
        "version": version,
        "purl": _pypi(name),
        "licenses": [{"license": {"name": licence.split("\n")[0][:80]}}],
        # One for each file that the lock allows, of which an installation takes one.
        "properties": [{"name": "assay:lock:sha256", "value": digest} for digest in digests],
    }


def _of_page() -> Iterator[dict[str, Any]]:
    """Yield the packages of npm that the built page holds."""
    packages = json.loads((ROOT / "frontend" / "package-lock.json").read_text(encoding="utf-8"))[
        "packages"
    ]
    for path, about in sorted(packages.items()):
        if not path or about.get("dev"):
            continue
        name = path.rpartition("node_modules/")[2]
        reference = f"pkg:npm/{name.replace('@', '%40')}@{about['version']}"
        kind, _, digest = about["integrity"].partition("-")
        yield {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": about["version"],
            "purl": reference,
            "licenses": [{"license": {"name": about["license"]}}],
            "hashes": [
                {
                    "alg": f"SHA-{kind.removeprefix('sha')}",
                    "content": base64.b64decode(digest).hex(),
                }
            ],
        }


def _rules() -> dict[str, Any]:
    path = ROOT / "src" / "assay" / "core" / "secrets" / "rules.py"
    match = re.search(r'^SOURCE = "gitleaks (\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    reference = f"pkg:github/gitleaks/gitleaks@{match[1]}"
    return {
        "type": "data",
        "bom-ref": reference,
        "name": "gitleaks rules",
        "version": match[1],
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": [_sha256(path.read_bytes())],
    }


def _is_direct(component: dict[str, Any], project: dict[str, Any]) -> bool:
    direct = {_name(Requirement(each).name) for each in project["dependencies"]}
    return component["name"] in direct or not component["bom-ref"].startswith("pkg:pypi/")


def _metadata(name: str) -> Message:
    try:
        return cast(Message, metadata.metadata(name))
    except metadata.PackageNotFoundError:  # needed on another system only
        return Message()


def _pypi(name: str) -> str:
    return f"pkg:pypi/{name}@{_locked()[name][0]}"


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sha256(data: bytes) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}


if __name__ == "__main__":
    print(json.dumps(bill([Path(each) for each in sys.argv[1:]]), indent=1))
