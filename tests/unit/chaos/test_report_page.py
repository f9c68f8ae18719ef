"""A run's report: everything is in it, nothing is loaded, and nobody's text does any harm."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from sample_run import sample_run, violated_run

from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.report.index import index
from resilient_ps.chaos.report.library import check_installed, drawing_script
from resilient_ps.chaos.report.page import page
from resilient_ps.chaos.result import Counts, Judged, RunResult
from resilient_ps.errors import BadInput

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!-- \u2028"
LOADING = {"src", "href", "data", "action", "poster", "srcset", "background", "formaction"}
MAX_OWN_BYTES = 300_000  # of a run of a minute, beside plotly
MAX_BYTES = 8_000_000


class Seen(HTMLParser):
    """The tags, attributes and texts of a page as a browser's parser splits them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._open: tuple[str, str] | None = None
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        identity = dict(attrs).get("id") or f"{len(self.scripts)}"
        self._open = (tag, identity) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            self.text += data
        elif self._open[0] == "script":
            self.scripts[self._open[1]] = self.scripts.get(self._open[1], "") + data

    def ids(self) -> set[str]:
        return {value for _, name, value in self.attributes if name == "id"}


@pytest.fixture(scope="module")
def held() -> Seen:
    return Seen(page(sample_run()))


def test_the_verdict_comes_first_as_a_word_and_a_colour(held: Seen) -> None:
    text = " ".join(held.text.split())
    assert text.index("Held") < text.index("All 7 checks passed") < text.index("Timeline")
    assert ("body", "class", "held") in held.attributes
    broken = Seen(page(violated_run()))
    assert ("body", "class", "violated") in broken.attributes
    assert "2 of 7 checks failed: exactly once, views never go back." in broken.text
    assert "key 977 of table oracle/hot" in broken.text


def test_an_unknown_verdict_says_why() -> None:
    run = replace(sample_run(), verdict="unknown", why="etcd could not be started")
    assert "etcd could not be started" in Seen(page(run)).text
    undecided = (Judged("clocks are whole", "unknown", ("no rank ticked",)),)
    text = Seen(page(replace(run, why="", judged=undecided))).text
    assert "Not decided: clocks are whole." in text
    assert "no rank ticked" in text


def test_every_section_is_there(held: Seen) -> None:
    sections = {"checks", "timeline", "recovery", "again", "settings", "versions", "logs"}
    panels = {"faults", "throughput", "latency", "leadership", "clocks"}
    assert sections | panels | {"faults-listed"} <= held.ids()
    run = sample_run()
    text = " ".join(held.text.split())
    assert run.command in text
    assert f"seed {run.seed}" in text
    for fault in run.faults:
        assert fault.planned.kind in text
        assert (fault.skipped or fault.evidence) in text
    for judged in run.judged:
        assert judged.checker in text
    for figure in ("48,213", "47,950", "700 MiB", "3.5.16", "seaweedfs"):
        assert figure in text
    links = {value for tag, name, value in held.attributes if (tag, name) == ("a", "href")}
    assert links == set(run.logs.values())


def test_nothing_is_loaded_from_elsewhere(held: Seen) -> None:
    for seen in (held, Seen(index([(sample_run(), "seed-7.html")]))):
        loading = [(tag, value) for tag, name, value in seen.attributes if name in LOADING]
        elsewhere = [v for _, v in loading if re.match(r"[a-z][a-z0-9+.-]*:|//", v, re.IGNORECASE)]
        assert elsewhere == ["data:,"]  # the icon: none
        assert {tag for tag, _ in loading} == {"a", "link"}
        (policy,) = [v for _, name, v in seen.attributes if name == "content" and "default" in v]
        assert "default-src 'none'" in policy
        assert "http" not in policy


def test_the_style_loads_nothing() -> None:
    source = page(sample_run())
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def hostile_run() -> RunResult:
    run = sample_run(faults=2)
    planned = Planned(0, 1.0, HOSTILE, (HOSTILE,), 2.0)
    return replace(
        run,
        command=HOSTILE,
        workload=HOSTILE,
        verdict="unknown",
        why=HOSTILE,
        began=HOSTILE,
        judged=(Judged(HOSTILE, "false", (HOSTILE,)),),
        faults=(
            Struck(planned, (HOSTILE,), 1.0, 3.0, HOSTILE),
            Struck(planned, skipped=HOSTILE),
        ),
        reigns=tuple(replace(reign, server=HOSTILE, epoch=HOSTILE) for reign in run.reigns),
        settings={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        metrics={HOSTILE: 1.0},
        logs={HOSTILE: "javascript:alert(3)", "other": "//elsewhere.example/x"},
    )


def test_hostile_texts_are_only_texts(held: Seen) -> None:
    seen = Seen(page(hostile_run()))
    assert seen.tags.count("script") == held.tags.count("script")
    assert "img" not in seen.tags
    assert not [name for _, name, _ in seen.attributes if name.startswith("on")]
    links = [value for tag, name, value in seen.attributes if (tag, name) == ("a", "href")]
    assert links == ["javascript%3Aalert%283%29", ".//elsewhere.example/x"]
    assert json.loads(seen.scripts["result"])["command"] == HOSTILE


def hover_texts(seen: Seen) -> Iterator[str]:
    for panel in json.loads(seen.scripts["drawings"]):
        for trace in panel["data"]:
            yield from trace.get("hovertext", [])
            yield from trace.get("text", [])


def test_what_the_drawings_show_has_no_tags_but_our_own() -> None:
    texts = list(hover_texts(Seen(page(hostile_run()))))
    assert texts
    tags = {tag for text in texts for tag in re.findall(r"<[^>]*>", text)}
    assert tags <= {"<b>", "</b>", "<br>"}


def test_the_page_is_of_bounded_size() -> None:
    source = page(sample_run(seconds=300, faults=300, shards=32))
    assert len(source.encode()) < MAX_BYTES
    assert len(page(sample_run()).encode()) - len(drawing_script().encode()) < MAX_OWN_BYTES


def test_a_run_that_could_not_begin_has_a_report() -> None:
    empty = replace(
        sample_run(), verdict="unknown", why="no etcd was found", judged=(), faults=(), samples=(),
        reigns=(), outages=(), recovery=(), counts=Counts(), logs={}, settings={}, versions={},
        healed_s=0.0, command="",
    )  # fmt: skip
    seen = Seen(page(empty))
    assert "no etcd was found" in seen.text
    assert json.loads(seen.scripts["drawings"]) == []


def test_the_index_links_each_seed_and_says_what_is_wrong() -> None:
    runs = [(sample_run(1), "seed 1.html"), (violated_run(8), "seed-8.html")]
    seen = Seen(index(runs))
    links = [value for tag, name, value in seen.attributes if (tag, name) == ("a", "href")]
    assert links == ["seed%201.html", "seed-8.html"]
    assert ("body", "class", "violated") in seen.attributes
    assert "1 of 2 seeds held." in seen.text
    assert "2 of 7 checks failed" in seen.text
    assert ("body", "class", "held") in Seen(index(runs[:1])).attributes


@pytest.mark.parametrize("module", ["plotly.offline", "jinja2"])
def test_without_its_libraries_the_remedy_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_installed()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=re.escape('pip install "resilient-ps[chaos]"')):
        check_installed()
    with pytest.raises(BadInput, match=f"(?i)needs {module.partition('.')[0]}"):
        page(sample_run())
