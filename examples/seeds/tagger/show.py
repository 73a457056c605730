"""Build the plugins and the pipes of tagger.toml, enter and leave the plugins, count what comes out
of the pipes."""

from pathlib import Path

from assay.build import Context, as_plugin, entered, instantiate
from assay.config import get_at, load
from assay.engine.data.stream_loader import StreamLoader

config = load(Path(__file__).parent / "tagger.toml")
plugins = instantiate(get_at(config.root, ("plugins",)))
source = instantiate(get_at(config.root, ("data", "train", "source")))

entering = entered([as_plugin(f"plugins[{i}]", plugin) for i, plugin in enumerate(plugins)])
with Context().use(), entering:
    seen = {}
    for workers in (0, 3):
        batches = list(StreamLoader(source, workers=workers))
        seen[workers] = sorted(row.tolist() for inputs, targets in batches for row in inputs)
        print(f"{workers} workers: batches of", *(len(targets) for inputs, targets in batches))
    print(len(seen[0]), "samples,", "the same" if seen[0] == seen[3] else "others")
