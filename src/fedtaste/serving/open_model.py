"""OpenModel: a trained model in a run folder or a fitted model's folder, with which people are personalised and scored.

Everything that recommends from a folder goes through here: `fedtaste recommend`, `similar`, `export`, and Recommender.
People are personalised as in evaluation (tasks/serve.py), on this machine; nothing is sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params, People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.item_features import item_features
from fedtaste.data.sampling import Ragged
from fedtaste.data.sources import load
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.run import State, begin
from fedtaste.engine.store import Store
from fedtaste.errors import DataError, RunError, SettingError
from fedtaste.evaluation.scoring import CELLS, Personalised
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.plan import Plan, plan, with_scaled_values
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.experiment.settings import Settings, with_method_settings
from fedtaste.experiment.stored_interactions import INTERACTIONS, load_interactions
from fedtaste.experiment.train import make_task
from fedtaste.federation import Federation, separate_devices
from fedtaste.kernels.top_items import top_items
from fedtaste.methods.new_items import fill_new_items, has_item_vectors
from fedtaste.params import unnest
from fedtaste.serving.rebuild_parts import RebuildParts
from fedtaste.serving.titles import Titles
from fedtaste.tasks.base import Facts
from fedtaste.tasks.ranking import Ranking
from fedtaste.tasks.ratings import Ratings
from fedtaste.tasks.serve import MOST_PASSES, serve

BLOCK = 4096  # people who are personalised at once


class Catalogue(TypedDict):
    """items.json of a folder, [m] each; without genres the list is empty."""

    names: list[str]
    titles: list[str]
    genres: list[str]
    counts: list[int]


class TopItems(NamedTuple):
    """The best items of some people."""

    items: NDArray[np.int32]  # [people, n], best first; -1 where fewer are left
    scores: NDArray[np.floating]  # of these items


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A finished folder with its settings, result, facts, catalogue and shared parameters."""

    folder: RunFolder
    settings: Settings
    result: RunResult | FitResult
    facts: Facts
    items: Catalogue
    cache: Path | None = None  # of fetched data sets

    @staticmethod
    def open(path: Path, cache: Path | None = None) -> OpenModel:
        """Read a folder; refuse tasks that have no items to recommend."""
        folder = RunFolder.open(path)
        result = folder.fit_result() if folder.kind == "fit" else folder.result()
        settings, facts = folder.settings(), folder.facts()
        if facts.kind not in ("ranking", "ratings"):
            raise SettingError(f"{path} is a run on {facts.kind}; there are no items to recommend.")
        items = cast(Catalogue, folder.items(facts.items))
        model = OpenModel(folder, settings, result, facts, items, cache)
        changed = folder.changed_settings(model.plan(facts.timed).settings)
        if known := {name: value for name, value in changed.items() if value is not None}:
            model = replace(model, settings=with_method_settings(settings, known))  # defaults of another version
        folder.require_same_plan(model.plan(facts.timed).settings)
        return model

    @cached_property
    def titles(self) -> Titles:
        return Titles(self.items["names"], self.items["titles"])

    @cached_property
    def _plans(self) -> dict[bool, Plan]:
        return {}

    def plan(self, timed: bool) -> Plan:
        """The plan for histories with or without an order in time: without one, recent items do not count for more."""
        if timed not in self._plans:
            facts = replace(self.facts, timed=timed)
            facts = facts.described(self.items["titles"], self.items.get("genres") or [])
            self._plans[timed] = plan(self.settings, facts, elsewhere=self.folder.federated)
        return self._plans[timed]

    @property
    def lasting_settings(self) -> Settings:
        """The settings with the values that the size of the data chose, for a model that continues this one."""
        return with_scaled_values(self.settings, self.plan(self.facts.timed))

    @cached_property
    def start(self) -> tuple[Params, Params]:
        """(shared parameters, the private ones that a new person starts from)."""
        current = self.plan(self.facts.timed)
        fresh = begin(current.method, current.model, self.devices(Histories.empty(1), False), current.seed)
        return self._with_new_items(self.folder.model(fresh.shared)), fresh.private.initial

    def _with_new_items(self, shared: Params) -> Params:
        """The shared parameters with vectors from features for items that nobody has taken. A private model does not
        know which these are."""
        known = np.array(self.items["counts"]) > 0
        vectors = has_item_vectors(shared) and shared["item"].shape[1] > 1
        if known.all() or not known.any() or not vectors or self.facts.kind != "ranking":
            return shared
        features = item_features(self.items["titles"], self.items.get("genres") or (), words=True)
        if features is None:
            return shared
        filled = fill_new_items(shared, known, features, self.settings.new_item_ridge)
        return filled | ({"gram": filled["item"].T @ filled["item"]} if "gram" in shared else {})

    @property
    def shared(self) -> Params:
        return self.start[0]

    @property
    def passes(self) -> int:
        """How often a newcomer's device runs the client before it is served."""
        rounds = self.result.total_rounds if isinstance(self.result, FitResult) else self.result.rounds
        return max(1, min(rounds, MOST_PASSES))

    @cached_property
    def rebuild_parts(self) -> RebuildParts | None:
        """The recipe and tables of the method; None where it has no recipe with these settings."""
        current = self.plan(timed=True)
        if current.method.recipe is None:
            return None
        shared, initial = self.start
        params = (current.method.tables(shared) if current.method.tables else shared) | initial
        arrays = {name: value.numpy().astype(np.float32) for name, value in params.items()}
        if not all(np.isfinite(value).all() for value in arrays.values()):
            raise RunError(f"{self.folder.path} holds numbers that are not finite. Use a model that has not diverged.")
        ratings = current.model.kind == "rating_factorization"
        offset = arrays["item_bias"] + arrays["mean"] if ratings else arrays.get("offset")
        drawn = self.facts.kind == "ranking" and current.method.examples == "samples"
        sequence = current.method.recipe.sequence
        if sequence and "trail" in arrays:
            sequence = replace(sequence, alpha=float(arrays["alpha"]), eps=float(arrays["eps"]))
        user: list[float] = arrays.get("start.user", arrays.get("user", np.zeros(0))).tolist()
        recipe = replace(
            current.method.recipe,
            examples=current.method.examples,
            batch=current.sampling.batch,
            seed=str(current.seed % 2**64),
            negatives=current.sampling.negatives if drawn else 0,
            rounds=self.passes if initial else 1,
            start=(*user, float(arrays["bias"])) if "bias" in arrays else tuple(user),
            sequence=sequence,
        )
        network = {name: arrays[f"network.{name}"] for name in unnest("network", params)}
        return RebuildParts(recipe, arrays["item"], offset, ratings or "bias" in arrays, arrays.get("trail"), network)

    def newcomer_store(self) -> Store:
        """The private parameters that a new person starts from; nobody has any in it."""
        return Store.fresh(self.start[1], 0, self.plan(self.facts.timed).method.rows)

    def trained_state(self) -> State:
        """The state after training, with everybody's private parameters."""
        current = self.plan(self.facts.timed)
        devices = self.devices(Histories.empty(len(self.data.people)), self.facts.timed)
        return self.folder.final(begin(current.method, current.model, devices, current.seed))

    # People of the data

    @property
    def has_people(self) -> bool:
        """Whether the model was saved with people, or their data can be read again."""
        return self.folder.kind == "run" or (self.folder.path / INTERACTIONS).exists()

    @cached_property
    def data(self) -> Interactions:
        """Who took what: stored with a fitted model, and read from its source again for an evaluated run."""
        stored = self.folder.path / INTERACTIONS
        if stored.exists():
            return load_interactions(stored, cast("dict[str, object]", self.items))
        if self.folder.kind == "fit":
            raise DataError(
                f"{self.folder.path} was saved without people. Say what a person likes (recommend_for, --likes), or "
                "save the model with people=True."
            )
        data = self._source
        assert isinstance(data, Interactions | UserSplit)
        if self.start[1]:  # private parameters are numbered by the people of the data
            self.folder.require_same_data(data)
        return self._recoded(data.table)

    @cached_property
    def _source(self) -> Data:
        """The data of an evaluated run, read from their source again."""
        settings = self.settings
        return load(settings.data, seed=settings.seed, cache=self.cache, options=settings.read_options)

    def _recoded(self, table: Interactions) -> Interactions:
        """The table with the model's numbers of items. The source may have grown since: what the model does not know
        is left out."""
        if table.items == tuple(self.items["names"]):
            return table
        number = np.array([self.titles.numbers.get(name, -1) for name in table.items], np.int32)
        known = replace(table, item=number[table.item]).rows(number[table.item] >= 0)
        return replace(known, items=tuple(self.items["names"]), titles=tuple(self.items["titles"]), genres=())

    @cached_property
    def histories(self) -> Histories:
        """Everybody's history."""
        return self.data.histories(self.settings.seed)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every person by name."""
        return {name: number for number, name in enumerate(self.data.people)}

    def person(self, name: str) -> int:
        """The number of a person; an unknown name is refused with a similar one."""
        if name not in self.numbers:
            people = self.data.people
            close = difflib.get_close_matches(name, people, n=1)
            hint = f'Did you mean "{close[0]}"?' if close else f'Names run from "{people[0]}" to "{people[-1]}".'
            raise DataError(f'"{name}" is not a person of {self.data.name}. {hint}')
        return self.numbers[name]

    @cached_property
    def _store(self) -> Store:
        """Everybody's private parameters."""
        if not (self.folder.path / "final.safetensors").exists() or self.folder.federated:
            where = "on their nodes" if self.folder.federated else f"not in {self.folder.path}"
            raise SettingError(
                f"The private parameters that {self.settings.method} learnt for people are {where}. Say what a person "
                "likes (--likes, recommend_for)."
            )
        return self.trained_state().private

    @cached_property
    def _untrained(self) -> People:
        """People of an evaluated run who took no part in its training."""
        if self.folder.kind == "fit":
            return np.zeros(0, np.int64)
        task = make_task(self.settings, self._source)
        assert isinstance(task, Ranking | Ratings)
        return task.left_out

    # Scores

    def devices(self, histories: Histories, timed: bool) -> Federation:
        """The devices of people who are served, with these histories."""
        sampling, ranking = self.plan(timed).sampling, self.facts.kind == "ranking"
        values = np.ones(len(histories), np.float32) if ranking else histories.values
        return separate_devices(
            replace(histories, values=values), self.facts.items, negatives=sampling.negatives if ranking else 0,
            batch=sampling.batch, seed=self.settings.seed,
        )  # fmt: skip

    def scores(
        self, histories: Histories, *, timed: bool, members: People | None = None
    ) -> Iterator[tuple[People, NDArray[np.floating]]]:
        """Yields (places, scores of the whole catalogue [places, m]) of people with these histories. `members` are
        their numbers, where they are people of the data with private parameters of their own."""
        current = self.plan(timed)
        if current.method.fast.users is not None:
            yield from self._scores_by_vectors(histories, current)
            return
        everybody, private = np.arange(histories.people), bool(self.start[1])
        trained = np.zeros(len(everybody), bool)
        if members is not None and private and not current.method.pooled:
            trained = ~np.isin(members, self._untrained)
        devices, catalogue = self.devices(histories, timed), torch.arange(self.facts.items)
        for begins in range(0, len(everybody), BLOCK):
            block = everybody[begins : begins + BLOCK]
            for kind in (True, False):
                people = block[trained[block] == kind]
                if not len(people):
                    continue
                store = self._store if kind else self.newcomer_store()
                parts = serve(current.method, self.shared, store, devices, people, None if kind else self.passes)
                numbers = cast(People, members)[people] if kind else parts[1]
                ready = Personalised(current.method, current.model, self.shared, parts[0], numbers, parts[2])
                for places, scores in ready.scores(catalogue):
                    yield people[places], scores.numpy()

    def _scores_by_vectors(self, histories: Histories, current: Plan) -> Iterator[tuple[People, NDArray[np.floating]]]:
        """Scores as products of everybody's vectors with the features of the items, in double precision: the last bits
        then hardly depend on how many people are scored at once."""
        assert current.method.fast.users is not None and current.model.design is not None
        features, offset = current.model.design(self.shared, torch.arange(self.facts.items))
        table, offsets = features.double().numpy().T, offset.double().numpy()
        everybody = np.arange(histories.people)
        for part in np.array_split(everybody, max(1, -(-len(everybody) * self.facts.items // CELLS))):
            own = histories.take(part)
            values = np.ones(len(own), np.float32) if self.facts.kind == "ranking" else own.values
            users = current.method.fast.users(self.shared, Ragged(own.starts, own.items, values))
            yield part, users.astype(np.float64) @ table + offsets

    def top(
        self, histories: Histories, n: int, *, timed: bool, members: People | None = None,
        allowed: NDArray[np.bool_] | None = None, repeat: bool = False,
    ) -> TopItems:  # fmt: skip
        """The n best items of people with these histories, among the `allowed` ones [m]. Items of the history, and
        items with the same title, are left out unless `repeat`."""
        n = min(n, self.facts.items)
        best = np.full((histories.people, n), -1, np.int32)
        values = np.full((histories.people, n), -np.inf)
        allowed = np.ones(self.facts.items, bool) if allowed is None else allowed
        for places, scores in self.scores(histories, timed=timed, members=members):
            own = Histories.empty(len(places)) if repeat else histories.take(places)
            best[places], values[places] = top_items(scores, own.starts, own.items, allowed, self.titles.groups, n)
        return TopItems(best, values)
