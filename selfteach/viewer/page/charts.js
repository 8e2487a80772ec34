// Line charts on uPlot: raw lines, smoothing that looks back only, bands over seeds, zoom, and pictures to take away.
import { fileName, h, number, save, svg, visible } from "./util.js";

// Okabe and Ito's palette, which readers with any colour vision tell apart; dark pages get its lighter variants.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#5b5ea6", "#444444"];
const DARK = ["#56b4e9", "#ff9e57", "#3fd6a8", "#e7a3cb", "#f0e442", "#8ecdf2", "#a9abec", "#c8c8c8"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => dark.matches;
export const colour = (n) => (isDark() ? DARK : LIGHT)[n % LIGHT.length];
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// The mean of the last `window` values up to each one: nothing of the future in it. Gaps stay gaps.
export function trailingMean(values, window) {
  const out = new Array(values.length).fill(null);
  let sum = 0;
  const last = [];
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    last.push(value);
    sum += value;
    if (last.length > window) sum -= last.shift();
    out[i] = sum / last.length;
  });
  return out;
}

// Two-sided 95 % quantiles of Student's t, by degrees of freedom.
const T95 = [NaN, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131,
  2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042];

// Mean and band of several columns at each place where all have a value.
export function bandOf(columns) {
  const mean = [], low = [], high = [];
  for (let i = 0; i < columns[0].length; i++) {
    const values = columns.map((c) => c[i]);
    if (values.some((v) => v === null || v === undefined)) {
      mean.push(null), low.push(null), high.push(null);
      continue;
    }
    const n = values.length, m = values.reduce((a, b) => a + b, 0) / n;
    mean.push(m);
    if (n < 3) {
      low.push(Math.min(...values)), high.push(Math.max(...values));
      continue;
    }
    const spread = Math.sqrt(values.reduce((a, b) => a + (b - m) ** 2, 0) / (n - 1));
    const reach = ((T95[n - 1] || 1.96) * spread) / Math.sqrt(n);
    low.push(m - reach), high.push(m + reach);
  }
  return { mean, low, high };
}

export const bandName = (n) => (n < 3 ? `lowest to highest of ${n} seeds` : `95 % t interval over ${n} seeds`);

/* A chart.

   title, about [meaning, unit, healthy], lines: [{label, colour, dash, points: [xs, ys], low, high, markers, faint}]
   lines with low and high get a band; smooth: window in points, 1 for none; key: charts of one key share cursor and zoom
   onpoint(line, x): a click on a point; zoom: [from, to] or null; onzoom([from, to] or null) */
