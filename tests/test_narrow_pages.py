"""Reports on phones and on desks: no page scrolls sideways, and no heading breaks inside a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtaste.audit.page import write_audit
from fedtaste.audit.run import AuditScope, audit
from fedtaste.data.sources import load
from fedtaste.experiment.result import Difference, SeedsOfMethod, SeedSpread, SeedSummary
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.experiment.tune_result import TuneCost, TuneResult, TuneTrial
from fedtaste.report.differences import Study
from fedtaste.report.html import write_report
from fedtaste.report.tables import withhold
from fedtaste.report.trade_off import trade_off
from fedtaste.report.tuning import write_tuning_report
from support.pages import BROKEN_WORDS
from support.reports import changed, ranking

METHODS = [("fedals", 0.74), ("fedrecon", 0.69), ("pfedrec", 0.57), ("centralised", 0.75), ("popularity", 0.4)]
WIDTHS = (320, 390, 1280)


def write_run(folder: Path) -> Path:
    private = changed(ranking(), data="a-shop_log_with_a_name_that_is_long_2026", notes=["Ties are broken by a hash."])
    return write_report([private], folder)


def write_comparison(folder: Path) -> Path:
    return write_report([ranking(name, level) for name, level in METHODS], folder)


def write_trade_off(folder: Path) -> Path:
    results = [ranking("fedals", 0.7 + at / 100, up=10**at, settings={"lam": 10**-at}) for at in range(1, 7)]
    return write_report(results, folder, tradeoff=trade_off(results))


def write_seeds(folder: Path) -> Path:
    results = [ranking("fedals", 0.7, settings={"lam": lam}) for lam in (0.1, 0.2)] + [ranking("fedtrail", 0.72)]
    tradeoff = trade_off(results)
    names = [name for i, name in enumerate(tradeoff.names) if i not in tradeoff.withheld]
    spread = SeedSpread(mean=0.7, sd=0.01, values=(0.69, 0.71))
    key = tradeoff.quality.key
    methods = tuple(SeedsOfMethod(name=name, runs=(), metrics={key: spread}) for name in names)
    pair = Difference(
        first=names[0], second=names[1], metric=key, difference=-0.0123, interval=(-0.02, -0.004), p=0.0001,
        p_holm=0.0001, people=849, by_seed=(-0.01, -0.015),
    )  # fmt: skip
    study = Study(key, names[0], SeedSummary(seeds=(0, 1), methods=methods), (pair,))
    return write_report(withhold(results, tradeoff.withheld), folder, tradeoff=tradeoff, study=study)


def write_small_audit(folder: Path) -> Path:
    settings = Settings(data="synthetic:60x80x900", method="fedmf", rounds=2, wire="clip=1.0,noise=1000.0,secure=10")
    data = load(settings.data)
    result = audit(settings, make_task(settings, data), data.titles, AuditScope(people=30))
    return write_audit(result.model_copy(update={"report": ""}), folder)


def write_tuning(folder: Path) -> Path:
    names = ("alpha0", "from_power", "k", "lam", "negatives", "recency", "recon_passes", "server_lr", "window")
    trials = tuple(
        TuneTrial(
            number=n, settings={name: 0.0123 * (n + at) for at, name in enumerate(names)} if n else {}, best_round=3,
            state="pruned" if n % 5 == 4 else "complete", valid=0.3 + 0.01 * n, rounds=8, up_bytes=10**9 * n,
            down_bytes=10**8, seconds=2.5,
        )
        for n in range(12)
    )  # fmt: skip
    cost = TuneCost(trials=12, rounds=96, up_bytes=6_600_000_000_000, down_bytes=1_200_000_000, seconds=30.0)
    result = TuneResult(
        data="a-shop_log_with_a_name_that_is_long_2026", task="ranking", method="fedrecon", seed=0, metric="ndcg@10",
        better="higher", space=dict.fromkeys(names, "0.000123..0.0123 (log)"), requested=12, trials=trials, best=11,
        stopped="all 12 trials were run", defaults=dict.fromkeys(names, 0.5), settings=trials[11].settings, valid=0.41,
        valid_of_defaults=0.3, importances=dict.fromkeys(names, 1 / 9), cost=cost, notes=("A note.",),
        study="/home/somebody/runs/a-shop_log_with_a_name_that_is_long_2026-fedrecon-tune-1", config="run.toml",
    )  # fmt: skip
    return write_tuning_report(result, folder)


REPORTS = {
    "run": write_run, "comparison": write_comparison, "trade-off": write_trade_off, "seeds": write_seeds,
    "audit": write_small_audit, "tuning": write_tuning,
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_fits_every_width(chromium, tmp_path, report):
    page = chromium.new_page()
    page.goto(REPORTS[report](tmp_path).as_uri())
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.querySelectorAll('main *').length") > 20
        wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert (wide <= room, room) == (True, width), f"{wide} px of {room}"
        assert page.evaluate(BROKEN_WORDS) == []
    page.close()
