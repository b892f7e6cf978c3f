// One key: its windows, its last hour, what happened to it, and what an operator can do.

import { h, text, time } from "./dom.js";
import { call, isStep, keyPath, Refused, target } from "./api.js";
import { plot } from "./plot.js";
import { linkTo } from "./table.js";
import { operate } from "./operate.js";
import { moment, now, number, overrideText, penaltyText, per, span, what, why } from "./words.js";

const lookEvery = 2000, hourMs = 3600000, perPage = 50;

function bar(w) {
  const fill = h("div", { class: "fill" });
  const share = Math.min(1, w.used / w.limit);
  fill.style.width = (share * 100).toFixed(1) + "%";
  return h("li", {}, h("p", {}, h("strong", {}, `${number(w.used)} of ${number(w.limit)}`), " " + per(w),
    h("span", { class: "muted" }, w.used ? `, ${number(w.remaining)} left, empty in ${span(w.empty_ms)}` : ", nothing used")),
  h("div", { class: "bar" + (share >= 1 ? " full" : share >= 0.8 ? " near" : ""), role: "meter", "aria-valuemin": "0",
    "aria-valuemax": String(w.limit), "aria-valuenow": String(Math.min(w.used, w.limit)),
    "aria-label": `${number(w.used)} of ${number(w.limit)} ${per(w)}` }, fill));
}

function shadowBar(w) {
  const li = bar(w);
  li.classList.add("shadow");
  return li;
}

function windowsCard() {
  const list = h("ul", { class: "windows" }), note = h("p", { class: "muted" });
  return { root: h("section", { class: "card", id: "windows" }, h("h2", {}, "Windows"), note, list), show(state) {
    text(note, (state.rule ? "Rule " + state.rule : "No rule that is enforced matches this key.") +
      (state.penalty ? ", " + penaltyText(state.penalty) : ""));
    list.replaceChildren(...state.windows.map(bar), ...(state.shadow || []).flatMap((s) => {
      const over = s.windows.some((w) => w.used >= w.limit);
      return [h("li", { class: "muted" }, `Shadow rule ${s.rule} decides nothing` + (over ? "; it would deny now" : "")), ...s.windows.map(shadowBar)];
    }));
  }, failed(err) {
    text(note, err.message);
    list.replaceChildren();
  } };
}

// spansOf gives when a key was throttled: by alerts of level 100 and throttle decisions, the newest first.
function spansOf(entries, to) {
  const spans = [];
  let open = null; // where the span that is read now ends
  for (const e of entries) {
    const t = e.transition;
    if (!t || t.shadow || t.level !== 100) continue;
    if (t.state === "cleared" || t.state === "released") {
      open = open ?? e.at_ms;
    } else {
      spans.push({ from: t.since_ms || e.at_ms, to: open ?? Math.min(to, t.until_ms || to) });
      open = null;
    }
  }
  return spans;
}

function entryItem(e) {
  if (e.transition) {
    const t = e.transition;
    return h("li", {}, time(e.at_ms, moment(e.at_ms)), h("span", { class: "state " + (t.shadow ? "shadow" : t.state) }, what(t)),
      h("span", { class: "muted" }, t.rule === "override" ? why(t) : t.rule + ", " + why(t)));
  }
  const c = e.change || {};
  const said = c.after ? overrideText(c.after) : ["removed", c.by && "by " + c.by, c.reason].filter(Boolean).join(", ");
  return h("li", {}, time(e.at_ms, moment(e.at_ms)), h("span", { class: "state change" }, "override"), h("span", {}, said));
}

function historyCard(name, drawn) {
  const list = h("ol", { class: "feed tall" }), note = h("p", { class: "muted" });
  const older = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => load(next) }, "Older");
  let entries = [], next = "", extended = false;
  async function load(before) {
    try {
      const page = await call("GET", keyPath("/v1/history/", name) + `?limit=${perPage}` + (before ? "&before=" + encodeURIComponent(before) : ""));
      if (before) {
        extended = true;
        entries = entries.concat(page.entries);
      } else {
        entries = page.entries;
      }
      next = page.next || "";
      older.hidden = !next;
      text(note, page.left_out ? "Left out: " + page.left_out.join("; ") + "." : "");
      list.replaceChildren(...(entries.length ? entries.map(entryItem) : [h("li", { class: "empty" }, "Nothing is known of this key.")]));
      drawn(entries);
    } catch (err) {
      text(note, err.message);
    }
  }
  return { root: h("section", { class: "card", id: "history" }, h("h2", {}, "History"), note, list, older),
    refresh: () => (extended ? null : load("")) };
}