export function chart({ title, about, lines, smooth = 1, key, zoom, onzoom, onpoint, log = false, xname = "step", whole = true }) {
  const box = h("section", { class: "chart", "aria-label": title });
  const tools = h("div", { class: "tools" });
  const place = h("div", { class: "plot" });
  const legend = h("div", { class: "legend" });
  const head = h("header", {}, h("h3", {}, visible(title), about[1] ? h("span", { class: "unit" }, about[1]) : null), tools);
  box.append(head, place, legend);
  if (about[0]) {
    box.append(h("p", { class: "meaning" }, visible(about[0]), about[2] ? [". ", h("span", { class: "healthy" }, "Healthy: "), visible(about[2])] : null));
  }
  let { data, series, bands, hidden } = table(lines, smooth);
  let small = lines.length > 8;
  let plot = null, logged = log;
  const values = (index) => lines.map((line, n) => {
    const raw = data[hidden[n].raw][index];
    return raw === null || raw === undefined ? null : { line, raw, smooth: hidden[n].smooth ? data[hidden[n].smooth][index] : null };
  });

  function hover(u) {
    const index = u.cursor.idx;
    legend.replaceChildren();
    const at = index === null || index === undefined ? null : index;
    const shown = at === null ? [] : values(at).filter(Boolean);
    if (at !== null && shown.length) legend.append(h("span", { class: "x" }, `${xname} ${number(data[0][at])}`));
    const listed = at !== null && shown.length ? shown : lines.map((line) => ({ line }));
    for (const { line, raw, smooth: mean } of listed.slice(0, small ? 12 : 40)) {
      const key = h("i", { class: "key" + (line.dash ? " dashed" : "") });
      key.style.setProperty("--c", line.colour);
      let text = visible(line.label);
      if (raw !== undefined) text += " " + number(raw) + (mean !== null && mean !== undefined ? ` (mean ${number(mean)})` : "");
      legend.append(h("span", {}, key, text));
    }
    if (listed.length > 12 && small) legend.append(h("span", {}, `and ${listed.length - 12} more`));
  }

  function draw() {
    plot?.destroy();
    const width = Math.max(180, place.clientWidth || 320);
    const grid = { stroke: ink("line"), width: 1 };
    const axis = { stroke: ink("quiet"), grid, ticks: { ...grid, size: 4 }, font: "11px " + ink("font"), size: 28 };
    plot = new uPlot({
      width, height: 190, series, bands, legend: { show: false },
      scales: { x: { time: false, ...(zoom ? { min: zoom[0], max: zoom[1] } : {}) }, y: { distr: logged ? 3 : 1, ...(logged ? { clamp: 1e-12 } : { range: range(lines) }) } },
      axes: [
        { ...axis, ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] } : {}), values: (u, marks) => marks.map((v) => (Math.abs(v) >= 1e6 ? v / 1e6 + "M" : Math.abs(v) >= 1e4 ? v / 1e3 + "k" : String(v))) },
        { ...axis, size: (u, texts) => 16 + 6.2 * Math.max(3, ...(texts || []).map((t) => String(t).length)), values: (u, marks, n, space, step) => marks.map((v) => (v === null ? "" : logged ? number(v, 3) : markText(v, step))) },
      ],
      cursor: { sync: key ? { key, scales: ["x", null], setSeries: false } : undefined, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
      hooks: {
        setCursor: [hover],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          onzoom?.([from, to]);
        }],
        ready: [(u) => {
          u.over.addEventListener("dblclick", () => onzoom?.(null));
          u.over.addEventListener("click", () => {
            if (onpoint && u.cursor.idx !== null && u.cursor.idx !== undefined) onpoint(nearest(u), data[0][u.cursor.idx]);
          });
        }],
      },
    }, data, place);
    hover(plot);
  }
  function nearest(u) {
    const y = u.posToVal(u.cursor.top, "y");
    const near = values(u.cursor.idx).map((v, n) => [v ? Math.abs(v.raw - y) : Infinity, n]).sort((a, b) => a[0] - b[0])[0];
    return lines[near[1]];
  }

  const positive = lines.some((l) => l.points[1].some((v) => v > 0)) && lines.every((l) => l.points[1].every((v) => v === null || v > 0));
  if (positive) {
    tools.append(h("button", { class: "quiet", "aria-pressed": String(logged), title: "logarithmic scale", onclick: (e) => {
      logged = !logged;
      e.target.setAttribute("aria-pressed", String(logged));
      draw();
    } }, "log"));
  }
  const name = fileName(title);
  const csv = () => save(name + ".csv", csvOf(lines, data, hidden, xname), "text/csv");
  const png = () => {
    const canvas = plot.root.querySelector("canvas");
    const out = document.createElement("canvas");
    const ratio = window.devicePixelRatio || 1;
    out.width = canvas.width;
    out.height = canvas.height + 44 * ratio;
    const c = out.getContext("2d");
    c.fillStyle = ink("page");
    c.fillRect(0, 0, out.width, out.height);
    c.drawImage(canvas, 0, 22 * ratio);
    c.fillStyle = ink("text");
    c.font = `600 ${13 * ratio}px ${ink("font")}`;
    c.fillText(title, 8 * ratio, 15 * ratio);
    c.font = `${11 * ratio}px ${ink("font")}`;
    let x = 8 * ratio;
    for (const line of lines) {
      c.fillStyle = line.colour;
      c.fillText("■ " + line.label, x, out.height - 8 * ratio);
      x += c.measureText("■ " + line.label + "   ").width;
    }
    out.toBlob((blob) => save(name + ".png", blob));
  };
  tools.append(
    h("button", { class: "quiet", onclick: png, title: "picture as PNG" }, "PNG"),
    h("button", { class: "quiet", onclick: () => save(name + ".svg", svgOf(plot, title, lines, data, hidden), "image/svg+xml"), title: "picture as SVG" }, "SVG"),
    h("button", { class: "quiet", onclick: csv, title: "the numbers as CSV" }, "CSV"),
  );
  // Only what is seen is drawn and kept up: neither the first paint nor a live run waits for charts below the fold.
  let seen = false, stale = false;
  new IntersectionObserver((entries) => {
    seen = entries.at(-1).isIntersecting;
    if (seen && !plot) {
      draw();
      let width = place.clientWidth;
      new ResizeObserver(() => {
        if (place.clientWidth && place.clientWidth !== width) {
          width = place.clientWidth;
          plot.setSize({ width: Math.max(180, width), height: 190 });
        }
      }).observe(place);
    } else if (seen && stale) draw();
    if (seen) stale = false;
  }, { rootMargin: "300px" }).observe(box);
  // New values, window or zoom, in place, so that a live run neither flickers nor loses the cursor.
  box.update = (next, window, range) => {
    const same = next.length === lines.length && next.every((l, i) => l.colour === lines[i].colour && l.label === lines[i].label && !l.low === !lines[i].low);
    const before = series.length;
    [lines, smooth, zoom] = [next, window, range];
    if (!seen) {
      stale = true;
      ({ data, series, bands, hidden } = table(lines, smooth));
      return;
    }
    ({ data, series, bands, hidden } = table(lines, smooth));
    small = lines.length > 8;
    if (!plot) return;
    if (!same || series.length !== before) return draw();
    plot.setData(data, !zoom);
    if (zoom) plot.setScale("x", { min: zoom[0], max: zoom[1] });
    hover(plot);
  };
  box.redraw = () => plot && draw();
  return box;
}

