"""What the README of flame shows of dependency injection.

Other than there: the names come from assay. `provides` stands for `@singleton @provider`, a module
needs no base class, and `Context` is what is called `Injector` there.
"""

from typing import NewType

from assay.build import Context, inject, provides

Config = NewType("Config", dict)
Args = NewType("Args", dict)


class MyModule:
    @provides
    def configure_args(self) -> Args:
        args = {"batch_size": 16}
        return args

    @provides
    def configure_config(self, args: Args) -> Config:
        batch_size = args["batch_size"]
        cfg = {"train_batch_size": batch_size, "val_batch_size": batch_size}
        return cfg


@inject
class A:
    def __init__(self, cfg: Config):
        self.cfg = cfg


container = Context(MyModule)
cfg = container.get(Config)

a = container.get(A)

print(a.cfg)
