"""Targets that try to reach what a config may not call, with a folder of helping user code."""

from __future__ import annotations

import textwrap
from pathlib import Path

MODEL = """
    import builtins, functools, importlib, os, pickle, subprocess, sys, torch, torch.hub
    import json as Net2
    from collections import namedtuple
    from functools import lru_cache, partial, wraps
    from os import system
    from pickle import loads
    from subprocess import Popen
    from torch import load, nn
    from torch.nn import functional as F

    class Net(nn.Module):
        size = 3
        quick = property(lambda self: 1)

        def __init__(self, width=1):
            super().__init__()

        @classmethod
        def small(cls): return cls(1)

        @staticmethod
        def build(): return Net()

        class Inner: pass

        run = staticmethod(os.system)
        shell = os.system
        half = functools.partial(os.system, "true")

    class Child(subprocess.Popen): pass
    class Caller:
        def __call__(self): return 1

    Point = namedtuple("Point", "x y")
    def make(width): return Net(width)
    @lru_cache
    def cached(): return 1
    @torch.no_grad()
    def no_grad(): return 1
    @wraps(os.getcwd)
    def wrapping(): return 1
    small_net = partial(Net, 3)
    linear = partial(nn.Linear, bias=False)
    caller = Caller()

    sh = os.system
    run = partial(os.system, "true")
    twice = partial(partial(os.system), "true")
    bound = [].append
    instance = Net()
    instance_of_others = nn.Linear(1, 1)
    evaluate = eval
    number = 3
    here = os.path
    alias = torch.hub
    getter = functools.partial(getattr, os)
"""