// What all charts of a page share: one column of x, and two series of each line (raw, smoothed), with bands.
function table(lines, smooth) {
  const xs = [...new Set(lines.flatMap((l) => l.points[0]))].sort((a, b) => a - b);
  const where = new Map(xs.map((x, i) => [x, i]));
  const data = [xs], series = [{}], bands = [], hidden = [];
  const column = (points, values) => {
    const out = new Array(xs.length).fill(null);
    points.forEach((x, i) => (out[where.get(x)] = values[i]));
    return out;
  };
  for (const line of lines) {
    const raw = column(line.points[0], line.points[1]);
    const mean = smooth > 1 && !line.markers ? column(line.points[0], trailingMean(line.points[1], smooth)) : null;
    const faint = line.faint || mean;
    const common = { dash: line.dash, spanGaps: true };
    data.push(raw);
    hidden.push({ raw: data.length - 1, smooth: null });
    series.push({ ...common, stroke: line.colour, width: faint ? 1 : 1.75, alpha: faint ? 0.35 : 1, points: { show: Boolean(line.markers) || xs.length < 3, size: 6, fill: line.colour } });
    if (mean) {
      data.push(mean);
      hidden.at(-1).smooth = data.length - 1;
      series.push({ ...common, stroke: line.colour, width: 2, points: { show: false } });
    }
    if (line.low) {
      const own = data.length;
      data.push(column(line.points[0], line.high), column(line.points[0], line.low));
      const none = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      series.push(none, { ...none });
      bands.push({ series: [own, own + 1], fill: line.colour + "2b" });
    }
  }
  return { data, series, bands, hidden };
}

// A mark of an axis with as many digits as its distance to the next one needs.
function markText(value, step) {
  const size = Math.abs(value);
  if (size < step / 1e3) return "0";
  if (size >= 1e5 || step < 1e-6) return value.toExponential(Math.max(0, Math.min(6, Math.floor(Math.log10(size)) - Math.floor(Math.log10(step)))));
  return value.toFixed(Math.max(0, Math.min(7, -Math.floor(Math.log10(step) + 1e-9) + (step * 10 ** -Math.floor(Math.log10(step) + 1e-9) === 2.5 ? 1 : 0))));
}

