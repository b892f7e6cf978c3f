// Who is throttled, page by page. The first page of what is enforced is live; any other is asked for.

import { h, text, time } from "./dom.js";
import { call } from "./api.js";
import { table, keyLink } from "./table.js";
import { ends, moment, why, number } from "./words.js";

const perPage = 50, askEvery = 5000;

export function throttledCard(shared) {
  const rows = table("Throttled keys", [{ name: "Key" }, { name: "Rule" }, { name: "Used" }, { name: "Since", class: "time" },
    { name: "Ends", class: "time" }], "Nobody is throttled.");
  const title = h("span", {}), count = h("span", { class: "count" }), where = h("span", { class: "muted" });
  const previous = h("button", { type: "button", class: "quiet", onclick: () => go(afters.slice(0, -1)) }, "Previous");
  const next = h("button", { type: "button", class: "quiet", onclick: () => go(afters.concat(following)) }, "Next");
  let afters = [""]; // the page that is shown is the last of these
  let following = "", asked = 0, waiting = 0, failure = "", list = [];

  // A decision that has ended stands until a worker has looked at it.
  function draw() {
    rows.update(list.map((t) => [keyLink(t.key), h("span", { class: "rule" }, t.rule), why(t), time(t.since_ms, moment(t.since_ms)),
      t.until_ms ? time(t.until_ms, ends(t.until_ms)) : ends(0)]));
    const first = (afters.length - 1) * perPage;
    text(where, failure || (list.length ? `${number(first + 1)} to ${number(first + list.length)}` : ""));
    previous.disabled = afters.length === 1;
    next.disabled = !following;
  }

  async function go(to) {
    const mine = ++asked;
    waiting++;
    const query = `/v1/throttled?limit=${perPage}&shadow=${shared.show === "shadow"}` +
      (shared.rule ? "&rule=" + encodeURIComponent(shared.rule) : "") + (to.length > 1 ? "&after=" + encodeURIComponent(to.at(-1)) : "");
    try {
      const page = await call("GET", query);
      if (mine !== asked) return;
      [afters, list, following, failure] = [to, page.throttled, page.next || "", ""];
      draw();
    } catch (err) {
      if (mine === asked) failure = err.message;
    } finally {
      waiting--;
    }
  }

  const live = () => shared.show === "enforced" && !shared.rule && afters.length === 1;
  const timer = setInterval(() => { if (!live() && afters.length === 1 && !waiting) go([""]); }, askEvery);
  const root = h("section", { class: "card stack", id: "throttled" }, h("h2", {}, title, " ", count), rows,
    h("div", { class: "pager" }, where, previous, next));

  function take(sample) {
    const kind = shared.show === "shadow";
    text(title, kind ? "Keys that shadow rules would throttle" : "Throttled keys");
    text(count, number(shared.rule ? sample.by_rule?.[shared.rule] || 0 : kind ? sample.shadow : sample.throttled));
    if (live()) {
      [list, following] = [sample.rows || [], sample.next || ""];
    }
    draw();
  }
  return { root, take, leave: () => clearInterval(timer), changed() {
    asked++; // what was asked for is of another choice
    [afters, list, following, failure] = [[""], [], "", ""];
    if (shared.sample) take(shared.sample);
    if (!live()) go([""]);
  } };
}
