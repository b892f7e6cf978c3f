// Who is throttled, page by page. The first page is live; a later one stays as it was when it was asked for.

import { h, text } from "./dom.js";
import { call } from "./api.js";
import { table, keyLink } from "./table.js";
import { moment, why, number } from "./words.js";

const perPage = 50;

export function throttledCard() {
  const rows = table("Throttled keys", [{ name: "Key" }, { name: "Rule" }, { name: "Used" }, { name: "Since", class: "time" },
    { name: "Until", class: "time" }], "Nobody is throttled.");
  const count = h("span", { class: "count" });
  const where = h("span", { class: "muted" });
  const previous = h("button", { type: "button", class: "quiet", onclick: () => go(-1) }, "Previous");
  const next = h("button", { type: "button", class: "quiet", onclick: () => go(1) }, "Next");
  let afters = [""]; // the page that is shown is the last of these
  let following = "", asked = 0;

  function show(list, after) {
    following = after || "";
    rows.update(list.map((t) => [keyLink(t.key), h("span", { class: "rule" }, t.rule + (t.shadow ? " (shadow)" : "")), why(t),
      moment(t.since_ms), t.until_ms ? moment(t.until_ms) : "until it is cleared"]));
    const first = (afters.length - 1) * perPage;
    text(where, list.length ? `${number(first + 1)} to ${number(first + list.length)}` : "");
    previous.disabled = afters.length === 1;
    next.disabled = !following;
  }

  async function go(by) {
    const mine = ++asked;
    const to = by > 0 ? afters.concat(following) : afters.slice(0, -1);
    try {
      const page = await call("GET", `/v1/throttled?limit=${perPage}` + (to.length > 1 ? "&after=" + encodeURIComponent(to.at(-1)) : ""));
      if (mine !== asked) return;
      afters = to;
      show(page.throttled, page.next);
    } catch (err) {
      text(where, err.message);
    }
  }

  const root = h("section", { class: "card wide", id: "throttled" }, h("h2", {}, "Throttled keys ", count), rows,
    h("div", { class: "pager" }, where, previous, next));
  return { root, take(sample) {
    text(count, number(sample.throttled) + (sample.shadow ? ` and ${number(sample.shadow)} in the shadow` : ""));
    if (afters.length === 1) show(sample.rows || [], sample.next);
  } };
}
