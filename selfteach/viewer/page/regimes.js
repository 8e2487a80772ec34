// The regimes, where claims are measured: a table that sorts, each with its curve, its control and its evidence.
import { chart, colour } from "./charts.js";
import { clip, sortableTable } from "./results.js";
import { ask, fill, go, h, message, number, percent, save, state, visible } from "./util.js";

const REGIME_COLUMNS = [["name", "regime"], ["status", "status"], ["what", "what for"], ["task", "task"], ["model", "model"], ["baseline", "baseline"], ["greedy", "greedy %"], ["sampled", "sampled %"], ["control", "shuffled rewards"], ["seconds", "seconds of training"], ["seeds", "seeds"]];
const STATUSES = ["admitted", "not admitted", "changed since measured", "not measured"];
const statusClass = (status) => "verdict " + (status === "admitted" ? "good" : status === "not admitted" ? "bad" : "");
const points = (v) => (v === null || v === undefined ? "–" : (v > 0 ? "+" : "") + percent(v) + " points");

function regimeCell(r, key) {
  if (key === "greedy" || key === "sampled") return h("td", { class: "n" }, r[key + "_shown"] || "–");
  if (key === "control") return h("td", { class: "n" }, points(r.control));
  if (key === "seconds" || key === "seeds") return h("td", { class: "n" }, number(r[key], 3));
  return h("td", { class: key === "status" ? statusClass(r.status) : null }, visible(r[key] || "–"));
}

export function regimesView() {
  const host = h("div"), opened = h("div");
  let rows = null;
  async function changed() {
    if (!rows) fill(host, message("Reading …"));
    try {
      rows ||= (await ask("regimes")).rows;
      const admitted = rows.filter((r) => r.status === "admitted").length;
      fill(host, opened, ...sortableTable({ rows, columns: REGIME_COLUMNS, first: "status", current: (r) => r.name === state.at.name, open: (r) => go({ name: r.name }), cell: regimeCell,
        of: (r, key) => (key === "status" ? STATUSES.indexOf(r.status) : r[key]), find: "find a regime, task, model", said: `${admitted} of ${rows.length} regimes are admitted; a row opens its curves and evidence.` }));
      await draw();
    } catch (error) {
      fill(host, message(error.message, "failed"));
    }
  }
  async function draw() {
    const name = state.at.name;
    if (!name) {
      opened.dataset.of = "";
      return fill(opened);
    }
    if (opened.dataset.of !== name) fill(opened, message(`Reading the regime ${name} …`));
    const regime = await ask("regime", { name });
    opened.dataset.of = name;
    if (name !== state.at.name) return;
    fill(opened, h("div", { class: "block" },
      h("div", { class: "actions" }, h("h2", {}, visible(regime.name)), h("button", { onclick: () => go({ name: "" }) }, "close ✕")),
      h("p", {}, visible(regime.doc)), regime.shows ? h("p", {}, "It shows that ", visible(regime.shows), ".") : null,
      h("p", {}, h("span", { class: statusClass(regime.status) }, regime.status), regime.why ? [": ", visible(regime.why)] : ""),
      h("div", { class: "grid" }, Object.entries(regime.curves).map(([kind, lines]) => curve(kind, lines, regime.ways))),
      h("details", {}, h("summary", {}, "What it is"), plainTable([], regime.rows)),
      ...regime.tables.map((t) => [h("h3", {}, visible(t.title)), plainTable(t.columns, t.rows)]),
      h("button", { class: "quiet", onclick: () => save(regime.name + ".json", JSON.stringify(regime, null, 1), "application/json") }, "download what is drawn, as JSON")));
    document.getElementById("main").scrollTop = 0;
  }
  return { element: host, changed, refresh: async () => {}, recolour: changed };
}

function curve(kind, lines, ways) {
  const steps = lines.flatMap((line) => line.points.map((p) => p.step));
  const drawn = lines.map((line, n) => ({ label: line.label, colour: colour(n), dash: n ? [6, 4] : null, markers: true, points: [line.points.map((p) => p.step), line.points.map((p) => p.mean)],
    low: line.points.some((p) => p.low !== null) ? line.points.map((p) => clip(p.low)) : null, high: line.points.map((p) => clip(p.high)) }));
  const forced = Object.entries(ways).filter(([, way]) => way[kind] !== null).map(([label, way], n) => ({ label, colour: colour(2 + n), dash: [2, 3], points: [[Math.min(...steps), Math.max(...steps)], [way[kind], way[kind]]] }));
  return chart({ title: `held-out accuracy, ${kind}`, about: ["mean over seeds with its 95 % interval, by steps; dashed: the control, whose rewards are shuffled; dotted: the start, forced to go one way", "", ""], key: "regime", lines: [...drawn, ...forced] });
}

function plainTable(columns, rows) {
  return h("div", { class: "wide" }, h("table", { class: "data" }, columns.length ? h("thead", {}, h("tr", {}, columns.map((c) => h("th", {}, visible(c))))) : null,
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((c) => h("td", {}, visible(c))))))));
}
