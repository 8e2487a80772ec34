"""The page in a browser: every view, filters, links and keys; hostile text; live, long and broken logs; the export."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.viewed import HOSTILE, group_of, learned_of, step_event, viewing, write_run

from selfteach.loop.log import RunLog
from selfteach.model.tokenizer import Tokenizer
from selfteach.viewer.export import export_page
from selfteach.viewer.run_index import ViewerData

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytest.importorskip("uvicorn", reason="the package uvicorn is not installed; pip install 'selfteach[view]'")
pytest.importorskip("starlette", reason="the package starlette is not installed; pip install 'selfteach[view]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no chromium is installed (Debian: apt-get install chromium)", allow_module_level=True)
PATIENCE = 60_000  # milliseconds, on a machine with other work
LONG = "x" * 1_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any, letters: Tokenizer) -> Path:
    home = tmp_path_factory.mktemp("home") / "runs"
    for seed in range(3):
        write_run(home / f"grpo-{seed}", letters, steps=40, seed=seed)
    write_run(home / "other", letters, method="rloo", responses=("2 + 2 = 5", "5", "4", "4"))
    write_run(home / "hostile", letters, responses=(HOSTILE, LONG), prompt=HOSTILE, method=HOSTILE[:40], steps=1)
    many = write_run(home / "many", letters, steps=0)
    groups = [group_of(f"train/0/{g}/0", letters, f"train/{g}", "ask", ["yes", "no"] * 5) for g in range(1000)]
    log = RunLog(many / "log")
    log.rollouts(0, groups, learned_of(groups))
    log.event("step", **step_event(0))
    shutil.copy(Path(__file__).parents[2] / "selfteach" / "results" / "grpo.json", home / "claim.json")
    arm = {"accuracy": {"mean": 0.5, "interval": [0.4, 0.6], "per_seed": [0.4, 0.6]}, "curve": []}
    arm["curve"] = [{"step": s, "mean": s / 20, "low": s / 25, "high": s / 15} for s in (0, 10)]
    result = {
        "task": "chain_sum",
        "steps": 10,
        "seeds": [0, 1],
        "arms": {"grpo": arm, "rloo": {**arm, "against_first": arm["accuracy"]}},
    }
    (home / "compared.json").write_text(json.dumps(result))
    return home


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with viewing(folder) as address:
        yield address


class Page:
    """A page, with what went wrong in it and what it asked for."""

    def __init__(self, browser: Any, address: str, **how: Any) -> None:
        self.context = browser.new_context(**how)
        self.at = self.context.new_page()
        self.at.set_default_timeout(PATIENCE)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.at.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.at.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.at.on("request", lambda r: self.asked.append(r.url))
        self.at.goto(address)
        self.at.wait_for_selector("html[data-ready]")

    def show(self, link: str, sought: str) -> Any:
        """Follow a link of the page, and wait for what is sought."""
        self.at.evaluate("link => { location.hash = link }", link)
        self.until("document.documentElement.dataset.shown === location.hash")
        self.at.wait_for_selector(sought)
        return self.at

    def until(self, code: str, given: Any = None) -> None:
        """Wait until an expression holds; the browser's own waiting needs an eval, which the page's policy forbids."""
        code = (
            code if "=>" in code.partition("(")[0] or code.startswith(("async", "t =>", "() =>")) else f"() => {code}"
        )
        end = time.monotonic() + PATIENCE / 1000
        while not self.at.evaluate(code, given):
            assert time.monotonic() < end, code
            self.at.wait_for_timeout(50)

    def text(self, selector: str) -> str:
        return self.at.inner_text(selector)


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Page]:
    made = Page(browser, url)
    yield made
    made.context.close()
    assert not made.wrong


def test_curves_of_seeds_are_a_band_with_raw_lines_and_a_window(page: Page) -> None:
    at = page.show("curves?runs=runs/grpo-0|runs/grpo-1|runs/grpo-2&smooth=10", ".chart canvas")
    assert "token" not in at.url, "the token leaves the address"
    chart = at.locator(".chart", has=at.locator("h3", has_text="reward/mean")).first
    legend = chart.locator(".legend").inner_text()
    assert "95 % t interval over 3 seeds" in legend and "runs/grpo-1" in legend
    assert "means of the last 10 values" in page.text(".notes") and "Healthy: rises" in chart.inner_text()
    headings = page.text("main")
    for section in ("Reward", "Held-out evaluation", "Exploration", "Optimisation", "Speed", "time by phase"):
        assert section in headings
    assert "Not in this log" in headings and "clip share" in headings, "what is not logged is said"


def test_a_chart_is_zoomed_hovered_and_taken_away(page: Page) -> None:
    at = page.show("curves?runs=runs/grpo-0&metric=reward/mean", ".chart canvas")
    box = at.locator(".u-over").first.bounding_box()
    at.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.until("document.querySelector('.legend .x')?.textContent.startsWith('step ')")
    at.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    at.mouse.down()
    at.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    at.mouse.up()
    page.until("location.hash.includes('zoom=')")
    assert "step 1" in page.text(".zoomed")
    taken = {}
    for kind in ("PNG", "SVG", "CSV"):
        with at.expect_download() as download:
            at.locator(".chart .tools button", has_text=kind).first.dispatch_event("click")
        taken[kind] = Path(download.value.path()).read_bytes()
    assert taken["PNG"][:4] == b"\x89PNG" and len(taken["PNG"]) > 2000 and b"<path" in taken["SVG"]
    rows = taken["CSV"].decode().splitlines()
    assert rows[0] == "step,runs/grpo-0" and rows[1] == "0,0.3" and len(rows) == 41, "raw values, all of them"
    at.keyboard.press("Escape")
    page.until("!location.hash.includes('zoom=')")


def test_smoothing_looks_back_only(page: Page) -> None:
    code = "import('/static/charts.js').then(m => [m.trailingMean([1, 2, 3, null, 9], 2), m.bandOf([[1], [2], [3]])])"
    means, band = page.at.evaluate(code)
    assert means == [1, 1.5, 2.5, None, 6]
    assert band["mean"] == [2] and band["low"][0] == pytest.approx(2 - 4.303 / 3**0.5)


def test_rollouts_are_filtered_sorted_linked_and_read(page: Page) -> None:
    at = page.show("rollouts?run=runs/grpo-0&step=3", ".row")
    page.until("document.querySelector('.status').textContent.startsWith('8 of 8')")
    at.fill("input[aria-label=text]", "FOUR")
    at.keyboard.press("Enter")
    page.until("document.querySelector('.status').textContent.startsWith('2 of 8')")
    assert "q=FOUR" in at.url
    page.show("rollouts?run=runs/grpo-0&step=2-4&sort=-tokens&task=same", ".row")
    page.until("document.querySelector('.status').textContent.startsWith('12 of 24')")
    lengths = at.locator(".row .n:nth-child(3)").all_inner_texts()
    assert [int(n) for n in lengths] == sorted(map(int, lengths), reverse=True)
    at.locator(".row").first.click()
    at.wait_for_selector(".tokens span")
    link = at.url
    assert "reward 0" in page.text(".scores") and "why" in page.text(".reading")
    at.select_option("select[aria-label='colour of tokens']", "advantage")
    page.until("[...document.querySelectorAll('.tokens span')].some(s => s.style.getPropertyValue('--bg'))")
    for colouring, said in (("entropy", "no entropy of each token"), ("gap", "of these tokens was not measured")):
        at.select_option("select[aria-label='colour of tokens']", colouring)
        page.until("t => document.querySelector('.reading').textContent.includes(t)", said)
    page.show("rollouts?run=runs/grpo-0&step=3&episode=train/3/0/0/0&colour=gap", ".scale")
    page.until("[...document.querySelectorAll('.tokens span')].some(s => s.style.getPropertyValue('--bg'))")
    at.locator(".piece.sampled .tokens span").first.hover()
    tip = page.text(".tip")
    assert "gap -0.000001" in tip.replace("-1.00e-6", "-0.000001") and "learned by version 2, 2 later" in tip
    at.select_option("select[aria-label='colour of tokens']", "staleness")
    page.until("document.querySelector('.scale')?.textContent.includes('2')")
    again = page.context.new_page()
    again.goto(link)
    again.wait_for_selector(".tokens span")
    assert again.locator(".row[aria-selected=true]").count() == 1, "a link shows what was shown"


def test_a_group_a_task_over_steps_and_two_runs(page: Page) -> None:
    episode = "rollouts?run=runs/grpo-0&step=3&episode=train/3/0/0/0"
    page.show(episode + "&show=group", ".members .path")
    page.until("document.querySelectorAll('.members .path').length === 4")
    page.show(episode + "&show=task", ".reading table.data")
    page.until("document.querySelector('.reading').textContent.includes('drawn in 40 steps')")
    page.show(episode + "&show=other&vs=runs/other", ".reading ins")
    assert page.text(".reading del").strip() == "4" and page.text(".reading ins").strip() == "5"


def test_keys_and_the_list_of_runs(page: Page) -> None:
    at = page.show("rollouts?run=runs/grpo-0&step=1", ".row")
    at.focus(".pane .vlist")
    at.keyboard.press("ArrowDown")
    at.wait_for_selector(".tokens span")
    first = page.text(".facts")
    at.keyboard.press("j")
    page.until("t => document.querySelector('.facts').innerText !== t", first)
    at.keyboard.press("]")
    page.until("location.hash.includes('step=2')")
    for key, tab in (("1", "Curves"), ("3", "Trees"), ("5", "Ledger"), ("6", "Regimes"), ("2", "Rollouts")):
        at.keyboard.press(key)
        page.until("t => document.querySelector('.tabs [aria-current]').textContent === t", tab)
    at.keyboard.press("?")
    assert at.locator("dialog[open]").count() == 1
    at.keyboard.press("Escape")
    at.keyboard.press("/")
    at.keyboard.type("rloo")
    page.until("document.querySelectorAll('.run').length === 1")
    at.keyboard.press("Escape")
    at.locator(".run").click()
    page.until("decodeURIComponent(location.hash).includes('runs=runs/other')")


def test_text_of_a_model_is_text(page: Page) -> None:
    at = page.show("rollouts?run=runs/hostile&step=0&episode=train/0/0/0/0", ".tokens span")
    assert at.title() != "owned" and at.locator(".reading img, .reading script, .side img").count() == 0
    shown = page.text(".reading")
    assert "<script>document.title='owned'</script>" in shown and "\\u001b[31mred" in shown and "\\u202eright" in shown
    assert "\x1b" not in shown and "\u202e" not in shown
    for link, sought in (
        ("trees?run=runs/hostile&episode=train/0/0/0/0", ".tnode"),
        ("curves?runs=runs/hostile", ".chart"),
    ):
        page.show(link, sought)
        assert at.title() != "owned"
    page.show("rollouts?run=runs/hostile&step=0&episode=train/0/0/0/1", ".tokens span")
    page.until("document.querySelector('.reading').textContent.includes('more tokens')")
    assert at.locator(".tokens span").count() < 4000, "a line of a megabyte is not drawn whole"
    assert not any(not r.startswith(("http://127.0.0.1", "data:", "blob:")) for r in page.asked)


def test_ten_thousand_rollouts_in_a_step_stay_smooth(page: Page) -> None:
    at = page.show("rollouts?run=runs/many&step=0", ".row")
    page.until("document.querySelector('.status').textContent.startsWith('10,000 of 10,000')")
    assert at.locator(".row").count() < 60
    slowest = at.evaluate(
        """async () => {
          const list = document.querySelector('.pane .vlist');
          let slowest = 0;
          for (let i = 0; i < 40; i++) {
            const begun = performance.now();
            list.scrollTop = i * 12345;
            list.dispatchEvent(new Event('scroll'));
            await new Promise(requestAnimationFrame);
            list.getBoundingClientRect();
            slowest = Math.max(slowest, performance.now() - begun);
          }
          return slowest;
        }"""
    )
    assert at.locator(".row").count() < 60 and slowest < 2000
    at.focus(".pane .vlist")
    at.keyboard.press("End")
    at.wait_for_selector(".tokens span")
    assert "train/999" in page.text(".reading h2")


def test_compare_and_ledger(page: Page) -> None:
    pytest.importorskip("scipy", reason="intervals need selfteach[claims]")
    at = page.show("compare?result=runs/compared.json", ".chart canvas")
    assert "chance to be better than the first" in page.text("main") and "rloo" in page.text("main")
    page.show("compare?result=runs/claim.json", ".verdict")
    assert "auc of self" in page.text("main")
    page.show("ledger", "tr.link")
    at.locator("th button", has_text="method").first.click()
    page.until("document.querySelector('tr.link td').textContent === 'a_star_po'")
    at.locator("tr.link", has_text="rloo").first.focus()
    at.keyboard.press("Enter")
    at.wait_for_selector(".block .chart canvas")
    assert "mechanism shown" in page.text(".verdict >> nth=0") or "Verdict" in page.text("main")


def test_the_regimes_sort_and_open(page: Page) -> None:
    at = page.show("regimes", "tr.link")
    at.locator("th button", has_text="sampled").first.click()
    page.until("location.hash.includes('sort=sampled')")
    gains = [t for t in at.locator("tr.link td:nth-child(8)").all_inner_texts() if "→" in t]
    change = [float(b) - float(a) for a, b in (t.split(" → ") for t in gains)]
    assert len(change) >= 8 and change == sorted(change)
    at.locator("tr.link", has_text="ladder").first.click()
    at.wait_for_selector(".block .chart canvas")
    assert "rewards shuffled" in page.text(".legend >> nth=0") and "with shuffled rewards" in page.text(
        ".block >> nth=0"
    )


def test_a_live_run_is_followed_and_a_log_cut_back_is_read_anew(
    browser: Any, tmp_path: Path, letters: Tokenizer
) -> None:
    run = write_run(tmp_path / "runs" / "live", letters, steps=2, done=False)
    with viewing(tmp_path / "runs") as address:
        page = Page(browser, address)
        points = "() => import('/static/curves.js').then(m => m.logs.get('runs/live')?.metrics['reward/mean'][0].join()"
        page.show("curves?runs=runs/live", ".chart canvas")
        assert page.at.evaluate(points + ")") == "0,1"
        log = RunLog(run / "log")
        log.event("step", **step_event(2))
        page.until(f"{points}.split(',').length === 3)")
        asked = [a for a in page.asked if "/api/curves" in a]
        assert "offset=0" in asked[0] and "offset=0" not in asked[-1], "only what is new is asked for"
        log = RunLog(run / "log", offset=0)
        log.event("step", **step_event(0))
        page.until(f"{points}.split(',').length === 1)")
        shutil.rmtree(run / "log")
        page.show("rollouts?run=runs/live", ".status")
        page.until("document.querySelector('.status').textContent.includes('no rollouts yet')")
        page.context.close()


def test_a_folder_without_runs_and_a_server_that_is_gone(browser: Any, tmp_path: Path) -> None:
    with viewing(tmp_path) as address:
        page = Page(browser, address)
        assert "There are no runs here yet" in page.text("main")
    page.at.keyboard.press("5")
    page.until("document.querySelector('main').textContent.includes('does not answer')")
    page.context.close()


def test_the_exported_file_needs_neither_server_nor_network(
    browser: Any, folder: Path, tmp_path: Path, letters: Tokenizer
) -> None:
    home = tmp_path / "runs"
    for name in ("grpo-0", "grpo-1", "other"):
        shutil.copytree(folder / name, home / name)
    write_run(home / "hostile", letters, responses=(HOSTILE, "fine"), prompt=HOSTILE, method=HOSTILE[:40], steps=2)
    export_page(ViewerData([home]), tmp_path / "page.html", [0, 3])
    page = Page(browser, (tmp_path / "page.html").as_uri(), offline=True)
    page.show("curves?runs=runs/grpo-0|runs/grpo-1", ".chart canvas")
    at = page.show("rollouts?run=runs/hostile&step=0&episode=train/0/0/0/0", ".tokens span")
    assert at.title() != "owned" and "<script>" in page.text(".reading")
    at = page.show("rollouts?run=runs/grpo-0&step=3&q=four", ".row")
    page.until("document.querySelector('.status').textContent.startsWith('2 of 8')")
    page.show("rollouts?run=runs/grpo-0&step=3&episode=train/3/0/0/0&show=task", ".reading table.data")
    page.show("ledger", "tr.link")
    page.show("trees?run=runs/grpo-0", ".tnode")
    assert not page.wrong and all(r.startswith(("file:", "blob:", "data:")) for r in page.asked)
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_every_view_without_sideways_scrolling(browser: Any, url: str, scheme: str) -> None:
    page = Page(browser, url, viewport={"width": 390, "height": 844}, has_touch=True, color_scheme=scheme)
    for link, sought in (
        ("curves?runs=runs/grpo-0", ".chart canvas"),
        ("rollouts?run=runs/grpo-0&step=3", ".row"),
        ("rollouts?run=runs/grpo-0&step=3&episode=train/3/0/0/0", ".tokens span"),
        ("trees?run=runs/grpo-0", ".tnode"),
        ("compare?result=runs/compared.json", ".chart"),
        ("ledger", "tr.link"),
        ("regimes?name=ladder", ".block .chart canvas"),
    ):
        page.show(link, sought)
        assert page.at.evaluate("document.documentElement.scrollWidth") <= 390, link
        assert (
            page.at.evaluate(
                "document.getElementById('main').scrollWidth - document.getElementById('main').clientWidth"
            )
            <= 1
        ), link
    page.context.close()
    assert not page.wrong
