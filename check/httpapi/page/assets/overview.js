// The overview: what an operator asks first.

import { h, text } from "./dom.js";
import { spark } from "./plot.js";
import { table, keyLink } from "./table.js";
import { throttledCard } from "./throttled.js";
import { clock, number, rate, span, what, why } from "./words.js";

function tile(id, title, plotLabel) {
  const value = h("p", { class: "value" }, "–"), note = h("p", { class: "muted" });
  const plot = plotLabel ? spark(plotLabel) : null;
  return { root: h("section", { class: "card tile", id }, h("h2", {}, title), value, note, plot), value, note, plot };
}

function tiles() {
  const throttled = tile("now", "Throttled now");
  const checks = tile("checks", "Checks per second", "Admitted and denied checks per second, five minutes");
  const events = tile("events", "Events per second", "Events per second, five minutes");
  const behind = tile("behind", "Behind");
  return { root: h("div", { class: "tiles" }, throttled.root, checks.root, events.root, behind.root), take(s, plots) {
    const shadows = new Set((s.rules || []).filter((r) => r.shadow).map((r) => r.name));
    const byRule = Object.entries(s.rates || {}).filter(([name, r]) => r.throttled > 0 && !shadows.has(name)).sort((a, b) => b[1].throttled - a[1].throttled);
    text(throttled.value, number(s.throttled));
    text(throttled.note, byRule.slice(0, 3).map(([rule, r]) => `${rule} ${number(r.throttled)}`).join(" · ") || "by no rule");
    // A shadow rule counts checks that another rule decided, or none.
    const sum = (of) => Object.entries(s.rates || {}).reduce((n, [name, r]) =>
      n + (shadows.has(name) && (of === "allowed" || of === "denied") ? 0 : r[of]), 0);
    text(checks.value, rate(sum("allowed") + sum("denied")));
    checks.note.replaceChildren(h("span", { class: "mark allowed" }), rate(sum("allowed")) + " admitted ",
      h("span", { class: "mark denied" }), rate(sum("denied")) + " denied");
    checks.plot.update([{ class: "allowed", values: plots.map((p) => p.a) }, { class: "denied", values: plots.map((p) => p.d) }], 300);
    text(events.value, rate(sum("events")));
    text(events.note, rate(sum("units")) + " units");
    events.plot.update([{ class: "events", values: plots.map((p) => p.e) }], 300);
    const parts = s.partitions || [];
    const lag = Math.max(0, ...parts.map((p) => p.lag_ms));
    const waiting = parts.reduce((n, p) => n + p.outbox, 0), dead = parts.reduce((n, p) => n + p.dead, 0);
    behind.root.classList.toggle("warn", lag > 5000 || waiting > 1000);
    text(behind.value, lag > 1000 ? span(lag) : waiting > 1000 ? number(waiting) + " waiting" : "Nothing");
    text(behind.note, `${number(waiting)} in the outbox, ${number(dead)} dead letters`);
  } };
}

function feedCard(shared) {
  const list = h("ol", { class: "feed" });
  const note = h("p", { class: "muted" });
  let paused = false;
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    text(pause, paused ? "Go on" : "Pause");
    if (!paused) draw();
  } }, "Pause");
  function draw() {
    list.replaceChildren(...shared.transitions.slice(0, 40).map((t) => h("li", {}, h("time", {}, clock(t.at_ms)),
      h("span", { class: "state " + t.state }, what(t)), keyLink(t.key),
      h("span", { class: "muted" }, t.rule === "override" ? why(t) : t.rule + ", " + why(t)))));
    if (!shared.transitions.length) list.replaceChildren(h("li", { class: "empty" }, "Nothing yet, since this page is open."));
  }
  draw();
  return { root: h("section", { class: "card", id: "feed" }, h("h2", {}, "As it happens ", pause), note, list), take(m) {
    if (shared.hello && !shared.hello.nats) text(note, "This server has no NATS (--nats): it does not receive decisions.");
    if (m.transitions && !paused) draw();
    if (m.transitions) text(note, m.skipped ? `${number(m.skipped)} more came in the same moment and are not listed.` : "");
  } };
}

