// Curves: every metric of the chosen runs, each with what it means; live runs are followed from where their log was read.
import { bandName, bandOf, chart, colour } from "./charts.js";
import { ask, cut, exported, fill, go, h, message, number, remember, remembered, state, visible } from "./util.js";

const SECTIONS = [
  ["Reward", /^reward\//],
  ["Held-out evaluation", /^eval\/(greedy|sampled|score|reward(_\w+)?|length)$/],
  ["Held-out, in detail", /^eval\//],
  ["Length and turns", /^rollout\/(length|turns|tool_calls|truncated|cut_text|re_rendered)/],
  ["Exploration", /entropy|mixed_/],
  ["Distance from the sampler", /approx_kl|ratio_max|clip_fraction|logprob_mismatch|staleness|kept_fraction|(^|\/)kl/],
  ["Optimisation", /\/(loss|grad_norm|lr|rows|optimiser_steps)/],
  ["Speed", /^(time\/|tokens_per_s)/],
  ["Tokens", /^(tokens\/|dropped\/)/],
  ["Other", /./],
];
// What people look for, and what it means where a log has none of it.
const WANTED = {
  "Held-out evaluation": [[/^eval\/(greedy|sampled|score|reward)/, "held-out accuracy: this run is not evaluated on the way (eval_every), or not yet"]],
  Exploration: [[/entropy/, "entropy"]],
  "Distance from the sampler": [
    [/approx_kl/, "KL from the sampling policy: no term reads it"],
    [/clip_fraction/, "clip share: no term of this method clips"],
    [/logprob_mismatch/, "log-probability gap of engine and learner"],
    [/staleness/, "staleness: the log has no such metric; a rollout's tokens show the version of the weights that drew each"],
  ],
  Optimisation: [[/grad_norm/, "gradient norm"]],
};
// One chart for what belongs together: lines of one run differ in their dashes.
const TOGETHER = [
  ["time by phase", ["time/rollout_s", "time/learn_s", "time/step_s"], ["seconds of a step: sampling and scoring (whole line), credit and updates (dashes), all (dots)", "seconds", "most of a step is sampling where answers are long"]],
  ["log-prob gap of engine and learner", ["policy/logprob_mismatch_mean", "policy/logprob_mismatch_p99", "policy/logprob_mismatch_max"], null],
];
const DASHES = [null, [6, 4], [2, 3]];
const FIRST = ["reward/mean", "eval/sampled", "eval/greedy", "rollout/length_mean", "policy/entropy_estimate", "policy/approx_kl", "policy/clip_fraction", "time by phase", "tokens_per_s", "policy/grad_norm"];
const XS = { step: "step", tokens: "tokens sampled", seconds: "seconds of training" };

// The leaves of a run's configuration by their path; marks of types in it (tuple, kind) are left out of the paths.
function leaves(value, path = "", out = {}) {
  if (value && typeof value === "object") {
    const inner = Object.keys(value).length === 1 && "tuple" in value ? value.tuple : value;
    if (Array.isArray(inner) && inner.every((v) => v === null || typeof v !== "object")) out[path] = inner.join(", ");
    else for (const [k, v] of Object.entries(inner)) if (k !== "kind" && k !== "format") leaves(v, path ? path + "." + k : k, out);
  } else out[path] = value === null || value === undefined ? "none" : String(value);
  return out;
}

const MOST_LEAVES = 200;
export async function configurations(runs) {
  const known = await Promise.all(runs.map(async (run) => leaves(await ask("config", { run }))));
  const names = [...new Set(known.flatMap(Object.keys))];
  const differ = runs.length > 1 ? names.filter((n) => new Set(known.map((k) => k[n] ?? "–")).size > 1) : names.filter((n) => !n.startsWith("method.stages"));
  if (!differ.length) return h("p", { class: "hint" }, runs.length > 1 ? "These runs differ in nothing that their configurations hold." : "This run has no configuration.");
  return h("div", { class: "wide" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, h("th", {}, ""), runs.map((r) => h("th", {}, visible(r))))),
    h("tbody", {}, differ.slice(0, MOST_LEAVES).map((n) => h("tr", {}, h("td", {}, visible(n)), known.map((k) => h("td", {}, visible(cut(k[n] ?? "–", 200)))))))),
    differ.length > MOST_LEAVES ? h("p", { class: "hint" }, `and ${differ.length - MOST_LEAVES} more`) : null);
}

export const logs = new Map(); // run -> what is known of its log

