// Comparisons (what compare, sweep and reproduce found) and the ledger: curves with bands, intervals, chances, costs.
import { chart, colour } from "./charts.js";
import { ask, fill, go, h, linkTo, message, number, percent, save, state, svg, visible } from "./util.js";

const FRACTIONS = new Set(["accuracy", "greedy"]);
const shown = (measure, v) => (FRACTIONS.has(measure) ? percent(v) : number(v, 3));

// A mean with its interval on a scale that all rows share; seeds are pale dots.
function interval(summary, low, high, n, zero) {
  const X = (v) => 6 + ((v - low) / (high - low || 1)) * 188;
  const picture = svg("svg", { class: "forest", viewBox: "0 0 200 22", role: "img", "aria-label": "interval" });
  if (zero !== undefined) picture.append(svg("line", { x1: X(zero), x2: X(zero), y1: 0, y2: 22, stroke: "var(--quiet)", "stroke-dasharray": "2 2" }));
  for (const v of summary.per_seed || []) if (v !== null) picture.append(svg("circle", { cx: X(v), cy: 11, r: 2.2, fill: colour(n), "fill-opacity": 0.35 }));
  if (summary.interval) picture.append(svg("line", { x1: X(summary.interval[0]), x2: X(summary.interval[1]), y1: 11, y2: 11, stroke: colour(n), "stroke-width": 2 }));
  if (summary.mean !== null && summary.mean !== undefined) picture.append(svg("circle", { cx: X(summary.mean), cy: 11, r: 4, fill: colour(n) }));
  return picture;
}

