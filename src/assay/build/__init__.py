"""Construction of objects from a config, and the context of a run that holds them.

1. `targets`, `registry`   find the class or function that a config names, if it is allowed
2. `parameters`, `signatures`, `adapters`   check each call before anything is built
3. `builder`   makes the calls
4. `context`, `graph`, `marks`   dependency injection: by annotation, and by role
"""

from assay.build.builder import build, instantiate
from assay.build.context import ROLES, Context, current
from assay.build.context_entries import Promise
from assay.build.context_errors import ContextError
from assay.build.criterion_args import check_criteria, check_criterion_args
from assay.build.graph import check_graph, plan_context, plugin_paths, promise_run, promised_types
from assay.build.marks import configurable, inject, provides
from assay.build.materials import check_materials
from assay.build.plugins import Plugin, as_plugin, call_record_end, entered
from assay.build.registry import RegistryError, register
from assay.build.signatures import Examined, check_signatures, examine
from assay.build.sources import check_sources, loader_keys
from assay.build.targets import TargetError, resolve
from assay.config.isolation import user_code

__all__ = [
    "ROLES",
    "Context",
    "ContextError",
    "Examined",
    "Plugin",
    "Promise",
    "RegistryError",
    "TargetError",
    "as_plugin",
    "build",
    "call_record_end",
    "check_criteria",
    "check_criterion_args",
    "check_graph",
    "check_materials",
    "check_signatures",
    "check_sources",
    "configurable",
    "current",
    "entered",
    "examine",
    "inject",
    "instantiate",
    "loader_keys",
    "plan_context",
    "plugin_paths",
    "promise_run",
    "promised_types",
    "provides",
    "register",
    "resolve",
    "user_code",
]


def __dir__() -> list[str]:
    return sorted(__all__)
