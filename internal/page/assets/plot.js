// Plots with axes. Lines differ in their dashes, too, not in colour alone.

import { h, svg } from "./dom.js";
import { clock, span } from "./words.js";

const left = 44, right = 8, top = 6, bottom = 20;

// step is a round number of which some four fit into n.
function step(n, among) {
  if (among) return among.find((s) => n / s <= 5) ?? among.at(-1);
  const ten = 10 ** Math.floor(Math.log10(n / 4));
  return [1, 2, 5, 10].map((m) => m * ten).find((s) => n / s <= 4.01);
}

const seconds = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200].map((s) => s * 1000);

// ranges cuts points where more than `gap` ms are not known.
function ranges(points, gap) {
  const out = [];
  for (const [i, p] of points.entries()) {
    if (!i || p.t - points[i - 1].t > gap) out.push([]);
    out.at(-1).push(p);
  }
  return out;
}

// plot makes one. update takes lines [{name, class, points: [{t, v}]}], and may take `spans` [{from, to}], a `limit`
// that is drawn across, `gap`, up to which ms points are joined, `length`, the most ms that are shown, and `dots`.
// The axes fit what is known.
export function plot(title, word, height = 130) {
  const root = h("figure", { class: "plot" });
  root.update = ({ lines, spans = [], limit, gap = Infinity, length, to, dots }) => {
    const width = Math.max(root.clientWidth || 360, 200), inner = width - left - right;
    const known = lines.flatMap((l) => l.points).map((p) => p.t).concat(spans.map((s) => s.from));
    const from = Math.max(to - length, Math.min(to - 30000, ...known)), shown = to - from;
    lines = lines.map((l) => ({ ...l, points: l.points.filter((p) => p.t >= from) }));
    const most = Math.max(limit ? limit * 1.1 : 0, ...lines.flatMap((l) => l.points).map((p) => p.v)) || 1;
    const dy = Math.max(step(most), word === "%" ? 1 : most < 4 ? 0.5 : 1), high = Math.ceil(most / dy - 1e-9) * dy;
    const x = (t) => left + ((Math.min(Math.max(t, from), to) - from) / shown) * inner;
    const y = (v) => top + (height - top - bottom) * (1 - v / high);
    const about = lines.map((l) => `${l.name}: ${l.points.length ? `${say(l.points.at(-1).v, word)} now, at most ` +
      say(Math.max(...l.points.map((p) => p.v)), word) : "unknown"}`).join("; ");
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `${title}, the last ${span(shown)}. ${about}` });
    for (const s of spans) {
      const w = Math.max(2, x(s.to) - x(s.from));
      drawing.append(svg("rect", { x: x(s.from), y: top, width: w, height: height - top - bottom, class: "throttledspan" }),
        svg("rect", { x: x(s.from), y: top, width: w, height: 4, class: "throttledtop" }));
    }
    for (let v = 0; v <= high * 1.001; v += dy) {
      drawing.append(svg("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid" }), label(left - 6, y(v) + 4, say(v, word), "end"));
    }
    if (limit) {
      drawing.append(svg("line", { x1: left, x2: width - right, y1: y(limit), y2: y(limit), class: "limit" }),
        label(width - right - 2, y(limit) - 4, "limit", "end"));
    }
    const dx = step(shown * (inner < 500 ? 1.6 : 1), seconds), offset = new Date(to).getTimezoneOffset() * 60000;
    for (let t = Math.ceil((from - offset) / dx) * dx + offset; t <= to; t += dx) {
      const at = Math.min(Math.max(x(t), left + 14), width - right - 24);
      drawing.append(svg("line", { x1: x(t), x2: x(t), y1: height - bottom, y2: height - bottom + 4, class: "grid" }),
        label(at, height - 5, dx < 60000 ? clock(t) : clock(t).slice(0, 5), "middle"));
    }
    for (const line of lines) {
      for (const part of ranges(line.points, gap)) {
        const d = part.map((p, i) => (i ? "L" : "M") + x(p.t).toFixed(1) + " " + y(p.v).toFixed(1)).join("");
        drawing.append(svg("path", { d: part.length > 1 ? d : d + "h1.5", class: "line " + line.class }));
      }
      if (dots && line.points.length <= 200) {
        for (const p of line.points) drawing.append(svg("circle", { cx: x(p.t).toFixed(1), cy: y(p.v).toFixed(1), r: 2, class: "dot" }));
      }
    }
    const legend = lines.length > 1 ? lines.map((l) => h("span", { class: "entry" },
      svg("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" }, svg("path", { d: "M0 4H26", class: "line " + l.class })), l.name)) : null;
    root.replaceChildren(h("figcaption", {}, h("span", {}, title), legend), drawing);
  };
  return root;
}

function say(v, word) {
  const short = v >= 1e6 ? +(v / 1e6).toFixed(1) + "M" : v >= 1e4 ? +(v / 1e3).toFixed(1) + "k" : String(+v.toFixed(v < 10 ? 1 : 0));
  return word === "%" ? Math.round(v) + "%" : short;
}

function label(x, y, text, anchor) {
  const e = svg("text", { x, y, "text-anchor": anchor, class: "axis" });
  e.textContent = text;
  return e;
}