function topCard() {
  const choice = h("select", { id: "toprule", onchange: () => draw() });
  const rows = table("Busiest keys", [{ name: "Key" }, { name: "Units", class: "num" }, { name: "At most", class: "num" }],
    "Nothing happened in this minute and the one before.");
  const note = h("p", { class: "muted" });
  let top = [];
  function draw() {
    const one = top.find((t) => t.rule === choice.value) || top[0];
    rows.update(one ? one.keys.map((k) => [keyLink(k.key), number(k.units), k.at_most > k.units ? number(k.at_most) : "exact"]) : []);
    text(note, one ? `${number(one.units)} units of all keys since ${clock(one.since_ms)}` : "");
  }
  return { root: h("section", { class: "card", id: "top" }, h("h2", {}, "Busiest keys ", h("label", { for: "toprule", class: "hidden" }, "Rule"), choice),
    rows, note), take(s) {
    top = s.top || [];
    choice.hidden = !top.length;
    const names = top.map((t) => t.rule);
    if ([...choice.options].map((o) => o.value).join() !== names.join()) {
      const had = choice.value;
      choice.replaceChildren(...names.map((n) => h("option", { value: n }, n)));
      if (names.includes(had)) choice.value = had;
    }
    draw();
  } };
}

function rulesCard() {
  const list = h("ul", { class: "rules" });
  let shown = "";
  return { root: h("section", { class: "card", id: "rules" }, h("h2", {}, "Rules"), list), take(s) {
    const now = JSON.stringify([s.rules, Object.entries(s.rates || {}).map(([n, r]) => [n, rate(r.allowed), rate(r.denied), rate(r.events)])]);
    if (now === shown) return;
    shown = now;
    list.replaceChildren(...(s.rules || []).map((r) => {
      const is = (s.rates || {})[r.name];
      return h("li", { class: r.shadow ? "shadow" : "" }, h("p", {}, h("strong", {}, r.name), r.shadow ? h("span", { class: "badge" }, "shadow") : null,
        is ? h("span", { class: "muted" }, (r.shadow ? ` would have admitted ${rate(is.allowed)} and denied ${rate(is.denied)}`
          : ` ${rate(is.allowed)} admitted, ${rate(is.denied)} denied`) + `, ${rate(is.events)} events per second`) : null),
      h("p", { class: "muted" }, h("code", { class: "key" }, r.match || "a tier"), " ", r.says.slice(r.says.indexOf("): ") + 3)));
    }));
  } };
}

function partitionsCard() {
  const rows = table("Partitions", [{ name: "Partition" }, { name: "Lag", class: "num" }, { name: "Pending", class: "num" },
    { name: "Outbox", class: "num" }, { name: "Dead letters", class: "num" }], "Unknown.");
  const who = h("p", { class: "muted" });
  return { root: h("section", { class: "card", id: "partitions" }, h("h2", {}, "Partitions"), rows, who), take(s) {
    rows.update((s.partitions || []).map((p) => [String(p.partition), p.lag_ms ? span(p.lag_ms) : "0", number(p.pending), number(p.outbox),
      number(p.dead)]));
    const running = {};
    for (const p of s.processes || []) running[p.command] = (running[p.command] || 0) + 1;
    text(who, "Running: " + (Object.entries(running).map(([command, n]) => `${n} ${command}`).join(", ") || "unknown"));
  } };
}

export function overview(shared) {
  const head = tiles(), throttled = throttledCard(), feed = feedCard(shared), top = topCard(), rules = rulesCard(), parts = partitionsCard();
  const failed = h("p", { class: "notice", role: "status", hidden: true });
  const root = h("div", { class: "overview" }, h("h1", { class: "hidden" }, "Overview"), failed, head.root,
    h("div", { class: "columns" }, h("div", {}, throttled.root, rules.root), h("div", {}, feed.root, top.root, parts.root)));
  function take(m) {
    feed.take(m);
    if (!m.sample) return;
    failed.hidden = !m.sample.failed;
    if (m.sample.failed) text(failed, "Redis did not answer: " + m.sample.failed.join(", ") + " as seen last.");
    head.take(m.sample, shared.plots);
    for (const card of [throttled, top, rules, parts]) card.take(m.sample);
  }
  take({ sample: shared.sample });
  return { root, take, leave() {} };
}
