"""Asked for -> objects: targets are found, calls checked and made, and everything made lives in one context per run."""

from assay.build.builder import build, instantiate
from assay.build.context import ROLES, Context, ContextError, current
from assay.build.isolation import user_code
from assay.build.register import inject, provides
from assay.build.signatures import check_signatures
from assay.build.targets import TargetError, resolve

__all__ = [
    "ROLES",
    "Context",
    "ContextError",
    "TargetError",
    "build",
    "check_signatures",
    "current",
    "inject",
    "instantiate",
    "provides",
    "resolve",
    "user_code",
]
