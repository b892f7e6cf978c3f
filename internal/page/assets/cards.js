// The lists of the overview beside who is throttled.

import { h, text, time } from "./dom.js";
import { call } from "./api.js";
import { table, keyLink } from "./table.js";
import { clock, ends, number, overrideText, rate, several, span, why } from "./words.js";

const listed = 10;

function nearCard(shared) {
  const rows = table("Keys near their limit", [{ name: "Key" }, { name: "Rule" }, { name: "Used" }, { name: "Share", class: "num" }],
    "No key is at an alert level.");
  const count = h("span", { class: "count" });
  function take(s) {
    const shadow = shared.show === "shadow";
    const list = (s.near || []).filter((t) => Boolean(t.shadow) === shadow && (!shared.rule || t.rule === shared.rule));
    const all = shared.rule ? list.length : shadow ? s.near_shadow : s.near_enforced;
    text(count, number(all) + (all > listed ? `, the nearest ${Math.min(listed, list.length)}` : ""));
    rows.update(list.slice(0, listed).map((t) => [keyLink(t.key), t.rule, why(t), Math.floor((100 * t.used) / t.limit) + "%"]));
  }
  return { root: h("section", { class: "card stack", id: "near" }, h("h2", {}, "Near their limit ", count), rows,
    h("p", { class: "muted" }, "Keys at an alert level (alerts, in the rules file).")), take, changed: () => shared.sample && take(shared.sample) };
}

function reservedCard() {
  const rows = table("Open reservations", [{ name: "Key" }, { name: "Rule" }, { name: "Reserved" }, { name: "Expires", class: "time" }], "Nothing is reserved.");
  const count = h("span", { class: "count" });
  return { root: h("section", { class: "card stack", id: "reserved" }, h("h2", {}, "Open reservations and slots ", count), rows), take(s) {
    text(count, s.reserved_keys ? several(s.reserved_keys, "key") : "");
    rows.update((s.reserved || []).slice(0, listed).map((r) => [keyLink(r.key), r.rule,
      r.in_flight ? `${number(r.units)} of ${number(r.in_flight)} in flight` : `${several(r.units, "unit")} in ${several(r.reservations, "reservation")}`,
      time(r.first_ms, ends(r.first_ms) + (r.last_ms > r.first_ms ? ", the last " + ends(r.last_ms) : ""))]));
  } };
}

// overridesCard asks by itself: to list overrides needs a token that may change them.
function overridesCard(shared) {
  const rows = table("Overrides", [{ name: "For" }, { name: "Set" }, { name: "Ends", class: "time" }], "None is set.");
  const note = h("p", { class: "muted" });
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { page++; load(); } }, "More");
  let list = [], page = 1;
  rows.hidden = true; // until it is known
  const draw = () => rows.update(list.map((o) => [[keyLink(o.key || o.pattern || o.network, !o.key), !o.key && (o.network ? " (network)" : " (pattern)")],
    overrideText({ ...o, until_ms: 0 }), o.until_ms ? time(o.until_ms, ends(o.until_ms)) : ends(0)]));
  async function load() {
    try {
      const got = await call("GET", "/v1/overrides?limit=" + Math.min(20 * page, 1000));
      list = got.overrides;
      more.hidden = !got.next || page >= 50;
      text(note, "");
      rows.hidden = false;
      draw();
    } catch (err) {
      text(note, err.message);
      rows.hidden = !list.length;
    }
  }
  const admin = shared.hello.admin;
  if (admin) load();
  const timer = admin && setInterval(load, 5000);
  return { root: h("section", { class: "card stack", id: "overrides" }, h("h2", {}, "Overrides"),
    admin ? [note, rows, more] : h("p", { class: "muted" }, "To list overrides, log in with a token of the scope admin.")),
  take: draw, leave: () => clearInterval(timer) };
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
    text(note, one ? `${one.rule}: ${number(one.units)} units of all keys since ${clock(one.since_ms)}` : "");
  }
  return { root: h("section", { class: "card", id: "top" }, h("h2", {}, "Busiest keys ", h("label", { for: "toprule", class: "hidden" }, "Rule"), choice),
    rows, note), take(s) {
    top = [...(s.top || [])].sort((a, b) => b.units - a.units);
    choice.hidden = !top.length;
    const names = top.map((t) => t.rule).sort();
    if ([...choice.options].slice(1).map((o) => o.value).join() !== names.join()) {
      const had = choice.value;
      choice.replaceChildren(h("option", { value: "" }, "The busiest rule"), ...names.map((n) => h("option", { value: n }, n)));
      if (names.includes(had)) choice.value = had;
    }
    draw();
  } };
}

