// What happens: decisions and alerts as NATS has them.

import { h, text, time } from "./dom.js";
import { keyLink } from "./table.js";
import { clock, number, what, why } from "./words.js";

export function feedCard(shared) {
  const list = h("ol", { class: "feed" }), note = h("p", { class: "muted" });
  let paused = false;
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    text(pause, paused ? "Go on" : "Pause");
    if (!paused) draw();
  } }, "Pause");
  function draw() {
    const some = shared[shared.show].filter((t) => !shared.rule || t.rule === shared.rule).slice(0, 40);
    list.replaceChildren(...some.map((t) => h("li", {}, time(t.at_ms, clock(t.at_ms)),
      h("span", { class: "state " + (t.shadow ? "shadow" : t.state) }, what(t)), keyLink(t.key),
      h("span", { class: "muted" }, t.rule === "override" ? why(t) : t.rule + ", " + why(t)))));
    if (!some.length) list.replaceChildren(h("li", { class: "empty" }, "Nothing yet, since this page is open."));
  }
  draw();
  return { root: h("section", { class: "card", id: "feed" }, h("h2", {}, "As it happens ", pause), note, list), changed: draw, take(m) {
    if (shared.hello && !shared.hello.nats) text(note, "This server has no NATS (--nats): it does not receive decisions.");
    if (!m.transitions) return;
    if (!paused) draw();
    text(note, m.skipped ? `${number(m.skipped)} more came in the same moment and are not listed.` : "");
  } };
}
