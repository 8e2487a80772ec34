// The frame: the list of runs, the tabs, the keys, and following what is live.
import { colour } from "./charts.js";
import { curvesView } from "./curves.js";
import { rolloutsView } from "./rollouts.js";
import { compareView, ledgerView } from "./results.js";
import { regimesView } from "./regimes.js";
import { treesView } from "./trees.js";
import { VIEWS, ask, exported, fill, go, h, heldViews, linkTo, message, number, percent, readExported, readHash, state, virtualList, visible } from "./util.js";

const POLL_MS = 3000, LIST_MS = 8000, MOST_CHOSEN = 30;
const KEYS = [["1 – 6", "curves, rollouts, trees, compare, ledger, regimes"], ["/", "find a run"], ["↑ ↓ or j k", "move through a list or a tree"], ["← →", "fold and unfold a tree"], ["[ ]", "earlier and later step"], ["Esc", "leave a rollout; end a zoom"], ["r", "read again"], ["?", "these keys"]];

let home = { runs: [], results: [], waiting: 0, folders: [] };
const summaries = new Map();

// The token has served: it is a cookie now, and does not stay in the address or the history.
if (!exported && location.search.includes("token=")) history.replaceState(null, "", location.pathname + location.hash);

const runs = () => home.runs;
function chosen() {
  const known = new Set(home.runs.map((r) => r.id));
  if (state.at.runs !== undefined) return state.at.runs.split("|").filter((id) => known.has(id));
  if (known.has(state.at.run)) return [state.at.run];
  const newest = [...home.runs].sort((a, b) => (b.steps > 0) - (a.steps > 0) || (b.changed || 0) - (a.changed || 0))[0];
  return newest ? [newest.id] : [];
}

const views = { curves: curvesView({ runs, chosen, summaries: () => summaries }), rollouts: rolloutsView({ runs, chosen }), trees: treesView({ runs, chosen }), compare: compareView({ home: () => home }), ledger: ledgerView(), regimes: regimesView() };

// ---- the frame

const main = h("main", { id: "main", tabindex: "-1" });
const tabs = h("nav", { class: "tabs", "aria-label": "views" });
const find = h("input", { type: "search", placeholder: "find runs", "aria-label": "find runs", oninput: () => drawRuns() });
const foot = h("div", { class: "foot" });
const side = h("aside", { class: "side", "aria-label": "runs" });
const menu = h("button", { class: "menu", "aria-expanded": "false", onclick: () => menu.setAttribute("aria-expanded", String(side.classList.toggle("open"))) }, "Runs");
const list = virtualList({ rows: [], height: 52, label: "runs", onopen: () => {}, draw: runRow });
const help = h("dialog", { "aria-label": "keys" }, h("h2", {}, "Keys"), h("dl", {}, KEYS.map(([k, what]) => [h("dt", {}, k), h("dd", {}, what)])), h("p", { class: "hint" }, "Every view is a link: the address holds what is shown."), h("form", { method: "dialog" }, h("button", {}, "close")));
side.append(h("div", { class: "find" }, find, h("button", { title: "choose all that are listed, or none", onclick: chooseAll }, "all")), list.element, foot);
document.getElementById("app").replaceChildren(h("header", { class: "top" }, h("h1", {}, "selfteach"), tabs, h("div", { class: "end" }, menu, h("button", { "aria-label": "keys", title: "keys", onclick: () => help.showModal() }, "?"))), side, main);
document.body.append(help);

function listed() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  return home.runs.filter((r) => {
    const text = [r.id, r.method, r.task, r.model, r.state, r.seed !== undefined ? "seed " + r.seed : ""].join(" ").toLowerCase();
    return words.every((w) => text.includes(w));
  });
}

function choose(ids) {
  go({ runs: ids.slice(0, MOST_CHOSEN).join("|") });
}

function chooseAll() {
  const ids = listed().map((r) => r.id), now = chosen();
  choose(ids.every((id) => now.includes(id)) || now.length >= MOST_CHOSEN ? [] : [...new Set([...now, ...ids])]);
}

function runRow(r) {
  const now = chosen(), at = now.indexOf(r.id);
  const row = h("div", { class: "run" + (at >= 0 ? " chosen" : ""), title: r.id },
    h("input", { type: "checkbox", tabindex: "-1", "aria-label": "draw " + r.id, checked: at >= 0 }),
    h("b", {}, visible(r.name)), h("span", { class: "now" }, r.accuracy !== null && r.accuracy !== undefined ? percent(r.accuracy) + " %" : r.reward !== null && r.reward !== undefined ? number(r.reward, 3) : ""),
    h("small", {}, r.method === undefined ? "reading …" : visible([r.method, r.task, r.seed !== null ? "seed " + r.seed : ""].filter(Boolean).join(" · "))),
    h("span", { class: "state now " + (r.state || "") }, r.state === "live" ? `${r.steps}/${r.planned ?? "?"}` : r.state === "done" ? `${r.steps} steps` : r.state || ""));
  if (at >= 0) row.style.setProperty("--c", colour(armIndex(r.id)));
  row.addEventListener("click", (e) => {
    const only = e.target.tagName !== "INPUT" && !e.ctrlKey && !e.metaKey && !e.shiftKey;
    const next = only ? [r.id] : at >= 0 ? now.filter((id) => id !== r.id) : [...now, r.id];
    if (state.view === "rollouts" || state.view === "trees") go({ runs: next.join("|"), ...(only ? { run: r.id, step: "", episode: "", at: "" } : {}) });
    else choose(next);
  });
  return row;
}

