"""`fedtaste similar`: the items that are most similar to one item."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedtaste.cli.options import SimilarOptions
from fedtaste.cli.output import emit, out
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.experiment.folder import RunFolder
from fedtaste.recommender import Recommender


def similar(options: SimilarOptions) -> None:
    """Print the items whose vectors are most similar to one item's."""
    if options.method is not None:
        allow_method_of(RunFolder.open(options.path), options.method)
    answer = Recommender.load(options.path).similar_items(options.item, options.n)
    if options.as_json:
        emit(answer.dump())
        return
    table = Table("", "title", "cosine", title=Text(f"Similar to {answer.title}"), title_justify="left", box=None)
    for place, item in enumerate(answer.items, 1):
        table.add_row(str(place), Text(item.title), f"{item.score:.3f}")
    out.print(table)