function spanOf(summaries, extra = []) {
  const all = [...extra, ...summaries.flatMap((s) => [...(s?.interval || []), ...(s?.per_seed || []), s?.mean]).filter((v) => typeof v === "number")];
  const low = Math.min(...all), high = Math.max(...all);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

function meanText(measure, s) {
  if (!s || s.mean === null || s.mean === undefined) return "–";
  return shown(measure, s.mean) + (s.interval ? ` [${shown(measure, s.interval[0])}, ${shown(measure, s.interval[1])}]` : "");
}

export function resultView(result) {
  const { arms, main } = result;
  const kinds = [...new Set(arms.flatMap((a) => Object.keys(a.curves)))];
  const charts = kinds.map((kind) => chart({
    title: `held-out accuracy, ${kind}`, about: ["mean over seeds with its 95 % interval, by steps of training", "", ""], key: "compare",
    lines: arms.filter((a) => a.curves[kind]).map((a) => ({ label: a.name, colour: colour(arms.indexOf(a)), points: [a.curves[kind].map((p) => p.step), a.curves[kind].map((p) => p.mean)], markers: true,
      low: a.curves[kind].some((p) => p.low !== null) ? a.curves[kind].map((p) => clip(p.low)) : null, high: a.curves[kind].map((p) => clip(p.high)) })),
  }));
  const measures = ["reward", "reward_greedy", "accuracy", "greedy", "length", "calls", "tokens", "seconds"].filter((m) => arms.some((a) => a.final[m]));
  const [low, high] = spanOf(arms.map((a) => a.final[main]));
  const costs = [...new Set(arms.flatMap((a) => Object.keys(a.cost || {})))];
  const names = { tokens: "sampled tokens", learned: "learned tokens", optimiser_steps: "optimiser steps", seconds: "seconds of training" };
  const better = (p) => (p ? `${number(p.p, 2)}${p.low !== null ? ` [${number(p.low, 2)}, ${number(p.high, 2)}]` : ""}` : "–");
  return [
    result.note ? h("p", { class: "note" }, visible(result.note)) : null,
    charts.length ? h("div", { class: "grid" }, charts) : h("p", { class: "hint" }, "This result has no learning curves."),
    h("div", { class: "block" }, h("h2", {}, "After training"), h("div", { class: "wide" }, h("table", { class: "data" },
      h("thead", {}, h("tr", {}, h("th", {}, "arm"), h("th", {}, main === "accuracy" ? "sampled accuracy: seeds, mean, 95 % interval" : main), measures.map((m) => h("th", {}, m === "accuracy" ? "sampled %" : m === "greedy" ? "greedy %" : m)), h("th", { title: "the chance that one run is above another, over all pairs of seeds; bootstrap interval (Agarwal et al. 2021)" }, result.kind === "reproduce" ? "chance that self is better" : "chance to be better than the first"), result.kind === "compare" ? h("th", {}, "against the first, paired") : null, costs.map((c) => h("th", {}, names[c] || c)))),
      h("tbody", {}, arms.map((a, n) => h("tr", {}, h("td", { class: "n" }, h("i", { class: "key", style: { "--c": colour(n) } }), visible(a.name)), h("td", {}, a.final[main] ? interval(a.final[main], low, high, n) : "–"), measures.map((m) => h("td", { class: "n" }, meanText(m, a.final[m]))), h("td", { class: "n" }, better(a.improvement)), result.kind === "compare" ? h("td", {}, meanText(main, a.against)) : null, costs.map((c) => h("td", {}, number(a.cost?.[c]?.mean, 3))))))))),
    ...(arms.some((a) => a.differs) ? [h("details", { class: "block" }, h("summary", {}, "What the arms differ in"), arms.filter((a) => a.differs).map((a) => h("p", {}, h("b", {}, visible(a.name)), ": ", visible(a.differs))))] : []),
    Object.keys(result.failed || {}).length ? h("div", { class: "block" }, h("h2", {}, "Runs that failed"), Object.entries(result.failed).map(([k, v]) => message(`${k}: ${v}`, "failed"))) : null,
  ];
}

export const clip = (v) => (v === null || v === undefined ? null : Math.min(1, Math.max(0, v)));

function checksView(result) {
  return h("div", { class: "block" }, h("h2", {}, "Checks"), h("div", { class: "wide" }, h("table", { class: "data" },
    h("thead", {}, h("tr", {}, ["", "check", "difference [interval]", "seeds, mean, interval", "could have found", "verdict"].map((t) => h("th", {}, t)))),
    h("tbody", {}, result.checks.map((c) => {
      const summary = { mean: c.effect, interval: c.interval?.length ? c.interval : null, per_seed: c.per_seed };
      const [low, high] = spanOf([summary], [0]);
      return h("tr", {}, h("td", {}, c.kind), h("td", {}, visible(c.text)), h("td", { class: "n" }, c.shown), h("td", {}, c.effect === null ? "–" : interval(summary, low, high, 0, 0)), h("td", {}, c.detectable), h("td", { class: verdictClass(c.verdict) }, visible(c.said)));
    })))));
}

const verdictClass = (v) => "verdict " + (v === "holds" ? "good" : v.includes("not hold") ? "bad" : "");

export function compareView({ home }) {
  const host = h("div");
  async function changed() {
    const results = home().results;
    if (!results.length) return fill(host, message("No results of compare, sweep or reproduce in these folders. selfteach compare grpo rloo --task chain_sum --seeds 3 writes one; give its folder too: selfteach view runs results."));
    const id = results.some((r) => r.id === state.at.result) ? state.at.result : results[0].id;
    if (!host.childElementCount) fill(host, message("Reading …"));
    try {
      const result = await ask("result", { id });
      fill(host, 
        h("div", { class: "cards" }, results.length > 12
          ? h("select", { "aria-label": "result", onchange: (e) => go({ result: e.target.value }) }, results.map((r) => h("option", { value: r.id, selected: r.id === id }, r.id)))
          : results.map((r) => h("a", { class: "card", href: linkTo("compare", { ...state.at, result: r.id }), "aria-current": r.id === id ? "true" : null }, visible(r.name), h("small", {}, r.kind)))),
        h("h2", {}, visible(result.title)),
        result.because ? h("p", { class: "hint" }, visible(result.because)) : null,
        ...[result.kind === "reproduce" ? h("p", {}, "Verdict: ", h("span", { class: verdictClass(result.verdict) }, visible(result.verdict))) : null, resultView(result)[0]].filter(Boolean),
        ...resultView(result).slice(1).filter(Boolean),
        ...(result.kind === "reproduce" ? [checksView(result)] : []),
        h("button", { class: "quiet", onclick: () => save("result.json", JSON.stringify(result, null, 1), "application/json") }, "download what is drawn, as JSON"));
    } catch (error) {
      fill(host, message(error.message, "failed"));
    }
  }
  return { element: host, changed, refresh: async () => {}, recolour: changed };
}

const LEDGER = [["method", "method"], ["family", "family"], ["verdict", "verdict"], ["size", "outcome"], ["premise", "premise"], ["mechanism", "mechanism"], ["outcome", "outcomes"], ["regime", "measured on"], ["seeds", "seeds"], ["paper", "paper"]];

const RANKS = ["holds", "mechanism shown", "does not hold here", "mechanism not shown", "not tested here", "undecided"];

function ledgerCell(r, key) {
  if (key === "paper" && /^\d{4}\.\d+$/.test(r.paper)) return h("td", {}, h("a", { href: "https://arxiv.org/abs/" + r.paper, target: "_blank", rel: "noreferrer noopener", onclick: (e) => e.stopPropagation() }, r.paper));
  return h("td", { class: key === "verdict" ? verdictClass(r.verdict) : null }, key === "size" ? r.effect || "–" : visible(r[key] === "" ? "–" : r[key]));
}

// A table whose columns sort and whose rows open, with a field to find some; what has no value stands last.
export function sortableTable({ rows, columns, first, of, cell, open, current, find, said }) {
  const sort = state.at.sort || first, key = sort.replace("-", ""), down = sort.startsWith("-") ? -1 : 1;
  const q = (state.at.find || "").toLowerCase();
  const empty = (v) => v === null || v === undefined || v === "";
  const kept = rows.filter((r) => !q || Object.values(r).join(" ").toLowerCase().includes(q)).map((r) => [of(r, key), r]);
  kept.sort(([a], [b]) => empty(a) - empty(b) || down * (a < b ? -1 : a > b ? 1 : 0));
  const heads = columns.map(([k, text]) => h("th", { "aria-sort": k === key ? (down < 0 ? "descending" : "ascending") : null }, h("button", { onclick: () => go({ sort: k === key && down > 0 ? "-" + k : k }) }, text + (k === key ? (down < 0 ? " ↓" : " ↑") : ""))));
  const drawn = kept.map(([, r]) => h("tr", { class: "link", tabindex: "0", "aria-current": current(r) ? "true" : null, onclick: () => open(r), onkeydown: (e) => e.key === "Enter" && open(r) }, columns.map(([k]) => cell(r, k))));
  return [h("div", { class: "bar" }, h("input", { type: "search", placeholder: find, "aria-label": "find", value: state.at.find || "", onchange: (e) => go({ find: e.target.value }) }), h("span", { class: "hint" }, said)),
    h("div", { class: "wide" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, drawn)))];
}

