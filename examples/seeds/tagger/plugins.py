"""Stand-ins for the plugins that alchemy brings along: each says when it is entered and left, and
what it was given."""

from assay.plugins import TensorBoard


class Plugin:
    def __init__(self, **given):
        self.given = given

    def __enter__(self):
        print("enter", type(self).__name__, *self.given.values())

    def __exit__(self, *error):
        print("leave", type(self).__name__)


class BasicSetup(Plugin):
    def __init__(self):
        super().__init__()


class FileLogger(Plugin):
    def __init__(self, log_dir, subdirs):
        super().__init__(log_dir=log_dir, subdirs=subdirs)


class Backup(Plugin):
    def __init__(self, paths):
        super().__init__(paths=paths)


class TensorboardLogger(TensorBoard):
    """Writes event files into `board/` of the record, as the one of assay does; and says so."""

    def __enter__(self):
        print("enter", type(self).__name__)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        print("leave", type(self).__name__)


class Seeding(Plugin):
    def __init__(self, seed, use_deterministic_algorithms):
        super().__init__(seed=seed, use_deterministic_algorithms=use_deterministic_algorithms)


class DisplayRunningInfo(Plugin):
    def __init__(self):
        super().__init__()