export async function follow(run) {
  const known = logs.get(run);
  const page = await ask("curves", { run, offset: known?.offset ?? 0, mark: known?.mark ?? "" });
  if (!known || page.anew) {
    logs.set(run, { ...page, metrics: page.metrics, evals: page.evals });
    return true;
  }
  const grew = page.offset !== known.offset;
  for (const [kind, width] of [["metrics", 2], ["evals", 4]]) {
    for (const [name, columns] of Object.entries(page[kind])) {
      const own = (known[kind][name] ||= Array.from({ length: width }, () => []));
      columns[0].forEach((step, i) => {
        // what is measured again at a step (after training, or by a resumed run) stands for what was there
        while (own[0].length && own[0].at(-1) >= step) for (const c of own) c.pop();
        own.forEach((column, k) => column.push(columns[k][i]));
      });
    }
  }
  Object.assign(known.about, page.about);
  Object.assign(known, { offset: page.offset, mark: page.mark, size: page.size, last: page.last ?? known.last, rows: (known.rows || 0) + (page.rows || 0) });
  return grew;
}

export function curvesView({ runs, chosen, summaries }) {
  const host = h("div", { class: "curves" });
  const notes = h("div", { class: "notes" });
  const configured = h("div"), settingsOf = h("details", { class: "section", ontoggle: () => drawConfigurations() }, h("summary", {}, "What they are"), configured);
  const body = h("div");
  const charts = new Map();
  const details = new Map(); // run -> steps of a zoom, where the log was thinned
  let failed = "";

  const settings = () => ({
    x: state.at.x in XS ? state.at.x : "step",
    smooth: Number(state.at.smooth ?? (longest() >= 30 ? 10 : 1)) || 1,
    seeds: state.at.seeds !== "0",
    filter: state.at.metric || "",
    zoom: state.at.zoom ? state.at.zoom.split("..").map(Number) : null,
  });
  const longest = () => Math.max(0, ...chosen().map((r) => logs.get(r)?.metrics["tokens/sampled"]?.[0].length || 0));

  const select = (label, name, options, value) => h("label", {}, label, h("select", { onchange: (e) => go({ [name]: e.target.value, ...(name === "x" ? { zoom: "" } : {}) }) }, Object.entries(options).map(([k, text]) => h("option", { value: k, selected: String(k) === String(value) }, text))));

  const bar = h("div", { class: "bar" });
  function drawBar() {
    const s = settings();
    const several = arms().some((a) => a.runs.length > 1);
    const search = h("input", { type: "search", placeholder: "filter metrics", "aria-label": "filter metrics", value: s.filter, oninput: (e) => go({ metric: e.target.value }, "curves", true) });
    const active = document.activeElement?.getAttribute?.("aria-label") === "filter metrics";
    if (active) return drawZoom(s);
    fill(bar, 
      search,
      select("over", "x", XS, s.x),
      select("smoothing", "smooth", { 1: "none, raw values", 5: "mean of the last 5", 10: "mean of the last 10", 20: "mean of the last 20", 50: "mean of the last 50" }, s.smooth),
      several ? h("label", {}, h("input", { type: "checkbox", checked: s.seeds, onchange: (e) => go({ seeds: e.target.checked ? "" : "0" }) }), "seeds as bands") : null,
      h("span", { class: "zoomed" }),
    );
    drawZoom(s);
  }
  function drawZoom(s) {
    fill(bar.querySelector(".zoomed"), s.zoom ? h("button", { onclick: () => go({ zoom: "" }) }, `${XS[s.x]} ${number(Math.round(s.zoom[0]))} to ${number(Math.round(s.zoom[1]))} ✕`) : h("span", { class: "hint" }, "drag on a chart to zoom, double-click to leave"));
  }

  // Runs that differ in the seed alone are one arm.
  function arms() {
    const by = new Map();
    for (const run of chosen()) {
      const about = summaries().get(run) || {};
      const key = settings().seeds && about.arm ? about.arm : run;
      if (!by.has(key)) by.set(key, { runs: [], about });
      by.get(key).runs.push(run);
    }
    return [...by.values()].map((arm, n) => ({ ...arm, colour: colour(n), label: arm.runs.length > 1 ? `${arm.about.method || arm.about.name} (${arm.runs.length} seeds)` : arm.runs[0] }));
  }

  function xOf(run, steps, evaluation) {
    const { x } = settings();
    if (x === "step") return steps;
    const log = logs.get(run), own = new Map();
    if (x === "tokens") log.metrics["tokens/total"]?.[0].forEach((s, i) => own.set(s, log.metrics["tokens/total"][1][i]));
    else {
      let sum = 0;
      log.metrics["time/step_s"]?.[0].forEach((s, i) => own.set(s, (sum += log.metrics["time/step_s"][1][i] * (log.every || 1))));
    }
    return steps.map((s) => (evaluation ? (s === 0 ? 0 : own.get(s - 1)) : own.get(s)) ?? null);
  }

  function column(run, name) {
    const log = logs.get(run), evaluation = name.startsWith("eval/");
    let found = (evaluation ? log?.evals : log?.metrics)?.[name];
    if (!found) return null;
    const detail = details.get(run)?.[evaluation ? "evals" : "metrics"][name];
    if (detail && settings().x === "step") found = detail;
    const xs = xOf(run, found[0], evaluation);
    const kept = xs.map((x, i) => (x === null ? -1 : i)).filter((i) => i >= 0);
    const pick = (c) => kept.map((i) => c[i]);
    return { points: [pick(xs), pick(found[1])], low: found[2] && found[2].some((v) => v !== null) ? pick(found[2]) : null, high: found[3] ? pick(found[3]) : null, markers: evaluation };
  }

  function linesOf(names) {
    const lines = [];
    for (const arm of arms()) {
      names.forEach((name, k) => {
        const own = arm.runs.map((run) => [run, column(run, name)]).filter(([, c]) => c);
        if (!own.length) return;
        const label = (text) => (names.length > 1 ? `${text}: ${name.replace(/^time\/|^policy\/logprob_mismatch_/, "").replace(/_s$/, "")}` : text);
        const dash = DASHES[k % DASHES.length];
        if (own.length === 1) {
          lines.push({ label: label(arm.runs.length > 1 ? own[0][0] : arm.label), colour: arm.colour, dash, run: own[0][0], ...own[0][1] });
          return;
        }
        const common = own[0][1].points[0].filter((x) => own.every(([, c]) => c.points[0].includes(x)));
        const at = own.map(([, c]) => { const known = new Map(c.points[0].map((x, i) => [x, c.points[1][i]])); return common.map((x) => known.get(x)); });
        for (const [run, c] of own) lines.push({ label: label(run), colour: arm.colour, dash, run, points: c.points, faint: true, markers: false });
        if (common.length) {
          const { mean, low, high } = bandOf(at);
          lines.push({ label: label(`${arm.about.method || arm.label}, mean; band: ${bandName(own.length)}`), colour: arm.colour, dash, points: [common, mean], low, high, markers: own[0][1].markers, run: own[0][0] });
        }
      });
    }
    return lines;
  }

  function names() {
    const found = new Set();
    for (const run of chosen()) {
      const log = logs.get(run);
      if (log) for (const name of [...Object.keys(log.metrics), ...Object.keys(log.evals)]) found.add(name);
    }
    return found;
  }

  function draw() {
    drawBar();
    const s = settings();
    const known = names();
    const groups = new Map(SECTIONS.map(([name]) => [name, []]));
    const taken = new Set(), together = new Map();
    for (const [title, members, about] of TOGETHER) {
      const have = members.filter((m) => known.has(m));
      if (have.length > 1) {
        have.forEach((m) => taken.add(m));
        together.set(title, { members: have, about });
      }
    }
    const all = [...[...known].filter((n) => !taken.has(n)), ...together.keys()];
    all.sort((a, b) => (FIRST.indexOf(a) + 1 || 99) - (FIRST.indexOf(b) + 1 || 99));
    for (const name of all) {
      const sample = together.get(name)?.members[0] || name;
      if (s.filter && !name.toLowerCase().includes(s.filter.toLowerCase()) && !sample.toLowerCase().includes(s.filter.toLowerCase())) continue;
      groups.get(SECTIONS.find(([, pattern]) => pattern.test(sample))[0]).push(name);
    }
    const about = (name) => {
      for (const run of chosen()) if (logs.get(run)?.about[name]?.[0]) return logs.get(run).about[name];
      return ["", "", ""];
    };
    const open = remembered("sections");
    const parts = [];
    for (const [section, members] of groups) {
      const absent = (WANTED[section] || []).filter(([pattern]) => ![...known].some((n) => pattern.test(n))).map(([, text]) => text);
      if (!members.length && (!absent.length || s.filter || !known.size)) continue;
      const grid = h("div", { class: "grid" });
      const folded = (open[section] ?? ["Held-out, in detail", "Tokens", "Other"].includes(section)) && s.filter === "";
      for (const name of folded ? [] : members) {
        const group = together.get(name);
        const lines = linesOf(group ? group.members : [name]);
        if (!lines.length) continue;
        let made = charts.get(name);
        if (made) made.update(lines, s.smooth, s.zoom);
        else {
          made = chart({
            title: name.replace(/^eval\//, "held-out "), about: group?.about || about(group ? group.members[0] : name), lines, smooth: s.smooth, key: "curves", zoom: s.zoom, xname: XS[s.x], whole: s.x === "step",
            onzoom: (range) => go({ zoom: range ? range.map((v) => number(Math.max(0, v), 7).replaceAll(",", "")).join("..") : "" }),
            onpoint: (line, x) => settings().x === "step" && !line.markers && go({ run: line.run, step: x }, "rollouts"),
          });
          charts.set(name, made);
        }
        grid.append(made);
      }
      const details = h("details", { class: "section", open: !folded }, h("summary", {}, section, h("span", { class: "count" }, String(members.length))), grid,
        absent.length ? h("p", { class: "absent" }, "Not in this log: ", absent.join("; "), ".") : null);
      details.addEventListener("toggle", () => {
        if (details.open === !folded) return;
        open[section] = !details.open;
        remember("sections", open);
        draw();
      });
      parts.push(details);
    }
    const mains = document.getElementById("main"), top = mains?.scrollTop;
    fill(body, ...parts);
    if (mains) mains.scrollTop = top;
    drawNotes(known.size, parts.length);
  }

  let configuredOf = "";
  async function drawConfigurations() {
    const wanted = chosen(), key = wanted.join("|");
    settingsOf.hidden = !wanted.length;
    fill(settingsOf.firstChild, wanted.length > 1 ? "What these runs differ in" : "What this run is");
    if (!settingsOf.open || key === configuredOf) return;
    configuredOf = key;
    try {
      fill(configured, await configurations(wanted));
    } catch (error) {
      fill(configured, message(error.message, "failed"));
    }
  }

  function drawNotes(known, parts) {
    drawConfigurations();
    const out = [];
    const s = settings();
    if (failed) out.push(message(failed, "failed"));
    if (!chosen().length) out.push(message(runs().length ? "Choose runs in the list on the left." : "There are no runs here yet; train one: selfteach train grpo --task chain_sum."));
    else if (!known && chosen().every((r) => logs.has(r))) out.push(message("Nothing is logged yet: the run is at its warm start or its first evaluation. This page follows it."));
    else if (!parts && s.filter) out.push(message(`No metric's name contains “${s.filter}”.`));
    for (const run of chosen()) {
      const log = logs.get(run);
      if (log?.sampled) out.push(message(`${run}: its log has ${number(log.size / 1e9, 3)} GB; ${log.rows} steps of it were read, evenly. Zoom to read a part whole.`, "note"));
      else if (log?.every > 1) out.push(message(`${run}: every ${log.every}th of its steps is drawn. Zoom to see all.`, "note"));
    }
    if (s.smooth > 1 && known) out.push(h("p", { class: "hint" }, `Strong lines are means of the last ${s.smooth} values; the raw values are the pale lines behind. Nothing later than a point is in its mean.`));
    fill(notes, ...out);
  }

  async function zoomed() {
    const s = settings();
    details.clear();
    if (!s.zoom || s.x !== "step" || exported) return;
    for (const run of chosen()) {
      const log = logs.get(run);
      if (log?.sampled || log?.every > 1) {
        details.set(run, await ask("curves", { run, first: Math.max(0, Math.floor(s.zoom[0])), last: Math.ceil(s.zoom[1]) }));
      }
    }
  }

  let drawing = null, last = "", again = false;
  async function refresh(force) {
    if (drawing) {
      again = again || Boolean(force); // what was asked for meanwhile is drawn next
      return drawing;
    }
    drawing = (async () => {
      try {
        do {
          again = false;
          await read(force);
          force = true;
        } while (again);
      } finally {
        drawing = null;
      }
    })();
    return drawing;
  }
  async function read(force) {
    let grew = force;
    const wanted = chosen();
    failed = "";
    const missing = wanted.filter((r) => !logs.has(r) || summaries().get(r)?.state === "live" || summaries().get(r)?.state === "starting" || force === "all");
    await Promise.all(missing.map(async (run) => {
      try {
        if (await follow(run)) grew = true;
      } catch (error) {
        failed = `${run}: ${error.message}`;
        grew = true;
      }
    }));
    const key = JSON.stringify([state.at.zoom, state.at.x, wanted]);
    if (key !== last) {
      last = key;
      await zoomed().catch((error) => (failed = error.message));
    }
    if (grew) draw();
  }
  host.append(bar, notes, settingsOf, body);
  return { element: host, refresh, changed: () => { const x = settings().x; if (host.dataset.x !== x) charts.clear(); host.dataset.x = x; return refresh(true); }, recolour: () => { charts.clear(); draw(); } };
}
