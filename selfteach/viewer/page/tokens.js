// A trajectory, token by token: who wrote each, what was learned of it, and one quantity of it as a colour.
import { isDark } from "./charts.js";
import { h, number, visible } from "./util.js";

export const COLOURINGS = {
  none: "who wrote it",
  advantage: "advantage",
  logp: "log-probability",
  entropy: "entropy",
  gap: "gap of sampler and learner",
  staleness: "staleness: versions behind the learner",
  version: "version of the weights",
};
const WHO = { prompt: "prompt", sampled: "sampled by", adopted: "put in as the words of", context: "context, from a tool, an environment or the program" };
const MOST_TOKENS = 1500; // of a piece before "show all"
const FOLDED_TOKENS = 400; // a span this long begins folded

// A colour of a diverging or a rising scale: blue and orange, apart for every kind of colour vision.
function shade(kind, value, most) {
  if (value === null || value === undefined) return "";
  const part = Math.max(-1, Math.min(1, most ? value / most : 0));
  const alpha = (0.06 + 0.4 * Math.abs(part)).toFixed(2);
  if (TWO_SIDED.has(kind)) return part === 0 ? "" : part > 0 ? `rgb(${isDark() ? "86 180 233" : "0 114 178"} / ${alpha})` : `rgb(${isDark() ? "255 140 60" : "213 94 0"} / ${alpha})`;
  return `rgb(${isDark() ? "240 170 80" : "213 94 0"} / ${(0.75 * Math.abs(part)).toFixed(2)})`;
}

const TWO_SIDED = new Set(["advantage", "gap"]);
const VERSIONS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

// What a colouring needs that the log does not have, in words; "" where it has it.
export function lacking(colouring, paths) {
  if (colouring === "none") return "";
  if (paths.some((p) => p.pieces.some((piece) => piece[colouring]))) return "";
  return {
    advantage: paths.some((p) => p.advantage !== null && p.advantage !== undefined)
      ? "Which of the tokens the advantages belong to cannot be told from this log; the mean of each trajectory stands at its head."
      : "The log has no advantages of this episode: nothing of it was learned, or the method has none.",
    logp: "The log has no log-probabilities of these tokens: they were put in, not sampled.",
    entropy: "The log has no entropy of each token: it is computed only where a method reads it. The log-probability is the nearest that there is.",
    gap: "The gap of these tokens was not measured: of each step it is for one sequence in sixteen, at most eight (all where a method reads the learner's log-probability). The curves have its mean, 99th percentile and largest value by step.",
    staleness: "None of these tokens was learned, or the log is of a selfteach that did not write which version learned.",
    version: "The log has no versions for these tokens.",
  }[colouring];
}

function mostOf(colouring, paths) {
  let most = 0;
  for (const path of paths) for (const piece of path.pieces) for (const v of piece[colouring] || []) if (v !== null && Math.abs(v) > most) most = Math.abs(v);
  return most;
}

export function scaleOf(colouring, paths) {
  const most = mostOf(colouring, paths);
  if (colouring === "none" || !most) return null;
  if (colouring === "version") {
    const seen = [...new Set(paths.flatMap((p) => p.pieces.flatMap((x) => x.version || [])))].filter((v) => v >= 0).sort((a, b) => a - b);
    return h("span", { class: "scale" }, "version ", seen.slice(0, 8).map((v) => [h("i", { style: { background: VERSIONS[v % VERSIONS.length] + "66", width: "22px", "--ramp": "none" } }), String(v)]));
  }
  const two = TWO_SIDED.has(colouring);
  const ramp = h("i");
  ramp.style.setProperty("--ramp", `linear-gradient(90deg, ${two ? shade(colouring, -1, 1) + ", transparent, " + shade(colouring, 1, 1) : "transparent, " + shade(colouring, 1, 1)})`);
  return h("span", { class: "scale" }, two ? number(-most, 3) : "0", ramp, number(colouring === "logp" ? -most : most, 3));
}

let tip = null;
function showTip(event, text) {
  hideTip();
  tip = h("div", { class: "tip", role: "tooltip" }, text);
  document.body.append(tip);
  const box = event.target.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (box.bottom + tip.offsetHeight + 8 > innerHeight ? box.top - tip.offsetHeight - 4 : box.bottom + 4) + "px";
}
export function hideTip() {
  tip?.remove();
  tip = null;
}
window.addEventListener("scroll", hideTip, true);

