"""Static files: the built front end and the login page, from a table made once, never by path."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass, field
from pathlib import Path

STATIC = Path(__file__).parent / "static"
LOGIN_FILES = Path(__file__).parent / "login"
PAGES = (
    "/",
    "/runs/{id}",
    "/compare",
    "/tables",
    "/tables/{name}",
    "/parameters",
    "/inbox",
    "/queue",
    "/projects",
)
"""Addresses of pages: each gets the same document, which shows what its address says."""

_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".map": "application/json",
}
_PACKED = (".js", ".css", ".svg", ".html")

_NOT_BUILT = """<!doctype html>
<html lang="en">
  <head><meta charset="utf-8" /><title>assay</title></head>
  <body>
    <h1>The page is not built.</h1>
    <p>This is a checkout without its front end. <code>./dev setup</code> builds it; an installed
    wheel has it.</p>
  </body>
</html>
"""


@dataclass(slots=True)
class StaticFile:
    """One file, plain and packed."""

    data: bytes
    content_type: str
    packed: bytes | None = None


@dataclass(slots=True)
class Files:
    """Everything that is served as a file, by its address."""

    index: str
    is_built: bool
    by_path: dict[str, StaticFile] = field(default_factory=dict)
    login: str = ""

    @classmethod
    def read(cls, static: Path = STATIC) -> Files:
        """Read the built front end; without one there is a page that says how to get it."""
        document = static / "index.html"
        is_built = document.is_file()
        files = cls(document.read_text(encoding="utf-8") if is_built else _NOT_BUILT, is_built)
        for path in sorted(static.rglob("*")) if is_built else ():
            if path.is_file() and not path.is_symlink() and path != document:
                files.by_path[f"/{path.relative_to(static).as_posix()}"] = _file(path)
        for name in ("login.js", "login.css"):
            files.by_path[f"/{name}"] = _file(LOGIN_FILES / name)
        files.login = (LOGIN_FILES / "login.html").read_text(encoding="utf-8")
        return files

    def document(self, path: str, nonce: str) -> bytes:
        """Return the page for an address, with its own nonce for styles."""
        text = self.index.replace("{base}", base_of(path)).replace("{nonce}", nonce)
        return text.encode()

    def login_page(self, path: str) -> bytes:
        return self.login.replace("{base}", base_of(path)).encode()


def base_of(path: str) -> str:
    """Return the relative path from an address to the root of the site, whatever a proxy prepends.

    >>> base_of("/"), base_of("/inbox"), base_of("/runs/kq3f7abc")
    ('./', './', '../')
    """
    return "../" * (path.count("/") - 1) or "./"


def _file(path: Path) -> StaticFile:
    data = path.read_bytes()
    kind = (
        _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    )
    content_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    packed = gzip.compress(data, 9, mtime=0) if path.suffix in _PACKED else None
    return StaticFile(data, content_type, packed)
