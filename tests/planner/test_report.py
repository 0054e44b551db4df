"""Reports of a plan: golden text, reasons, a page without network or scripts, a picture."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hedgerow.core.errors import StateError, UnknownNameError
from hedgerow.planner import Plan, Topology, plan
from hedgerow.planner.explain import reasons
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.planner.problem.topology import GIB
from hedgerow.planner.report import report_text
from hedgerow.planner.report_page import page

from .sample import CARD, cpu_plan, sample, table

GOLDEN = Path(__file__).parent / "golden_plan.txt"
EXPLAINED = Path(__file__).parent / "golden_explain.txt"


def test_the_text_is_the_golden_one() -> None:
    assert sample().table() + "\n" == GOLDEN.read_text()


def test_the_explanation_is_the_golden_one() -> None:
    assert sample().explain("item_id") + "\n" == EXPLAINED.read_text()


def test_every_option_of_every_table_has_a_reason() -> None:
    found = sample()
    for name in found.names:
        lines = reasons(found, name)
        assert [line.choice.label for line in lines if line.why == "chosen"] == [
            found.of(name).variant.label
        ]
        assert all(line.why for line in lines)
        assert len(lines) == 24


def test_prices_in_reasons_are_those_of_the_plan() -> None:
    (line,) = [r for r in reasons(sample(), "item_hist") if r.choice.label == "CACHING@0.6"]
    saved = sample().of("item_hist").hbm_bytes - line.choice.hbm
    worth = saved / GIB * sample().solver.hbm_ms_per_gib
    slower = line.choice.ms - sample().of("item_hist").forecast.ms
    assert f"worth {worth:.3g} ms" in line.why
    assert f"takes {slower:.3g} ms more" in line.why


def test_what_cannot_be_explained() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean"):
        sample().explain("user_ids")
    first, *others = sample().tables
    edited = replace(
        sample(), tables=(replace(first, variant=Variant(Mode.CACHING, "0.33")), *others)
    )
    with pytest.raises(StateError, match="changed by hand"):
        edited.explain(first.name)


def test_small_sizes_are_told_in_mib() -> None:
    text = cpu_plan().table()
    assert "host MiB" in text
    assert "GiB HBM" not in text
    assert "Ranks" not in text


def test_ranks_are_shown_where_they_differ() -> None:
    tables = [table("a", 10**6, 16), table("b", 10**6, 16)]
    base = plan(tables, Topology(world=4, ddr_per_machine=GIB, device="cpu"), CARD)
    a, b = base.tables
    whole = replace(base, tables=(replace(a, sharding="table_wise", rank=2), b))
    assert whole.ddr_bytes == a.ddr_bytes + b.ddr_bytes
    text = report_text(whole)
    assert "Ranks (the busiest has" in text
    assert re.search(r"^ +2  HBM .*█.* ms$", text, re.MULTILINE)
    assert "rank 2" in text


class _Page(HTMLParser):
    """Collects tags, attributes and text, and whether tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "data", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def _read(plan: Plan, folder: Path) -> _Page:
    path = folder / "plan.html"
    plan.html(path)
    assert [p.name for p in folder.iterdir()] == ["plan.html"]
    found = _Page()
    text = path.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    found.feed(text)
    assert found.open == []
    return found


def test_the_page_needs_no_network_and_no_scripts(tmp_path: Path) -> None:
    found = _read(sample(), tmp_path)
    assert found.links == []
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(found.tags)
    assert found.tags.count("svg") == 3
    assert found.tags.count("details") == 12
    text = " ".join(found.words)
    for name in sample().names:
        assert name in text
    assert sample().fingerprint in text
    assert "proven optimal" in text


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    name = '</pre><script>alert("x")</script>&'
    hostile = plan(
        [table(name, 10**6, 16)], Topology(world=2, hbm_per_device=GIB, ddr_per_machine=GIB), CARD
    )
    found = _read(hostile, tmp_path)
    assert "script" not in found.tags
    assert name in "".join(found.words)


def test_a_page_of_a_world_without_cards(tmp_path: Path) -> None:
    found = _read(cpu_plan(), tmp_path)
    assert found.tags.count("svg") == 2
    empty = plan([], Topology(world=1, ddr_per_machine=GIB, device="cpu"), CARD)
    assert "Placement plan" in page(empty, [])


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    for number, one in enumerate((sample(), cpu_plan())):
        path = tmp_path / f"{number}.png"
        one.png(path)
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert path.stat().st_size > 10_000