// The colour of a run in the curves: that of its arm, where seeds are bands.
function armIndex(id) {
  const seen = [];
  for (const run of chosen()) {
    const about = summaries.get(run);
    const key = state.at.seeds !== "0" && about?.arm ? about.arm : run;
    if (!seen.includes(key)) seen.push(key);
    if (run === id) return seen.indexOf(key);
  }
  return 0;
}

function drawRuns() {
  const rows = listed();
  const top = list.element.scrollTop;
  list.set(rows, true);
  list.element.scrollTop = top;
  const live = home.runs.filter((r) => r.state === "live").length;
  fill(foot, `${rows.length === home.runs.length ? "" : rows.length + " of "}${home.runs.length} runs${live ? `, ${live} live` : ""}${home.waiting ? ", reading …" : ""}`, exported ? h("div", {}, "an exported page: what it holds does not change") : "");
  menu.textContent = `Runs (${chosen().length} of ${home.runs.length})`;
  const about = summaries.get(chosen()[0]);
  document.title = about ? `${about.name} · selfteach` : "selfteach";
}

function drawTabs() {
  fill(tabs, ...heldViews().map((name) => h("a", { href: linkTo(name, carried(name)), "aria-current": name === state.view ? "page" : null, title: `${VIEWS[name]} (${Object.keys(VIEWS).indexOf(name) + 1})` }, VIEWS[name])));
}

// What goes along from view to view: the runs, and where one is.
function carried(view) {
  const { runs: ids, run, step, episode, seeds } = state.at;
  return view === "curves" ? { runs: ids, seeds } : view === "rollouts" || view === "trees" ? { runs: ids, run, step, episode } : { runs: ids };
}

let current = "", shows = 0;
async function show() {
  const own = ++shows;
  readHash();
  drawTabs();
  drawRuns();
  const view = views[state.view];
  if (current !== state.view) {
    current = state.view;
    fill(main, view.element);
    main.classList.toggle("filled", Boolean(view.filled));
  }
  await view.changed();
  if (own === shows) document.documentElement.dataset.shown = location.hash;
}

async function readHome() {
  try {
    home = await ask("home");
    for (const r of home.runs) summaries.set(r.id, r);
    return true;
  } catch (error) {
    fill(foot, message(error.message, "failed"));
    return false;
  }
}

// ---- following: the list now and then, the open view more often, nothing while the page is not seen

let lastList = 0;
async function poll() {
  if (!exported && !document.hidden) {
    const live = chosen().some((id) => ["live", "starting"].includes(summaries.get(id)?.state));
    if (home.waiting || Date.now() - lastList > LIST_MS) {
      lastList = Date.now();
      const before = JSON.stringify(home.runs);
      if ((await readHome()) && JSON.stringify(home.runs) !== before) drawRuns();
    }
    if (live) await views[state.view].refresh().catch(() => {});
  }
  setTimeout(poll, home.waiting ? 300 : POLL_MS);
}

window.addEventListener("hashchange", show);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawRuns();
  views[state.view].recolour();
});
document.addEventListener("keydown", (e) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(e.target.tagName) && e.target.type !== "checkbox";
  if (e.key === "Escape" && typing) return e.target.blur();
  if (typing || e.ctrlKey || e.metaKey || e.altKey || help.open) return;
  const view = Object.keys(VIEWS)[Number(e.key) - 1];
  if (view && heldViews().includes(view)) location.hash = linkTo(view, carried(view));
  else if (e.key === "?") help.showModal();
  else if (e.key === "/") {
    side.classList.add("open");
    find.focus();
  } else if (e.key === "r") show();
  else if (views[state.view].keys?.[e.key]) views[state.view].keys[e.key]();
  else if (e.key === "Escape" && state.at.zoom) go({ zoom: "" });
  else return;
  e.preventDefault();
});

readExported().then(readHome).then(async () => {
  lastList = Date.now();
  document.getElementById("app").classList.toggle("tables", Boolean(exported) && !home.runs.length);
  await show();
  document.documentElement.dataset.ready = "true";
  setTimeout(poll, home.waiting ? 100 : POLL_MS);
});