function rulesCard(shared) {
  const enforced = h("ul", { class: "rules" }), shadow = h("ul", { class: "rules" });
  const below = h("div", { hidden: true }, h("h3", {}, "Shadow: they decide nothing"), shadow);
  let shown = "";
  function item(r, s) {
    const is = s.rates?.[r.name], keys = s.by_rule?.[r.name] || 0, total = shared.hours?.totals[r.name];
    const would = r.shadow ? "would " : "", hours = shared.hours?.points ?? [];
    const said = [is && `${r.shadow ? `would admit ${rate(is.allowed)} and deny ${rate(is.denied)} checks` : `${rate(is.allowed)} checks admitted and ${rate(is.denied)} denied`}` +
      `, ${rate(is.events)} events per second`, keys && `${would}throttle${r.shadow ? "" : "s"} ${several(keys, "key")} now`,
    total && `since ${clock(hours[0].t - 60000).slice(0, 5)}: ${r.shadow ? "would have " : ""}denied ${number(total.denied)} of ${number(total.allowed + total.denied)} checks`];
    return h("li", {}, h("p", {}, h("strong", {}, r.name), " ", h("code", { class: "key" }, r.match || "a tier")),
      h("p", { class: "muted" }, r.says.slice(r.says.indexOf("): ") + 3)), h("p", { class: "muted does" }, said.filter(Boolean).join("; ") || "nothing happened yet"));
  }
  return { root: h("section", { class: "card", id: "rules" }, h("h2", {}, "Rules"), enforced, below), take(s) {
    const all = s.rules || [], now = JSON.stringify([all, s.by_rule, shared.hours?.totals,
      Object.entries(s.rates || {}).map(([n, r]) => [n, rate(r.allowed), rate(r.denied), rate(r.events)])]);
    if (now === shown) return;
    shown = now;
    enforced.replaceChildren(...all.filter((r) => !r.shadow).map((r) => item(r, s)));
    shadow.replaceChildren(...all.filter((r) => r.shadow).map((r) => item(r, s)));
    below.hidden = !all.some((r) => r.shadow);
  } };
}

function partitionsCard() {
  const rows = table("Partitions", [{ name: "Partition" }, { name: "Lag", class: "num" }, { name: "Pending", class: "num" },
    { name: "Outbox", class: "num" }, { name: "Dead letters", class: "num" }], "Unknown.");
  const summary = h("summary", {});
  const details = h("details", {}, summary, rows);
  return { root: h("section", { class: "card", id: "partitions" }, h("h2", {}, "Partitions"), details), take(s) {
    const parts = s.partitions || [], busy = parts.filter((p) => p.lag_ms || p.pending || p.outbox || p.dead);
    text(summary, parts.length ? `${number(busy.length)} of ${number(parts.length)} have something waiting or dead letters` : "Unknown");
    rows.update(parts.map((p) => [String(p.partition), p.lag_ms ? span(p.lag_ms) : "0", number(p.pending), number(p.outbox), number(p.dead)]));
  } };
}

export const cards = (shared) => ({ near: nearCard(shared), reserved: reservedCard(), overrides: overridesCard(shared), top: topCard(),
  rules: rulesCard(shared), partitions: partitionsCard() });
