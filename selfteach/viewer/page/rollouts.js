// Rollouts: the list of a step (or a few), one read token by token, its group side by side, its task over steps, two runs.
import { chart, colour } from "./charts.js";
import { COLOURINGS, diffView, hideTip, lacking, pathsView, scaleOf, textOf } from "./tokens.js";
import { ask, exported, fileName, fill, go, h, linkTo, message, number, save, state, virtualList, visible } from "./util.js";

const MOST_STEPS = 20; // of a range at once
const COLUMNS = [["reward", "reward"], ["advantage", "advantage"], ["tokens", "length"], ["task", "text, task"]];

export const stepsOf = (word, logged) => {
  const out = [];
  for (const part of word.split(",")) {
    const [, a, b] = part.trim().match(/^(\d+)(?:\s*-\s*(\d+))?$/) || [];
    if (a === undefined) continue;
    for (const s of logged) if (s >= Number(a) && s <= Number(b ?? a)) out.push(s);
  }
  return [...new Set(out)].slice(0, MOST_STEPS);
};

const sign = (value) => (value > 0 ? "good" : value < 0 ? "bad" : "");

export function rolloutsView({ runs, chosen }) {
  let rows = [], shown = [], logged = [], of = null, loading = 0, matching = null, failed = "";
  const list = virtualList({
    rows: [], height: 52, label: "rollouts", onopen: (row) => go({ step: wordOf(row), episode: row.episode, at: row.at || "", show: "" }),
    draw: (row) => h("div", { class: "row" },
      h("span", { class: "n" }, row.reward === null ? "none" : number(row.reward, 3)),
      h("span", { class: "n " + (sign(row.advantage) || "quiet") }, row.advantage === null ? (row.learned ? "" : "–") : number(row.advantage, 2)),
      h("span", { class: "n quiet" }, String(row.tokens)),
      h("span", { class: "text", dir: "auto" }, visible(row.text.replace(/\s+/g, " ")) || "(nothing was sampled)"),
      h("small", {}, [visible(row.task), steps().length > 1 ? ` · step ${row.step}` : "", ` · ${row.status}`, row.role && row.role !== "policy" ? ` · ${visible(row.role)}` : "", row.turns > 1 ? ` · ${row.turns} turns` : "", row.forks ? ` · ${row.forks} forks` : "", row.learned ? "" : " · dropped"].join(""))),
  });
  const run = () => state.at.run || chosen()[0] || runs()[0]?.id || "";
  const steps = () => stepsOf(state.at.step || "", logged);
  const wordOf = (row) => (steps().includes(row.step) ? state.at.step : String(row.step));

  const bar = h("div", { class: "bar" }), status = h("div", { class: "status", role: "status" }), reading = h("div", { class: "reading", tabindex: "-1" });
  const heads = h("div", { class: "heads" });
  const split = h("div", { class: "split" }, h("div", { class: "pane list" }, bar, heads, status, list.element), h("div", { class: "pane read" }, reading));

  function drawBar() {
    if (bar.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    const move = (by) => {
      const at = logged.indexOf(steps()[0]);
      const next = logged[Math.max(0, Math.min(logged.length - 1, at + by))];
      if (next !== undefined) go({ step: next, episode: "", at: "" });
    };
    const filter = (name, label, values) => values.length > 1 ? h("select", { "aria-label": label, onchange: (e) => go({ [name]: e.target.value }) }, h("option", { value: "" }, label), values.map((v) => h("option", { value: v, selected: state.at[name] === v }, visible(v)))) : null;
    const unique = (key) => [...new Set(rows.map((r) => r[key]))].filter(Boolean).sort();
    fill(bar, 
      h("select", { "aria-label": "run", onchange: (e) => go({ run: e.target.value, step: "", episode: "", task: "" }) }, runs().filter((r) => r.has_rollouts || r.id === run()).map((r) => h("option", { value: r.id, selected: r.id === run() }, r.id))),
      h("button", { "aria-label": "earlier step", title: "earlier step ( [ )", onclick: () => move(-1) }, "‹"),
      h("input", { type: "text", class: "step", "aria-label": "step, or steps as 5-9", title: `steps ${logged[0] ?? ""} to ${logged.at(-1) ?? ""}; several as 5-9`, value: state.at.step || "", onchange: (e) => go({ step: e.target.value.trim(), episode: "", at: "" }) }),
      h("button", { "aria-label": "later step", title: "later step ( ] )", onclick: () => move(1) }, "›"),
      h("input", { type: "search", "aria-label": "text", placeholder: "text in prompt or response", value: state.at.q || "", onchange: (e) => go({ q: e.target.value }), oninput: (e) => e.target.value === "" && go({ q: "" }) }),
      h("input", { type: "search", "aria-label": "task", placeholder: "task", value: state.at.task || "", oninput: (e) => go({ task: e.target.value }, "rollouts", true) }),
      filter("role", "every role", unique("role")), filter("status", "every status", unique("status")),
      filter("program", "every program", unique("program")),
      h("select", { "aria-label": "reward", onchange: (e) => go({ reward: e.target.value }) }, [["", "every reward"], ["high", "above the step's mean"], ["low", "below the step's mean"], ["none", "without a reward"], ["dropped", "dropped, not learned"]].map(([v, text]) => h("option", { value: v, selected: (state.at.reward || "") === v }, text))),
    );
    fill(heads, ...COLUMNS.map(([key, text]) => {
      const own = (state.at.sort || "").replace("-", "") === key;
      return h("button", { "aria-sort": own ? (state.at.sort.startsWith("-") ? "descending" : "ascending") : null, onclick: () => go({ sort: !own ? "-" + key : state.at.sort.startsWith("-") ? key : "" }) }, text + (own ? (state.at.sort.startsWith("-") ? " ↓" : " ↑") : ""));
    }));
  }

  async function load() {
    const name = run();
    if (!name) {
      failed = "";
      return;
    }
    const answer = await ask("steps", { run: name });
    logged = answer.steps;
    if (!state.at.step && logged.length) {
      const wanted = { ...state.at, run: name, step: String(logged.at(-1)) };
      history.replaceState(null, "", linkTo("rollouts", wanted));
      state.at = wanted;
    }
    const key = [name, ...steps()].join("|");
    if (key === of) return;
    of = key;
    const own = ++loading;
    rows = [];
    for (const step of steps()) {
      let first = 0, total = 1;
      while (first < total) {
        const page = await ask("rows", { run: name, step, first, count: first ? 2500 : 200 });
        if (own !== loading) return;
        total = page.total;
        rows = rows.concat(page.rows);
        first += page.rows.length;
        filterRows(first < total ? ` · reading, ${rows.length} of ${total}` : "");
        if (!page.rows.length) break;
      }
    }
  }

  async function search() {
    const q = state.at.q || "";
    if (!q) {
      matching = null;
      return;
    }
    const key = [of, q].join("|");
    if (matching?.key === key) return;
    const found = new Set();
    for (const step of steps()) {
      const answer = await ask("search", { run: run(), step, q });
      answer.rows.forEach((i) => found.add(step + "/" + i));
    }
    matching = { key, found };
  }

  function filterRows(more = "") {
    const s = state.at;
    const counts = new Map();
    const known = rows.map((r) => r.reward).filter((v) => v !== null);
    const mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
    shown = rows.filter((r) => {
      const i = counts.get(r.step) || 0;
      counts.set(r.step, i + 1);
      if (matching && !matching.found.has(r.step + "/" + i)) return false;
      if (s.task && !r.task.includes(s.task)) return false;
      if (s.role && r.role !== s.role) return false;
      if (s.status && r.status !== s.status) return false;
      if (s.program && r.program !== s.program) return false;
      if (s.group && r.group !== s.group) return false;
      if (s.reward === "high" && !(r.reward > mean)) return false;
      if (s.reward === "low" && !(r.reward !== null && r.reward < mean)) return false;
      if (s.reward === "none" && r.reward !== null) return false;
      if (s.reward === "dropped" && r.learned) return false;
      return true;
    });
    if (s.sort) {
      const key = s.sort.replace("-", ""), down = s.sort.startsWith("-") ? -1 : 1;
      const last = (v) => v === null || v === undefined;
      shown.sort((a, b) => (last(a[key]) - last(b[key])) || down * (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0));
    }
    list.set(shown, true);
    list.mark(shown.findIndex((r) => r.episode === s.episode && String(r.at || "") === (s.at || "")));
    status.textContent = rows.length ? `${number(shown.length)} of ${number(rows.length)} rollouts · mean reward ${number(mean, 3)}${s.q ? ` · with “${visible(s.q)}”` : ""}${more}` : failed || (logged.length ? "No such step; the log has " + (logged[0] === logged.at(-1) ? logged[0] : `${logged[0]} to ${logged.at(-1)}`) + "." : "The log has no rollouts yet.");
  }

  // ---- one rollout

  let reader = 0;
  async function read() {
    hideTip();
    const own = ++reader;
    const s = state.at, name = run();
    split.classList.toggle("reading-now", Boolean(s.episode));
    if (!s.episode) {
      fill(reading, message(rows.length ? "Choose a rollout: its prompt, every token, the score with its parts and reasons. Arrow keys move through the list." : "No rollouts to read."));
      return;
    }
    const step = Number(s.episode.split("/")[1]);
    const at = rows.find((r) => r.episode === s.episode)?.step ?? (Number.isInteger(step) ? step : steps()[0]);
    const e = await ask("episode", { run: name, step: at, episode: s.episode });
    if (own !== reader) return;
    const show = s.show || "tokens", colouring = s.colour || "none";
    const tab = (key, text) => h("button", { "aria-pressed": String(show === key), onclick: () => go({ show: key === "tokens" ? "" : key }) }, text);
    const task = runs().find((r) => r.id === name)?.task;
    const others = runs().filter((r) => r.id !== name && r.has_rollouts).sort((a, b) => (b.task === task) - (a.task === task));
    const lack = lacking(colouring, e.paths);
    const body = h("div");
    fill(reading, 
      h("header", {},
        h("div", { class: "actions" }, h("button", { class: "back", onclick: () => go({ episode: "", at: "" }) }, "‹ list"), tab("tokens", "Rollout"), tab("group", "Its group"), tab("task", "Task over steps"), others.length ? tab("other", "Another run") : null,
          h("a", { href: linkTo("trees", { runs: s.runs, run: name, step: at, episode: e.episode }) }, e.tree.length > 2 || e.paths.length > 1 ? `as a tree (${e.tree.length} nodes)` : "as a tree"),
          h("button", { class: "quiet", onclick: () => save(fileName(e.episode) + ".json", JSON.stringify(e, null, 1), "application/json") }, "JSON")),
        h("h2", {}, visible(e.task || e.episode)),
        h("div", { class: "facts" }, [["episode", e.episode], ["step", at], ["group", e.group], e.program && e.program !== "main" ? ["program", e.program] : null, e.status !== "done" ? ["episode", `${e.status}${e.why ? ": " + e.why : ""}`] : null, ["answer", plain(e.answer)], ["reference", plain(e.reference)], ...Object.entries(e.cost).map(([k, v]) => [k, number(v)])].filter(Boolean).map(([k, v]) => h("span", {}, k + " ", h("b", { dir: "auto" }, visible(v))))),
        e.note ? h("p", { class: "note" }, visible(e.note)) : null,
        ["tokens", "group"].includes(show) ? h("div", { class: "actions" }, h("label", { class: "hint" }, "coloured by ", h("select", { "aria-label": "colour of tokens", onchange: (x) => go({ colour: x.target.value === "none" ? "" : x.target.value }) }, Object.entries(COLOURINGS).map(([k, text]) => h("option", { value: k, selected: k === colouring }, text)))), scaleOf(colouring, e.paths), lack ? h("span", { class: "hint" }, lack) : h("span", { class: "hint" }, e.paths.some((p) => p.pieces.some((x) => x.advantage?.includes(null))) ? "dotted: not learned" : "")) : null),
      body);
    if (show === "tokens") body.append(...pathsView(s.at && e.paths[s.at] ? [e.paths[s.at]] : e.paths, colouring, true, e.calls), ...(s.at && e.paths.length > 1 ? [h("button", { onclick: () => go({ at: "" }) }, `all ${e.paths.length} trajectories of the episode`)] : []));
    else if (show === "group") await readGroup(body, e, at, name, colouring, own);
    else if (show === "task") await readTask(body, e, name, own);
    else await readOther(body, e, at, name, others, own);
  }

  async function readGroup(body, e, at, name, colouring, own) {
    const members = [...new Set(rows.filter((r) => r.step === at && r.group === e.group).map((r) => r.episode))];
    const found = await Promise.all(members.slice(0, 24).map((episode) => ask("episode", { run: name, step: at, episode })));
    if (own !== reader) return;
    body.append(h("p", { class: "hint" }, `${members.length} episodes are compared with each other${members.length > 24 ? "; the first 24 of them" : ""}. The prompt stands above the first.`),
      h("div", { class: "members" }, found.map((x, i) => h("div", {}, h("p", { class: "hint" }, h("a", { href: linkTo("rollouts", { ...state.at, episode: x.episode, at: "", show: "" }) }, x.episode === e.episode ? "this one" : `member ${i + 1}`)), pathsView(x.paths, colouring, i === 0, x.calls)))));
  }

  async function readTask(body, e, name, own) {
    const found = [], place = h("div"), note = h("p", { class: "hint" });
    body.append(note, place);
    let after = -1, more = true;
    while (more) {
      const answer = await ask("follow", { run: name, task: e.task, after });
      if (own !== reader) return;
      found.push(...answer.found);
      [after, more] = [answer.read, answer.more];
      note.textContent = more ? `reading step ${after} …` : found.length === 1 ? "This task was drawn in this step alone." : `This task was drawn in ${found.length} steps.`;
    }
    const value = (rewards) => { const known = rewards.filter((v) => v !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
    if (found.length > 1) place.append(chart({ title: "mean reward of this task", about: ["mean over the episodes of the task in a step", "", ""], lines: [{ label: e.task, colour: colour(0), points: [found.map(([s]) => s), found.map(([, r]) => value(r))], markers: true }] }));
    place.append(h("div", { class: "wide" }, h("table", { class: "data" }, h("thead", {}, h("tr", {}, ["step", "mean reward", "rewards"].map((t) => h("th", {}, t)))), h("tbody", {}, found.map(([step, rewards]) => h("tr", { class: "link", tabindex: "0", onclick: () => go({ step, task: e.task, episode: "", show: "" }), onkeydown: (x) => x.key === "Enter" && go({ step, task: e.task, episode: "", show: "" }) }, h("td", {}, String(step)), h("td", {}, number(value(rewards), 3)), h("td", {}, rewards.map((v) => (v === null ? "none" : number(v, 3))).join("  "))))))));
  }

  async function readOther(body, e, at, name, others, own) {
    const other = state.at.vs || others[0].id;
    const pick = h("select", { "aria-label": "the other run", onchange: (x) => go({ vs: x.target.value }) }, others.map((r) => h("option", { value: r.id, selected: r.id === other }, r.id)));
    body.append(h("div", { class: "actions" }, h("span", { class: "hint" }, "the same task in"), pick));
    let after = -1, more = true, steps = [];
    while (more) {
      const answer = await ask("follow", { run: other, task: e.task, after });
      if (own !== reader) return;
      steps.push(...answer.found.map(([s]) => s));
      [after, more] = [answer.read, answer.more];
    }
    if (!steps.length) return body.append(message(`${other} was not given the task ${e.task}. Runs of one seed are given the same tasks in the same steps.`));
    const step = steps.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
    const page = await ask("rows", { run: other, step, first: 0, count: 4000 });
    const same = page.rows.filter((r) => r.task === e.task);
    const index = rows.filter((r) => r.step === at && r.task === e.task).findIndex((r) => r.episode === e.episode);
    const match = same[Math.max(0, index) % same.length];
    const found = await ask("episode", { run: other, step, episode: match.episode });
    if (own !== reader) return;
    const mine = e.paths.at(-1), theirs = found.paths.at(-1);
    body.append(
      h("p", { class: "hint" }, `Step ${step} there${step === at ? "" : ", the nearest with this task"}. Words of this run alone are red, of the other alone green.`),
      h("div", { class: "path" }, h("div", { class: "piece" }, diffView(textOf(mine), textOf(theirs)))),
      h("div", { class: "members" }, [[name, e], [other, found]].map(([title, x]) => h("div", {}, h("p", { class: "hint" }, visible(title)), pathsView([x.paths.at(-1)], "none", false, x.calls)))));
  }

  async function changed() {
    try {
      failed = "";
      await load();
      await search();
      filterRows();
      drawBar();
      await read();
    } catch (error) {
      of = null;
      failed = error.message;
      drawBar();
      filterRows();
      fill(reading, message(error.message, "failed"));
    }
  }
  async function refresh() {
    const name = run();
    if (!name || exported) return;
    const answer = await ask("steps", { run: name });
    if (answer.steps.length !== logged.length) {
      const first = !logged.length;
      logged = answer.steps;
      if (first) await changed();
      else drawBar();
    }
  }
  const keys = { "[": () => bar.querySelector("[aria-label='earlier step']")?.click(), "]": () => bar.querySelector("[aria-label='later step']")?.click(), Escape: () => state.at.episode && go({ episode: "", at: "" }) };
  return { element: split, changed, refresh, keys, filled: true, recolour: () => read() };
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