// A scale with a little room, 0 in it where the values are not far from there.
function range(lines) {
  return (u, low, high) => {
    if (low === null || high === null || !Number.isFinite(low)) return [0, 1];
    if (low === high) return low === 0 ? [-0.05, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
    const room = (high - low) * 0.06;
    return [low >= 0 && low < (high - low) * 0.5 ? 0 : low - room, high + room];
  };
}

function csvOf(lines, data, hidden, xname) {
  const quote = (t) => (/[",\n]/.test(t) ? '"' + t.replaceAll('"', '""') + '"' : t);
  const safe = (t) => (/^[=+@-]/.test(t) ? "'" + t : t); // no spreadsheet takes a name for a formula
  const columns = lines.flatMap((l, n) => [[l.label, data[hidden[n].raw]], ...(l.low ? [[l.label + " low", expand(l, l.low, data[0])], [l.label + " high", expand(l, l.high, data[0])]] : [])]);
  const rows = [[xname, ...columns.map(([name]) => quote(safe(name)))].join(",")];
  data[0].forEach((x, i) => rows.push([x, ...columns.map(([, values]) => values[i] ?? "")].join(",")));
  return rows.join("\n") + "\n";
}

function expand(line, values, xs) {
  const known = new Map(line.points[0].map((x, i) => [x, values[i]]));
  return xs.map((x) => known.get(x) ?? null);
}

// The chart as it is seen, in vectors.
function svgOf(plot, title, lines, data, hidden) {
  const width = 640, height = 360, box = { left: 60, top: 34, right: 14, bottom: 62 };
  const [x0, x1] = [plot.scales.x.min, plot.scales.x.max], [y0, y1] = [plot.scales.y.min, plot.scales.y.max];
  const log = plot.scales.y.distr === 3, f = log ? Math.log10 : (v) => v;
  const X = (v) => box.left + ((v - x0) / (x1 - x0 || 1)) * (width - box.left - box.right);
  const Y = (v) => height - box.bottom - ((f(v) - f(y0)) / (f(y1) - f(y0) || 1)) * (height - box.top - box.bottom);
  const font = { "font-family": "system-ui, sans-serif", "font-size": 11, fill: "#57606a" };
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height });
  root.append(svg("rect", { width, height, fill: "#ffffff" }), svg("text", { x: 12, y: 20, ...font, "font-size": 14, "font-weight": 600, fill: "#1f2328" }, title));
  for (let i = 0; i <= 4; i++) {
    const y = log ? 10 ** (f(y0) + ((f(y1) - f(y0)) * i) / 4) : y0 + ((y1 - y0) * i) / 4, x = x0 + ((x1 - x0) * i) / 4;
    root.append(svg("line", { x1: box.left, x2: width - box.right, y1: Y(y), y2: Y(y), stroke: "#e6eaee" }));
    root.append(svg("text", { x: box.left - 6, y: Y(y) + 4, "text-anchor": "end", ...font }, number(y, 3)));
    root.append(svg("text", { x: X(x), y: height - box.bottom + 16, "text-anchor": "middle", ...font }, number(Math.round(x))));
  }
  const inside = (i) => data[0][i] >= x0 && data[0][i] <= x1;
  const path = (values) => {
    let out = "", open = false;
    values.forEach((v, i) => {
      if (v === null || v === undefined || !inside(i) || (log && v <= 0)) return;
      out += (open ? "L" : "M") + X(data[0][i]).toFixed(1) + " " + Y(v).toFixed(1);
      open = true;
    });
    return out;
  };
  lines.forEach((line, n) => {
    if (line.low) {
      const at = line.points[0].map((x, i) => [x, line.low[i], line.high[i]]).filter(([x, low]) => low !== null && x >= x0 && x <= x1);
      const ring = [...at.map(([x, , high]) => `${X(x).toFixed(1)},${Y(high).toFixed(1)}`), ...at.reverse().map(([x, low]) => `${X(x).toFixed(1)},${Y(low).toFixed(1)}`)];
      root.append(svg("polygon", { points: ring.join(" "), fill: line.colour, "fill-opacity": 0.17 }));
    }
    const common = { fill: "none", stroke: line.colour, "stroke-dasharray": line.dash ? line.dash.join(" ") : null };
    const { raw, smooth } = hidden[n];
    root.append(svg("path", { d: path(data[raw]), ...common, "stroke-width": smooth ? 1 : 1.75, "stroke-opacity": smooth ? 0.35 : 1 }));
    if (smooth) root.append(svg("path", { d: path(data[smooth]), ...common, "stroke-width": 2 }));
    const column = n % 4, row = Math.floor(n / 4);
    if (row < 2) {
      root.append(svg("rect", { x: 12 + column * 155, y: height - 34 + row * 16, width: 10, height: 10, fill: line.colour }));
      root.append(svg("text", { x: 26 + column * 155, y: height - 25 + row * 16, ...font }, line.label.slice(0, 24)));
    }
  });
  return new XMLSerializer().serializeToString(root);
}