export function ledgerView() {
  const host = h("div"), claim = h("div");
  let rows = null;
  async function changed() {
    if (!rows) fill(host, message("Reading …"));
    try {
      rows ||= (await ask("ledger")).rows;
      draw();
      await drawClaim();
    } catch (error) {
      fill(host, message(error.message, "failed"));
    }
  }
  function draw() {
    const decided = rows.filter((r) => r.verdict !== "not yet decided again").length;
    fill(host, claim, ...sortableTable({ rows, columns: LEDGER, first: "verdict", current: (r) => r.method === state.at.method, open: (r) => go({ method: r.method }), cell: ledgerCell,
      of: (r, key) => (key === "verdict" ? RANKS.indexOf(r.verdict) + 1 || 99 : r[key] === "not yet decided again" ? "" : r[key]), find: "find a method, family, regime", said: `${decided} of ${rows.length} claims are decided in a regime of the proving ground; a row opens its curves and checks.` }));
  }
  async function drawClaim() {
    const name = state.at.method;
    if (!name) {
      claim.dataset.of = "";
      return fill(claim);
    }
    if (claim.dataset.of !== name) fill(claim, message(`Reading the claim of ${name} …`));
    const result = await ask("claim", { method: name });
    claim.dataset.of = name;
    if (name !== state.at.method) return;
    fill(claim, h("div", { class: "block" },
      h("div", { class: "actions" }, h("h2", {}, visible(result.title)), h("button", { onclick: () => go({ method: "" }) }, "close ✕")),
      h("p", { class: "hint" }, visible(result.because)),
      h("p", {}, "Verdict: ", h("span", { class: verdictClass(result.verdict) }, visible(result.verdict)), result.decided ? "" : ". What follows was measured in the first edition and is no verdict."),
      ...resultView(result).filter(Boolean), checksView(result)));
    document.getElementById("main").scrollTop = 0;
  }
  return { element: host, changed, refresh: async () => {}, recolour: changed };
}