// keyView is of a key; or, where that is said, of a pattern or a network.
export function keyView(shared, key, isSeveral) {
  const badge = h("span", { class: "badge", role: "status" }), override = h("p", { class: "notice", hidden: true });
  const windows = windowsCard();
  const used = plot("Used of the limit", "%", 190), samples = [];
  const lastHour = h("section", { class: "card", id: "hour" }, h("h2", {}, "Last hour"), used,
    h("p", { class: "muted" }, "What is known: the count at each alert and decision, and since this page is open. Shaded: throttled."));
  const nobody = h("p", { class: "notice", role: "status", hidden: true });
  const change = shared.hello.admin ? operate(key, isSeveral, () => refresh()) : null;
  let entries = [], left = false;
  function draw() {
    const to = now();
    const points = entries.filter((e) => e.transition && e.transition.limit > 0 && !e.transition.shadow && e.at_ms > to - hourMs)
      .map((e) => ({ t: e.at_ms, v: 100 * e.transition.used / e.transition.limit }))
      .concat(samples).sort((a, b) => a.t - b.t);
    used.update({ to, length: hourMs, limit: 100, dots: true, lines: [{ name: "used", class: "used", points }],
      spans: spansOf(entries, to).filter((s) => s.to > to - hourMs) });
  }
  // unruled says that no rule is enforced for the key, and takes away what would do nothing.
  function unruled(said) {
    nobody.hidden = !said;
    text(nobody, said);
    change?.unruled(Boolean(said));
    lastHour.hidden = Boolean(said);
  }
  const history = historyCard(isSeveral ? key : target(key), (list) => { entries = list; draw(); });
  // lookAtSeveral is look of a pattern or a network, which has no count: the keys that it covers have.
  async function lookAtSeveral() {
    lastHour.hidden = windows.root.hidden = true;
    if (nobody.hidden) {
      nobody.hidden = false;
      nobody.append("This is a pattern or a network: what is set here is for all keys that it covers. ",
        h("a", { href: linkTo(key, false) }, "Look at the key of this name."));
    }
    return lookAtOverride(key);
  }
  async function lookAtOverride(name) {
    try {
      const o = shared.hello.admin ? await call("GET", keyPath("/v1/overrides/", name)) : null;
      override.hidden = !o;
      if (o) text(override, "Override: " + overrideText(o));
    } catch {
      override.hidden = true; // there is none
    }
  }
  async function look() {
    if (isSeveral) return lookAtSeveral();
    if (isStep(key)) {
      windows.failed(new Error(`A browser cannot ask for the counts of this key, nor reset them. The command can: streamcounter keys show ${key}`));
      return lookAtOverride(target(key));
    }
    try {
      const state = await call("GET", keyPath("/v1/keys/", key));
      if (left) return;
      windows.show(state);
      const share = Math.max(0, ...state.windows.map((w) => w.used / w.limit));
      samples.push({ t: now(), v: 100 * share });
      if (samples.length > hourMs / lookEvery) samples.shift();
      const o = state.override;
      unruled(state.rule || o ? "" : "Only shadow rules match this key: nothing limits it.");
      const is = o?.block ? "blocked" : o?.exempt ? "exempt" : share >= 1 || state.penalty ? "throttled" : "admitted";
      text(badge, is);
      badge.className = "badge " + is;
      override.hidden = !o;
      if (o) text(override, "Override" + (o.pattern || o.network ? " of " + (o.pattern || o.network) : "") + ": " + overrideText(o));
      draw();
    } catch (err) {
      if (left) return;
      windows.failed(err);
      const none = err instanceof Refused && err.status === 404;
      text(badge, none ? "no rule" : "");
      badge.className = "badge";
      unruled(none ? "No rule matches this key: nothing limits it, and it is not counted. A block still works." : "");
    }
  }
  const refresh = () => { look(); history.refresh(); };
  const timer = setInterval(look, isSeveral ? 5 * lookEvery : lookEvery);
  const slow = setInterval(() => history.refresh(), 5 * lookEvery);
  refresh();
  const root = h("div", { class: "keyview" }, h("p", {}, h("a", { href: "#/" }, "← Overview")),
    h("h1", {}, h("span", { class: "key" }, key), " ", badge), override, nobody,
    h("div", { class: "columns" },
      h("div", {}, windows.root, lastHour),
      h("div", {}, change?.root, history.root)));
  return { root, take(m) {
    if (m.transitions?.some((t) => t.key === key)) refresh();
  }, leave() { left = true; clearInterval(timer); clearInterval(slow); } };
}