const KNOWN = ["text", "logp", "advantage", "gap", "entropy", "staleness", "version", "calls"];
function about(piece, i) {
  const lines = [`token ${i + 1} of ${piece.text.length}: ${JSON.stringify(visible(piece.text[i]))}`];
  lines.push(piece.kind === "sampled" ? `chosen by ${piece.role}` : piece.kind === "adopted" ? "put in as the model's own" : piece.kind === "prompt" ? "given: the prompt" : "given: a tool, an environment or the program");
  if (piece.span) lines.push(`span ${piece.span}`);
  if (piece.logp?.[i] !== undefined && piece.logp[i] !== null) lines.push(`log-probability ${number(piece.logp[i])} (p ${number(Math.exp(piece.logp[i]), 3)})`);
  if (piece.advantage) lines.push(piece.advantage[i] === null ? "not learned" : `advantage ${number(piece.advantage[i])}`);
  if (piece.gap && piece.gap[i] !== null) lines.push(`gap ${number(piece.gap[i])}: log-probability of the sampler minus that of the learner`);
  if (piece.entropy && piece.entropy[i] !== null) lines.push(`entropy ${number(piece.entropy[i])} nats`);
  if (piece.staleness && piece.staleness[i] !== null) lines.push(`learned by version ${piece.version[i] + piece.staleness[i]}, ${piece.staleness[i]} later than it was drawn by`);
  if (piece.version && piece.version[i] >= 0) lines.push(`weights of version ${piece.version[i]}`);
  for (const [name, values] of Object.entries(piece)) {
    if (Array.isArray(values) && !KNOWN.includes(name) && values[i] !== null) lines.push(`${name} ${number(values[i])}`);
  }
  if (piece.fate && piece.fate !== "learned") lines.push(piece.fate);
  return lines.join("\n");
}

function tokenSpans(piece, colouring, most, from, upto) {
  const out = [];
  for (let i = from; i < upto; i++) {
    const text = piece.text[i];
    if (text === "") continue;
    const span = document.createElement("span");
    span.textContent = visible(text);
    span.dataset.i = i;
    if (text.startsWith("⟦")) span.className = "special";
    if (piece.advantage && piece.advantage[i] === null) span.classList.add("unlearned");
    const value = piece[colouring]?.[i];
    const bg = colouring === "version" ? (value >= 0 ? VERSIONS[value % VERSIONS.length] + "55" : "") : colouring === "none" ? "" : shade(colouring, value, most);
    if (bg) span.style.setProperty("--bg", bg);
    out.push(span);
  }
  return out;
}

const seconds = (s) => (s < 0.001 ? "under 1 ms" : s < 1 ? `${Math.round(1000 * s)} ms` : `${number(s, 3)} s`);
const UNTIMED = " · its time is not in this log";

// How long calls took, and what they raised; of a piece that asks, or of the answer to them.
function timesOf(calls) {
  if (!calls.length) return null;
  return [` · ${calls.map((c) => seconds(c.seconds)).join(", ")}`, calls.filter((c) => c.error).map((c) => [" · ", h("span", { class: "bad" }, visible(c.error))])];
}

function pieceView(piece, colouring, most, made) {
  const tokens = h("div", { class: "tokens", dir: "auto" });
  tokens.append(...tokenSpans(piece, colouring, most, 0, Math.min(MOST_TOKENS, piece.text.length)));
  tokens.addEventListener("mouseover", (e) => e.target.dataset?.i !== undefined && showTip(e, about(piece, Number(e.target.dataset.i))));
  tokens.addEventListener("mouseout", hideTip);
  tokens.addEventListener("click", (e) => e.target.dataset?.i !== undefined && showTip(e, about(piece, Number(e.target.dataset.i))));
  const more = piece.text.length > MOST_TOKENS ? h("button", { class: "quiet", onclick: (e) => {
    const shown = tokens.childElementCount;
    tokens.append(...tokenSpans(piece, colouring, most, MOST_TOKENS, piece.text.length));
    e.target.remove();
    return shown;
  } }, `show ${number(piece.text.length - MOST_TOKENS)} more tokens`) : null;
  const fate = piece.fate && piece.fate !== "learned" ? [" · ", piece.fate] : piece.fate ? " · learned" : " · not the model's, so not learned";
  const who = [h("b", {}, WHO[piece.kind] + (["sampled", "adopted"].includes(piece.kind) ? " " + visible(piece.role) : "")), piece.span ? ` · span ${visible(piece.span)}` : "", ` · ${piece.tokens} tokens`, fate, piece.tokens > piece.text.length ? ` · the first ${number(piece.text.length)} of them are here` : ""];
  const asked = made && made.filter((c) => c.node === piece.node), before = made && made.filter((c) => c.node === piece.parent);
  const calls = (piece.calls || []).map((c) => {
    const own = asked ? asked.findIndex((one) => one.tool === c.name) : -1;
    return h("div", { class: "call" }, h("b", {}, "calls " + visible(c.name)), " with ", h("code", {}, visible(c.arguments)), h("span", { class: "hint" }, own >= 0 ? timesOf(asked.splice(own, 1)) : made ? " · was not carried out" : UNTIMED));
  });
  const answered = piece.call || before?.length ? h("div", { class: "call" }, h("b", {}, "answer to " + visible(piece.call?.name || before.map((c) => c.tool).join(", "))), piece.call?.arguments ? [": ", h("code", {}, visible(piece.call.arguments))] : null, h("span", { class: "hint" }, made ? timesOf(before) : UNTIMED)) : null;
  if (piece.span || piece.kind === "prompt") {
    return h("details", { class: "piece " + piece.kind, open: piece.text.length <= FOLDED_TOKENS }, h("summary", { class: "who" }, who), answered, tokens, calls, more);
  }
  return h("div", { class: "piece " + piece.kind }, h("div", { class: "who" }, who), answered, tokens, calls, more);
}

