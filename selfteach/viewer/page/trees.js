// An episode as a tree: forks and searches with visits, values and credit; self-play as a conversation.
import { isDark } from "./charts.js";
import { stepsOf } from "./rollouts.js";
import { ask, cut, fill, go, h, linkTo, message, number, state, svg, visible } from "./util.js";

const ROW = 34, INDENT = 18;

export function treesView({ runs, chosen }) {
  const bar = h("div", { class: "bar" }), body = h("div"), host = h("div", {}, bar, body);
  let logged = [], episodes = [], of = "", reader = 0, folded = new Set();
  const run = () => state.at.run || chosen()[0] || runs()[0]?.id || "";

  async function changed() {
    const own = ++reader;
    try {
      const name = run();
      if (!body.childElementCount) fill(body, message("Reading …"));
      if (!name) return fill(body, message("There are no runs here yet."));
      logged = (await ask("steps", { run: name })).steps;
      if (!logged.length) {
        fill(bar);
        return fill(body, message("The log of this run has no rollouts yet."));
      }
      const step = stepsOf(state.at.step || "", logged)[0] ?? logged.at(-1);
      if (of !== name + "|" + step) {
        const answer = await ask("rows", { run: name, step, first: 0, count: 4000 });
        if (own !== reader) return;
        const by = new Map();
        for (const row of answer.rows) if (!by.has(row.episode) || row.reward !== null) by.set(row.episode, row);
        episodes = [...by.values()];
        of = name + "|" + step;
        folded = new Set();
      }
      // a tree is looked for first where there is one
      const first = [...episodes].sort((a, b) => b.forks - a.forks || b.paths - a.paths)[0];
      const episode = episodes.some((r) => r.episode === state.at.episode) ? state.at.episode : first?.episode;
      drawBar(name, step, episode);
      if (!episode) return fill(body, message("This step has no episodes."));
      const found = await ask("episode", { run: name, step, episode });
      if (own === reader) draw(found, name, step);
    } catch (error) {
      of = "";
      fill(body, message(error.message, "failed"));
    }
  }

  function drawBar(name, step, episode) {
    const at = logged.indexOf(step);
    fill(bar, 
      h("select", { "aria-label": "run", onchange: (e) => go({ run: e.target.value, step: "", episode: "" }) }, runs().filter((r) => r.has_rollouts || r.id === name).map((r) => h("option", { value: r.id, selected: r.id === name }, r.id))),
      h("button", { "aria-label": "earlier step", disabled: at <= 0, onclick: () => go({ step: logged[at - 1], episode: "" }) }, "‹"),
      h("label", {}, "step", h("select", { "aria-label": "step", onchange: (e) => go({ step: e.target.value, episode: "" }) }, logged.map((s) => h("option", { value: s, selected: s === step }, String(s))))),
      h("button", { "aria-label": "later step", disabled: at >= logged.length - 1, onclick: () => go({ step: logged[at + 1], episode: "" }) }, "›"),
      h("label", {}, "episode", h("select", { "aria-label": "episode", onchange: (e) => go({ step, episode: e.target.value, node: "" }) }, episodes.slice(0, 2000).map((r) => h("option", { value: r.episode, selected: r.episode === episode }, `${visible(cut(r.task, 40))} · ${r.forks} forks · ${r.paths} trajectories · reward ${number(r.reward, 3)}`)))),
      h("a", { href: linkTo("rollouts", { runs: state.at.runs, run: name, step, episode }) }, "as tokens"),
    );
  }

  function draw(e, name, step) {
    const nodes = e.tree;
    const children = nodes.map(() => []);
    const roots = [];
    nodes.forEach((node, i) => (node.parent < 0 ? roots : children[node.parent]).push(i));
    const order = [];
    const walk = (i, depth, rails) => {
      order.push({ i, depth, rails });
      if (folded.has(i)) return;
      const below = children[i];
      // a chain without forks does not move to the right
      const indent = below.length > 1 ? depth + 1 : depth;
      below.forEach((k) => walk(k, indent, rails));
    };
    roots.forEach((i) => walk(i, 0, []));
    const value = (n) => n.notes.value ?? n.notes.payoff ?? n.scores.find((s) => s.column === "reward")?.value ?? n.credit;
    const values = nodes.map(value).filter((v) => typeof v === "number");
    const most = Math.max(1e-9, ...values.map(Math.abs)), visits = Math.max(1, ...nodes.map((n) => n.notes.visits || 0));
    const forks = children.filter((c) => c.length > 1).length;
    const at = Number(state.at.node || -1);
    const has = (key) => nodes.some((n) => n.notes[key] !== undefined);
    const lacks = [has("visits") ? "" : "visits", has("value") ? "" : "values", nodes.some((n) => n.credit !== null) ? "" : "credit of tokens"].filter(Boolean);
    const detail = h("div");
    const rows = order.map(({ i, depth }) => nodeRow(nodes[i], i, depth, { most, visits, value: value(nodes[i]), leaf: !children[i].length, below: children[i].length, folded: folded.has(i), chosen: i === at }));
    const tree = h("div", { class: "tree", role: "tree", tabindex: "0", "aria-label": "tree of the episode" }, rows);
    const select = (i) => go({ step, episode: e.episode, node: i }, "trees", true);
    tree.addEventListener("click", (x) => {
      const row = x.target.closest(".tnode");
      if (!row) return;
      const i = Number(row.dataset.i);
      if (x.target.closest(".fold")) {
        if (folded.has(i)) folded.delete(i);
        else folded.add(i);
        draw(e, name, step);
      } else select(i);
    });
    tree.addEventListener("keydown", (x) => {
      const place = order.findIndex((o) => o.i === at);
      const next = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[x.key];
      if (next) select(order[Math.max(0, Math.min(order.length - 1, place + next))].i);
      else if ((x.key === "ArrowLeft" || x.key === "ArrowRight") && at >= 0 && children[at].length) {
        if (x.key === "ArrowLeft") folded.add(at);
        else folded.delete(at);
        draw(e, name, step);
      } else return;
      x.preventDefault();
      x.stopPropagation();
      requestAnimationFrame(() => document.querySelector(".tree")?.focus());
    });
    if (at >= 0 && nodes[at]) detail.append(nodeDetail(nodes[at], at));
    const speakers = new Set(nodes.filter((n) => n.kind === "sampled").map((n) => n.role));
    fill(body, 
      h("h2", {}, visible(e.task)),
      h("div", { class: "facts" }, [["nodes", nodes.length], ["forks", forks], ["trajectories", e.paths.length], ["status", e.status], ["answer", typeof e.answer === "string" ? e.answer : JSON.stringify(e.answer)], e.why ? ["why", e.why] : null].filter(Boolean).map(([k, v]) => h("span", {}, k + " ", h("b", {}, visible(v))))),
      e.note ? h("p", { class: "note" }, visible(e.note)) : null,
      lacks.length ? h("p", { class: "hint" }, `The log of this episode has no ${lacks.join(", no ")}${forks ? "" : "; it is one line without forks"}.`) : null,
      detail,
      tree,
      roots.length > 1 || speakers.size > 1 ? talk(nodes) : null,
    );
  }

  function nodeRow(n, i, depth, { most, visits, value, leaf, below, folded: shut, chosen: on }) {
    const known = typeof value === "number", part = known ? Math.max(-1, Math.min(1, value / most)) : 0;
    const blue = isDark() ? "#56b4e9" : "#0072b2", orange = isDark() ? "#ff9e57" : "#d55e00";
    const radius = 4 + 5 * Math.sqrt((n.notes.visits || 0) / visits);
    const width = INDENT * depth + 24;
    const x = INDENT * depth + 12;
    const picture = svg("svg", { width, height: ROW, "aria-hidden": "true" });
    for (let d = 0; d < depth; d++) picture.append(svg("line", { x1: INDENT * d + 12, x2: INDENT * d + 12, y1: 0, y2: ROW, stroke: "var(--line)" }));
    if (depth) picture.append(svg("line", { x1: INDENT * (depth - 1) + 12, x2: x, y1: ROW / 2, y2: ROW / 2, stroke: "var(--line)" }));
    if (n.parent >= 0 || !leaf) picture.append(svg("line", { x1: x, x2: x, y1: n.parent < 0 ? ROW / 2 : 0, y2: leaf ? ROW / 2 : ROW, stroke: "var(--line)" }));
    picture.append(svg("circle", { cx: x, cy: ROW / 2, r: radius, fill: known ? (part >= 0 ? blue : orange) : "var(--panel)", "fill-opacity": known ? 0.25 + 0.75 * Math.abs(part) : 1, stroke: n.kind === "sampled" ? "var(--text)" : "var(--quiet)", "stroke-dasharray": n.kind === "sampled" ? null : "2 2" }));
    const chip = (name, v, extra = "") => h("span", { class: "chip " + extra }, `${name} ${v}`);
    const chips = Object.entries(n.notes).filter(([, v]) => typeof v === "number").slice(0, 4).map(([k, v]) => chip(visible(k), number(v, 3)));
    for (const s of n.scores.slice(0, 2)) chips.push(chip(visible(s.column), s.value === null ? "none" : number(s.value, 3), s.value > 0 ? "good" : s.value < 0 ? "bad" : ""));
    if (n.credit !== null) chips.push(chip("credit", number(n.credit, 3), n.credit > 0 ? "good" : n.credit < 0 ? "bad" : ""));
    for (const c of n.closed) if (c.stream === null) chips.push(chip("", "vine, not learned"));
    const fold = below > 1 || shut ? h("button", { class: "quiet fold", "aria-label": shut ? "unfold" : "fold" }, shut ? `▸ ${below}` : "▾") : null;
    return h("div", { class: "tnode", role: "treeitem", "data-i": i, "aria-selected": String(on), "aria-level": depth + 1 },
      h("span", { class: "left" }, picture, fold, h("span", { class: "what", dir: "auto" }, n.cut < n.of ? h("small", { class: "hint" }, `from token ${n.cut} of ${n.of}: `) : null, visible(cut(n.text.replace(/\s+/g, " "), 220)) || `(${n.tokens} tokens)`)),
      h("span", { class: "chips" }, chips));
  }

  function nodeDetail(n, i) {
    const facts = [["node", i], ["written by", n.kind === "sampled" ? n.role : n.kind], ["tokens", n.tokens], n.logp !== null ? ["log-probability", number(n.logp)] : null, n.learned ? ["learned", `${n.learned} tokens`] : null, n.credit !== null ? ["mean advantage", number(n.credit)] : null, ...Object.entries(n.notes).map(([k, v]) => [k, Array.isArray(v) ? v.map((x) => number(x, 3)).join(", ") : number(v)]), ...n.scores.map((s) => [s.column, (s.value === null ? "none" : number(s.value)) + (s.why ? ` (${s.why})` : "")])];
    return h("article", { class: "path" }, h("header", {}, h("div", { class: "facts" }, facts.filter(Boolean).map(([k, v]) => h("span", {}, visible(k) + " ", h("b", {}, visible(v)))))), h("div", { class: "piece " + n.kind }, h("div", { class: "text", dir: "auto" }, visible(n.text))));
  }

  // Nodes stand in the order in which they were written, so several contexts together are a conversation.
  function talk(nodes) {
    const rootOf = [];
    nodes.forEach((n, i) => (rootOf[i] = n.parent < 0 ? i : rootOf[n.parent]));
    const seats = [...new Set(rootOf)];
    const games = seats.length <= 8;
    const chosenSeat = (i) => seats.indexOf(rootOf[i]);
    return h("div", { class: "block" }, h("h2", {}, "As a conversation"),
      h("p", { class: "hint" }, `${seats.length} contexts${games ? "" : ""}, in the order in which they were written; the first speaks on the left.`),
      h("div", { class: "talk" }, nodes.slice(0, 400).map((n, i) => h("div", { class: `bubble ${n.kind} ${chosenSeat(i) % 2 ? "other" : ""}` }, h("div", { class: "who" }, h("b", {}, visible(n.role) + (seats.length > 1 ? ` ${chosenSeat(i) + 1}` : "")), n.kind === "sampled" ? "" : n.kind === "prompt" ? " · is told" : " · reads", n.notes.payoff !== undefined ? ` · payoff ${number(n.notes.payoff, 3)}` : ""), h("div", { class: "text", dir: "auto" }, visible(cut(n.text, 3000)))))),
      nodes.length > 400 ? h("p", { class: "hint" }, `${nodes.length - 400} more are in the tree above.`) : null);
  }

  return { element: host, changed, refresh: async () => {}, recolour: changed };
}
