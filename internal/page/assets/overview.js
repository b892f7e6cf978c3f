// The overview: what an operator asks first.

import { h, text } from "./dom.js";
import { cards } from "./cards.js";
import { feedCard } from "./feed.js";
import { healthCard } from "./health.js";
import { plot } from "./plot.js";
import { throttledCard } from "./throttled.js";
import { number, rate, ruleText, span } from "./words.js";

function tile(id, title) {
  const value = h("p", { class: "value" }, "–"), note = h("p", { class: "muted" });
  return { root: h("section", { class: "card tile", id }, h("h2", {}, title), value, note), value, note };
}

const shadowsOf = (s) => new Set((s.rules || []).filter((r) => r.shadow).map((r) => r.name));

function tiles() {
  const throttled = tile("now", "Throttled now"), checks = tile("checks", "Checks per second"), events = tile("events", "Events per second");
  const behind = tile("behind", "Backlog");
  return { root: h("div", { class: "tiles" }, throttled.root, checks.root, events.root, behind.root), take(s) {
    const shadows = shadowsOf(s);
    const byRule = Object.entries(s.by_rule || {}).filter(([name, n]) => n > 0 && !shadows.has(name)).sort((a, b) => b[1] - a[1]);
    const rest = byRule.slice(3).reduce((n, [, more]) => n + more, 0);
    text(throttled.value, number(s.throttled));
    text(throttled.note, [...byRule.slice(0, 3).map(([rule, n]) => `${ruleText(rule)} ${number(n)}`), rest && `${byRule.length - 3} more rules ${number(rest)}`,
      s.shadow && `besides, shadow rules would throttle ${number(s.shadow)}`].filter(Boolean).join(" · "));
    const sum = (of, rules = () => true) => Object.entries(s.rates || {}).reduce((n, [name, r]) => n + (rules(name) ? r[of] : 0), 0);
    const enforced = (name) => !shadows.has(name); // a shadow rule counts checks that another rule decided, or none
    text(checks.value, rate(sum("allowed", enforced) + sum("denied", enforced)));
    text(checks.note, `${rate(sum("allowed", enforced))} admitted, ${rate(sum("denied", enforced))} denied` +
      (shadows.size ? `; shadow rules would deny ${rate(sum("denied", (name) => shadows.has(name)))}` : ""));
    text(events.value, rate(sum("events")));
    text(events.note, rate(sum("units")) + " units");
    const parts = s.partitions || [];
    const lag = Math.max(0, ...parts.map((p) => p.lag_ms));
    const waiting = parts.reduce((n, p) => n + p.outbox, 0), dead = parts.reduce((n, p) => n + p.dead, 0);
    behind.root.classList.toggle("warn", lag > 5000 || waiting > 1000);
    text(behind.value, lag > 1000 ? span(lag) : waiting > 1000 ? number(waiting) + " waiting" : "None");
    text(behind.note, `${number(waiting)} decisions and alerts wait for NATS, ${number(dead)} dead letters`);
  } };
}

// trendCard shows five minutes, a point a second since a page is open, or six hours, a point a minute.
function trendCard(shared) {
  const checks = plot("Checks per second"), events = plot("Events per second"), keys = plot("Throttled keys");
  const choose = h("button", { type: "button", class: "quiet", id: "range", onclick: () => { shared.long = !shared.long; draw(); } });
  const line = (name, kind, points, of) => ({ name, class: kind, points: points.map((p) => ({ t: p.t, v: p[of] })) });
  const note = h("p", { class: "muted" });
  function draw() {
    text(choose, shared.long ? "Show five minutes" : "Show six hours");
    const points = shared.long ? shared.hours?.points || [] : shared.plots;
    const how = shared.long ? { gap: 150000, length: 6 * 3600000 } : { gap: 10000, length: 300000 };
    how.to = shared.long ? points.at(-1)?.t || shared.sample.at_ms : shared.sample.at_ms;
    checks.update({ ...how, lines: [line("admitted", "allowed", points, "a"), line("denied", "denied", points, "d"),
      line("shadow", "shadow", points, "s")] });
    events.update({ ...how, lines: [line("events", "events", points, "e")] });
    keys.update({ ...how, lines: [line("enforced", "used", points, "k"), line("shadow", "shadow", points, "l")] });
    text(note, points.length > 1 ? "" : shared.long ? "This server notes one point a minute." : "The plots begin when a page is opened.");
  }
  return { root: h("section", { class: "card", id: "trend" }, h("h2", {}, "Trend ", choose), note, h("div", { class: "plots" }, checks, events, keys)), take: draw };
}

// filterBar chooses what the lists below it show.
function filterBar(shared, changed) {
  const counts = {}, kind = (name, title) => h("label", {}, h("input", { type: "radio", name: "show", value: name, checked: shared.show === name,
    onchange: () => { shared.show = name; shared.rule = ""; fill(); changed(); } }), h("span", {}, title, " ", counts[name] = h("span", { class: "count" })));
  const rule = h("select", { id: "rule", onchange: () => { shared.rule = rule.value; changed(); } });
  let names = [];
  function fill() {
    const sample = shared.sample, shadows = shadowsOf(sample);
    const blocks = sample.by_rule?.override && shared.show === "enforced" ? ["override"] : [];
    const list = (sample.rules || []).map((r) => r.name).filter((name) => shadows.has(name) === (shared.show === "shadow")).concat(blocks);
    if (shared.rule && !list.includes(shared.rule)) list.push(shared.rule);
    if (list.join() === names.join() && rule.options.length) return;
    names = list;
    rule.replaceChildren(h("option", { value: "" }, "All rules"), ...list.map((name) => h("option", { value: name }, ruleText(name))));
    rule.value = shared.rule;
  }
  return { root: h("div", { class: "filter" }, h("fieldset", {}, h("legend", { class: "hidden" }, "Show"), kind("enforced", "Enforced"), kind("shadow", "Shadow")),
    h("label", { for: "rule", class: "hidden" }, "Rule"), rule), take(s) {
    text(counts.enforced, number(s.throttled));
    text(counts.shadow, number(s.shadow));
    fill();
  } };
}

export function overview(shared) {
  const failed = h("p", { class: "notice", role: "status", hidden: true });
  const lists = cards(shared), throttled = throttledCard(shared), feed = feedCard(shared);
  const below = h("div", { class: "columns" }, h("div", {}, throttled.root, lists.near.root, lists.reserved.root, lists.overrides.root),
    h("div", {}, feed.root, lists.top.root, lists.rules.root, lists.partitions.root));
  function changed() {
    below.classList.toggle("shadowed", shared.show === "shadow");
    for (const card of [throttled, lists.near, feed]) card.changed();
  }
  const filter = filterBar(shared, changed);
  const all = [healthCard(shared), tiles(), trendCard(shared), filter, throttled, ...Object.values(lists)];
  const root = h("div", { class: "overview" }, h("h1", { class: "hidden" }, "Overview"), failed, ...all.slice(0, 4).map((card) => card.root), below);
  function take(m) {
    feed.take(m);
    if (!m.sample) return;
    failed.hidden = !m.sample.failed;
    if (m.sample.failed) text(failed, "Redis did not answer. Shown as last seen: " + m.sample.failed.join(", ") + ".");
    for (const card of all) card.take(m.sample);
  }
  if (shared.sample) { changed(); take({ sample: shared.sample }); }
  return { root, take, leave() { throttled.leave(); lists.overrides.leave(); } };
}