export function scoresView(scores) {
  if (!scores.length) return h("p", { class: "hint" }, "No score.");
  return h("table", { class: "scores" }, h("tbody", {}, scores.map((s) => h("tr", {},
    h("td", {}, h("b", {}, visible(s.column)), " ", s.value === null ? h("span", { class: "bad" }, "none") : number(s.value)),
    h("td", {}, h("span", { class: "parts" }, Object.entries(s.parts || {}).map(([k, v]) => h("span", {}, `${visible(k)} ${number(v)}`)))),
    h("td", {}, s.why ? visible(s.why) : "", s.error ? h("span", { class: "bad" }, visible(s.error)) : "")))));
}

export function pathView(path, colouring, most, withPrompt = true, made = null) {
  const facts = [["ended", path.status], ["role", path.role], path.stream && path.stream !== "main" ? ["learned as", path.stream] : null, path.advantage !== null ? ["advantage", number(path.advantage)] : null, ["learned", `${path.learned} tokens`], path.re_rendered ? ["re-rendered", `${path.re_rendered} times by the chat template`] : null];
  return h("article", { class: "path" },
    h("header", {}, h("div", { class: "facts" }, facts.filter(Boolean).map(([k, v]) => h("span", {}, k + " ", h("b", {}, visible(v))))),
      path.dropped ? h("p", { class: "hint" }, "dropped: " + visible(path.dropped)) : null, scoresView(path.scores)),
    path.pieces.filter((p) => withPrompt || p.kind !== "prompt").map((p) => pieceView(p, colouring, most, made)));
}

// calls: what tools of the episode did, {tool, node, seconds, error}; null: the log is of before they were kept.
export function pathsView(paths, colouring, withPrompt = true, calls = null) {
  const most = mostOf(colouring, paths);
  return paths.map((p) => pathView(p, colouring, most, withPrompt, calls ?? null));
}

export const textOf = (path) => path.pieces.filter((p) => p.kind !== "prompt").map((p) => p.text.join("")).join("");

// The words of two texts, with those that only one has marked: longest common subsequence, or by lines where they are long.
export function diffView(one, two) {
  const words = (t) => t.match(/\s*\S+|\s+/g) || [];
  let a = words(one), b = words(two);
  if (a.length * b.length > 4e6) [a, b] = [one.split(/(?<=\n)/), two.split(/(?<=\n)/)];
  if (a.length * b.length > 4e6) return h("p", { class: "hint" }, "These texts are too long to be compared word by word.");
  const n = a.length, m = b.length;
  const table = Array.from({ length: n + 1 }, () => new Uint32Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const out = [];
  const put = (tag, word) => {
    if (out.length && out.at(-1).tag === tag) out.at(-1).text += word;
    else out.push({ tag, text: word });
  };
  let i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && a[i] === b[j]) put("", a[i]), i++, j++;
    else if (j < m && (i === n || table[i][j + 1] >= table[i + 1][j])) put("ins", b[j++]);
    else put("del", a[i++]);
  }
  return h("div", { class: "text", dir: "auto" }, out.map(({ tag, text }) => (tag ? h(tag, {}, visible(text)) : visible(text))));
}
