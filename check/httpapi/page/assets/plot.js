// Small plots.

import { svg } from "./dom.js";
import { span } from "./words.js";

const width = 240, height = 48;

// spark draws lines over the same time: [{class, values}], all from 0, the latest at the right end.
export function spark(label) {
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label,
    preserveAspectRatio: "none" });
  root.update = (lines, points) => {
    let top = 1;
    for (const line of lines) for (const v of line.values) top = Math.max(top, v);
    const base = svg("line", { x1: 0, x2: width, y1: height - 1, y2: height - 1, class: "base", "vector-effect": "non-scaling-stroke" });
    root.replaceChildren(base, ...lines.map((line) => {
      const x = (i) => width - ((line.values.length - 1 - i) * width) / (points - 1);
      const y = (v) => height - 2 - (v / top) * (height - 6);
      const d = line.values.map((v, i) => (i ? "L" : "M") + x(i).toFixed(1) + " " + y(v).toFixed(1)).join("");
      return svg("path", { d, class: "line " + line.class, "vector-effect": "non-scaling-stroke" });
    }));
  };
  return root;
}

// The lengths of time that the plot of a key can show, in ms: a quarter of each is a round number.
const lengths = [2, 4, 8, 20, 40, 60].map((minutes) => minutes * 60000);

// hour draws the share of the limit that a key had used at each moment that is known, and when it was
// throttled: points [{t, share}], spans [{from, to}]. It ends at `to` in ms, and begins up to an hour
// before, where something is known.
export function hour(to, points, spans) {
  const oldest = Math.min(to, ...points.map((p) => p.t), ...spans.map((s) => s.from));
  const length = lengths.find((ms) => to - oldest <= ms) ?? lengths.at(-1), from = to - length;
  const w = 720, h = 140, left = 34, bottom = 18;
  const x = (t) => left + ((Math.min(Math.max(t, from), to) - from) / (to - from)) * (w - left);
  const top = Math.max(1.1, ...points.map((p) => p.share * 1.05));
  const y = (share) => (h - bottom) * (1 - share / top);
  const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, class: "hour", role: "img",
    "aria-label": `Used share of the limit in the last hour, throttled ${spans.length} times` });
  for (const s of spans) {
    root.append(svg("rect", { x: x(s.from), y: 0, width: Math.max(1.5, x(s.to) - x(s.from)), height: h - bottom,
      class: "throttledspan" }));
  }
  for (const share of [0, 0.5, 1]) {
    root.append(svg("line", { x1: left, x2: w, y1: y(share), y2: y(share), class: share === 1 ? "limit" : "grid" }),
      label(left - 5, y(share) + 3.5, share * 100 + "%", "end"));
  }
  for (const i of [4, 3, 2, 1, 0]) {
    const ago = (length * i) / 4;
    root.append(label(x(to - ago), h - 4, i ? "−" + span(ago) : "now", i === 4 ? "start" : i ? "middle" : "end"));
  }
  const d = points.map((p, i) => (i ? "L" : "M") + x(p.t).toFixed(1) + " " + y(p.share).toFixed(1)).join("");
  root.append(svg("path", { d, class: "line used" }));
  if (points.length <= 200) {
    for (const p of points) root.append(svg("circle", { cx: x(p.t).toFixed(1), cy: y(p.share).toFixed(1), r: 2, class: "dot" }));
  }
  return root;
}

function label(x, y, text, anchor) {
  const e = svg("text", { x, y, "text-anchor": anchor, class: "axis" });
  e.textContent = text;
  return e;
}
