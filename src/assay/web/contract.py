"""The API as an OpenAPI document: what the typed client of the front end is made of."""

from __future__ import annotations

import json
from pathlib import Path

from assay.store.layout import Project
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.pages import Files


def openapi() -> str:
    """Return the OpenAPI document as JSON, the same for every version.

    The front end is built together with its server.
    """
    api = make_api(Project(Path(".")), Keys(b""), Rules(""), Files("", is_built=False))
    document = api.openapi()
    document["info"]["version"] = "0"
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
