// What all views share: elements, the state in the address, requests, numbers, text that cannot do harm.

// An element. Text is always a text node: nothing that a model wrote is ever parsed as HTML.
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (name === "value" || name === "checked" || name === "selected" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// The children of an element, anew; what is nothing is left out, as in `h`.
export function fill(element, ...children) {
  if (!element) return;
  element.replaceChildren();
  append(element, children);
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  append(element, children);
  return element;
}

// Characters that would be invisible, or turn the text around them (ANSI escapes, marks of direction), are written out.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
export function visible(text) {
  return String(text).replace(UNSEEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

export function cut(text, most) {
  return text.length > most ? text.slice(0, most) + "…" : text;
}

// ---- the state of the page, in the address: every view is a link

export const VIEWS = { curves: "Curves", rollouts: "Rollouts", trees: "Trees", compare: "Compare", ledger: "Ledger", regimes: "Regimes" };
export const state = { view: "curves", at: {} };

// The views that have something to show: an exported file may hold the ledger alone.
export function heldViews() {
  if (!exported) return Object.keys(VIEWS);
  const { runs, results } = exported["home?"] || { runs: [], results: [] };
  const held = { curves: runs.length, rollouts: runs.length, trees: runs.length, compare: results.length, ledger: exported["ledger?"], regimes: exported["regimes?"] };
  return Object.keys(VIEWS).filter((name) => held[name]);
}

export function readHash() {
  const [view, query] = location.hash.replace(/^#/, "").split("?");
  const held = heldViews();
  state.view = held.includes(view) ? view : held[0] || "curves";
  state.at = Object.fromEntries(new URLSearchParams(query || ""));
}

export function linkTo(view, at) {
  const query = new URLSearchParams(Object.entries(at).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  const text = query.toString();
  return "#" + view + (text ? "?" + text : "");
}

// Change some of the state; `replace`: without a new entry in the history (typing, dragging).
export function go(change, view = state.view, replace = false) {
  const link = linkTo(view, { ...state.at, ...change });
  if (link === location.hash) return;
  if (replace) {
    history.replaceState(null, "", link);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = link;
}

// ---- requests: to the server, or to what an exported file holds

const element = document.getElementById("data");
export const exported = element ? {} : null;

// Unpack what an exported file holds: JSON, compressed, in base 64.
export async function readExported() {
  if (!exported) return;
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  Object.assign(exported, await new Response(stream).json());
  element.textContent = "";
}

export class Refused extends Error {}

export async function ask(name, parameters = {}) {
  if (exported) return askExported(name, parameters);
  let response;
  try {
    response = await fetch("api/" + name + "?" + new URLSearchParams(parameters));
  } catch {
    throw new Refused("The page's server does not answer; start selfteach view again, and open the address that it prints.");
  }
  const answer = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Refused(answer.error || `The server answered ${response.status}.`);
  return answer;
}

function askExported(name, parameters) {
  const key = (p) => name + "?" + Object.keys(p).sort().map((k) => `${k}=${p[k]}`).join("&");
  const kept = { ...parameters };
  delete kept.count;
  if (name === "search") return { rows: searchExported(parameters) };
  if (name === "follow") return { found: followExported(parameters), read: Infinity, more: false };
  if (name === "curves" && Number(kept.offset) > 0) return { metrics: {}, evals: {}, about: {}, offset: Number(kept.offset) };
  const answer = exported[key(kept)];
  if (!answer) throw new Refused("This file does not hold that; its maker chose which rollouts it takes along.");
  if (answer.error) throw new Refused(answer.error);
  return answer;
}

function rowsExported(run, step) {
  const answer = exported[`rows?first=0&run=${run}&step=${step}`];
  return answer ? answer.rows : [];
}

function searchExported({ run, step, q }) {
  const sought = q.toLowerCase();
  return rowsExported(run, step).flatMap((row, i) => {
    const episode = exported[`episode?episode=${row.episode}&run=${run}&step=${step}`];
    const path = episode && episode.paths[row.at];
    const text = path ? path.pieces.map((p) => p.text.join("")).join("") : row.text;
    return text.toLowerCase().includes(sought) ? [i] : [];
  });
}

function followExported({ run, task }) {
  const steps = (exported[`steps?run=${run}`] || { steps: [] }).steps;
  return steps.flatMap((step) => {
    const rewards = rowsExported(run, step).filter((r) => r.task === task).map((r) => r.reward);
    return rewards.length ? [[step, rewards]] : [];
  });
}

// ---- what one reader prefers, kept where the browser allows it

export function remembered(name) {
  try {
    return JSON.parse(localStorage.getItem("selfteach." + name)) || {};
  } catch {
    return {};
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem("selfteach." + name, JSON.stringify(value));
  } catch {
    // a browser that keeps nothing shows the same page the next time
  }
}

// ---- numbers

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e5 || (size < 1e-4 && size > 0)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export function percent(value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(1);
}

export function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  if (s < 90) return Math.round(s) + " s ago";
  if (s < 5400) return Math.round(s / 60) + " min ago";
  if (s < 129600) return Math.round(s / 3600) + " h ago";
  return Math.round(s / 86400) + " d ago";
}

export function save(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 5000);
}

export function fileName(text) {
  return text.replace(/[^\w.=-]+/g, "_").slice(0, 100);
}

export function message(text, kind = "empty") {
  return h("p", { class: kind, role: kind === "failed" ? "alert" : null }, visible(text));
}

// A list that draws only the rows that are seen: ten thousand stay smooth.
export function virtualList({ rows, height, draw, label, onopen }) {
  const space = h("div", { class: "vspace" });
  const box = h("div", { class: "vlist", tabindex: "0", role: "listbox", "aria-label": label }, space);
  let from = -1, upto = -1, at = -1;
  const drawn = new Map();
  function show(force) {
    const first = Math.max(0, Math.floor(box.scrollTop / height) - 6);
    const last = Math.min(rows.length, Math.ceil((box.scrollTop + (box.clientHeight || 600)) / height) + 6);
    if (!force && first === from && last === upto) return;
    from = first;
    upto = last;
    for (const [i, element] of drawn) {
      if (force || i < first || i >= last) {
        element.remove();
        drawn.delete(i);
      }
    }
    for (let i = first; i < last; i++) {
      if (drawn.has(i)) continue;
      const element = draw(rows[i], i);
      element.classList.add("vrow");
      element.setAttribute("role", "option");
      element.setAttribute("aria-selected", i === at ? "true" : "false");
      element.style.transform = `translateY(${i * height}px)`;
      element.style.height = height + "px";
      element.addEventListener("click", () => select(i, true));
      drawn.set(i, element);
      space.append(element);
    }
  }
  function select(i, open) {
    if (i < 0 || i >= rows.length) return;
    drawn.get(at)?.setAttribute("aria-selected", "false");
    at = i;
    if (i * height < box.scrollTop || !box.clientHeight) box.scrollTop = i * height;
    else if ((i + 1) * height > box.scrollTop + box.clientHeight) box.scrollTop = (i + 1) * height - box.clientHeight;
    show();
    drawn.get(at)?.setAttribute("aria-selected", "true");
    if (open) onopen(rows[i], i);
  }
  box.addEventListener("scroll", () => requestAnimationFrame(() => show()), { passive: true });
  box.addEventListener("keydown", (e) => {
    const page = Math.max(1, Math.floor(box.clientHeight / height) - 1);
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page }[e.key];
    if (step) select(Math.max(0, Math.min(rows.length - 1, at + step)), true);
    else if (e.key === "Home") select(0, true);
    else if (e.key === "End") select(rows.length - 1, true);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
  new ResizeObserver(() => show()).observe(box);
  return {
    element: box,
    set(next, keep) {
      rows = next;
      at = -1;
      space.style.height = rows.length * height + "px";
      if (!keep) box.scrollTop = 0;
      show(true);
    },
    mark(i) {
      at = -1;
      if (i >= 0) select(i, false);
    },
  };
}
