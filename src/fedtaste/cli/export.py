"""`fedtaste export`: write the static page of a run."""

from __future__ import annotations

from fedtaste.cli.options import ExportOptions
from fedtaste.cli.output import emit, put, say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.experiment.folder import RunFolder
from fedtaste.serving.export import export as export_run
from fedtaste.serving.model_card import public_source
from fedtaste.text import command_text


def export(options: ExportOptions) -> None:
    """Write a static folder with a page that recommends in the browser."""
    folder = RunFolder.open(options.path)
    allow_method_of(folder, options.method)
    manifest = export_run(options.path, options.to, float32=options.float32, log=lambda text: say(f"{text} ..."))
    size = sum(entry.bytes for entry in manifest.files.values())
    if options.as_json:
        facts = manifest.model_dump(mode="json", exclude={"recipe", "about"})
        emit({"bundle": str(options.to), "bytes": size, **facts})
        return
    table = f"{manifest.items:,} items as {manifest.precision}"
    put(f"{options.to}: {table}, {size / 1e6:.2f} MB in {len(manifest.files) + 3} files, each with its hash.")
    own = "The data are your own: make sure that you may publish what was learnt from them."
    put(f"Before you publish it: {manifest.about.licence[0] if public_source(folder.settings()) else own}")
    put(f"Look at it: {command_text('serve', options.to)}")
