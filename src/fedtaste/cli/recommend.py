"""`fedtaste recommend`: the best items for one person, from the model of a run folder."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedtaste.cli.options import RecommendOptions
from fedtaste.cli.output import cache, emit, out
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.experiment.folder import RunFolder
from fedtaste.serving.recommend import recommend as recommend_items


def recommend(options: RecommendOptions) -> None:
    """Recommend items to a person of the data, or to a new one."""
    allow_method_of(RunFolder.open(options.path), options.method)
    answer = recommend_items(
        options.path, likes=list(options.likes), person=options.person, file=options.file, n=options.n, cache=cache()
    )
    if options.as_json:
        emit(answer.dump())
        return
    history = answer.history
    titles = history if len(history) <= 5 else [*history[-5:], f"{len(history) - 5} more"]
    because = Text(f"Because of {', '.join(titles)}")  # a Text, as a title may hold [brackets]
    table = Table("", "title", "score", title=because, title_justify="left", box=None)
    for place, item in enumerate(answer.items, 1):
        table.add_row(str(place), Text(item.title), f"{item.score:.3f}")
    out.print(table)