REFUSED = [
    # Python itself
    "os.system",
    "os:system",
    "posix.system",
    "subprocess.run",
    "subprocess.Popen",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.open",
    "builtins:getattr",
    "eval",
    "print",
    "functools.partial",
    "functools.reduce",
    "operator.methodcaller",
    "operator.attrgetter",
    "operator.call",
    "runpy.run_path",
    "importlib.import_module",
    "pickle.loads",
    "marshal.loads",
    "ctypes.CDLL",
    "code.interact",
    "shutil.rmtree",
    "pathlib.Path",
    "socket.socket",
    "types.FunctionType",
    "sys.exit",
    "antigravity.geohash",
    "__main__.anything",
    "collections.OrderedDict",
    # Python itself, further
    "nt.system",
    "pdb.Pdb._getval",
    "pdb.run",
    "bdb.Bdb.run",
    "cProfile.run",
    "timeit.timeit",
    "trace.Trace",
    "doctest.testmod",
    "unittest.main",
    "webbrowser.open",
    "urllib.request.urlopen",
    "http.server.HTTPServer",
    "ftplib.FTP",
    "smtplib.SMTP",
    "multiprocessing.Process",
    "multiprocessing.util.spawnv_passfds",
    "concurrent.futures.ProcessPoolExecutor",
    "asyncio.create_subprocess_shell",
    "pty.spawn",
    "os.execv",
    "os.popen",
    "os.remove",
    "os.posix_spawn",
    "zipfile.ZipFile",
    "tarfile.open",
    "tempfile.mktemp",
    "sqlite3.connect",
    "shelve.open",
    "dbm.open",
    "copyreg.__newobj__",
    "imaplib.IMAP4_stream",
    "platform.popen",
    "inspect.getattr_static",
    "gc.get_objects",
    "weakref.finalize",
    "atexit.register",
    "signal.signal",
    "threading.Thread",
    "contextlib.ExitStack",
    "itertools.starmap",
    "builtins.map",
    "builtins.type",
    "builtins.compile",
    "ast.literal_eval",
    "json.loads",
    "logging.config.dictConfig",
    "logging.config.listen",
    "venv.create",
    "ensurepip.bootstrap",
    "site.addsitedir",
    "zipimport.zipimporter",
    "importlib.util.spec_from_file_location",
    "importlib.machinery.SourceFileLoader",
    "pkgutil.resolve_name",
    "pydoc.locate",
    "xml.sax.parse",
    # packages that are installed beside assay
    "numpy.load",
    "numpy.fromfile",
    "numpy.lib.npyio.load",
    "pydantic.ImportString",
    "pydantic.create_model",
    "click.launch",
    "click.edit",
    "psutil.Popen",
    "rich.console.Console",
    "safetensors.torch.load_file",
    "tomlkit.load",
    # torch's other parts
    "torch.load",
    "torch:load",
    "torch.save",
    "torch.compile",
    "torch.hub.load",
    "torch.hub:load",
    "torch.jit.load",
    "torch.os.system",
    "torch.tensor",
    "torch.Tensor",
    "torch.conv2d",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.serialization.load",
    "torch.package.PackageImporter",
    "torch.utils.cpp_extension.load",
    "torch.utils.model_zoo.load_url",
    "torch.distributed.init_process_group",
    # what is merely reached through an allowed part of torch
    "torch.nn.os.system",
    "torch.nn.functional.importlib.import_module",
    "torch.nn.functional.warnings.warn",
    "torch.nn.functional.handle_torch_function",
    "torch.nn.functional.boolean_dispatch",
    "torch.nn.functional.has_torch_function",
    "torch.nn.functional.torch.load",
    "torch.nn.functional.Tensor",
    "torch.nn.functional._verify_spatial_size",
    "torch.nn.init._no_grad_fill_",
    "torch.nn.init.Callable",
    "torch.nn.modules.module.functools.partial",
    "torch.nn.modules.module.OrderedDict",
    "torch.nn.modules.module.torch.load",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.Module.__init__",
    "torch.nn.Module.__class__",
    "torch.nn.Module.__subclasses__",
    "torch.nn.Module.load_state_dict",
    "torch.nn.modules.module._EnforceUnique",
    "torch.optim.Optimizer.step",
    "torch.optim.lr_scheduler.types.FunctionType",
    "torch.optim.lr_scheduler.partial",
    "torch.utils.data.dataloader.os.system",
    "torch.utils.data.dataloader.multiprocessing.Process",
    "torch.utils.data.dataloader.functools.partial",
    "torch.utils.data._utils.worker._worker_loop",
    "torch.utils.data.random_split",
    "torch.utils.data.datapipes.utils.decoder.basichandlers",
    "torch.utils.data.datapipes.utils.decoder.pickle.loads",
    # what a user module merely imports or passes on
    "model.os.system",
    "model.os.path.join",
    "model:os.system",
    "model.system",
    "model.Popen",
    "model.load",
    "model.loads",
    "model.partial",
    "model.wraps",
    "model.namedtuple",
    "model.builtins.eval",
    "model.sys.exit",
    "model.subprocess.run",
    "model.importlib.import_module",
    "model.torch.hub.load",
    "model.nn.Linear",
    "model.F.relu",
    "model.sh",
    "model.run",
    "model.twice",
    "model.bound",
    "model.evaluate",
    "model.getter",
    "model.here.join",
    "model.alias.load",
    "model.instance_of_others",
    "model.instance.eval",
    "model.Net2.loads",
    "model.number",
    "model.Net.size",
    "model.Net.quick",
    "model.Net.run",
    "model.Net.shell",
    "model.Net.half",
    "model.Net.mro",
    "model.Net.load_state_dict",
    "model.Net.__init__",
    "model.Net.__init__.__globals__",
    "model.Net.__subclasses__",
    "model.Net.forward.__globals__",
    "model.Child.communicate",
    "model.make.__code__",
    "model.__builtins__",
    "model.__loader__.load_module",
    "model",
    "pkg",
    # assay's own machinery: a config must not choose its own allow-list
    "assay.build.instantiate",
    "assay.build.targets.resolve",
    "assay.build.targets.importlib.import_module",
    "assay.config.loading",
    "assay.core.errors.AssayError",
    "assay.run",
    "assay.engine",
    "assay.engine.__init__",
    # no targets at all
    "",
    ".",
    "model.",
    ".model.Net",
    "model..Net",
    "model:Net:small",
    "model:",
    ":Net",
    "model.Net()",
    "model.Net\n",
    " model.Net",
    "model/../os.system",
    "model[0]",
    "lambda: 0",
    "3.4",
]


def write(folder: Path) -> None:
    """User code that passes other people's objects off as its own."""
    (folder / "model.py").write_text(textwrap.dedent(MODEL))
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("from pkg.nets import nets\n")
    (folder / "pkg" / "nets.py").write_text("class Net: pass\ndef nets(): pass\n")
