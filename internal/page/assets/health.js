// The health of what streamcounter needs, in a row. A mark says what is wrong, not its colour alone.

import { h, text } from "./dom.js";
import { moment, number, span } from "./words.js";

const ms = (n) => (n < 10 ? n.toFixed(1) : number(n)) + " ms";

export function healthCard(shared) {
  const items = {}, list = h("ul", { class: "health", id: "health" });
  // What is read aloud does not change each second.
  const told = h("p", { role: "alert" }), counted = h("p", {});
  const alarm = h("div", { class: "notice", id: "onerror", hidden: true }, told, counted);
  function set(name, good, said) {
    if (!items[name]) {
      const mark = h("span", { class: "mark" }), value = h("span", {});
      list.append(h("li", {}, mark, h("strong", {}, name), " ", value));
      items[name] = { mark, value };
    }
    items[name].mark.classList.toggle("wrong", !good);
    text(items[name].mark, good ? "✓" : "!");
    text(items[name].value, said);
  }
  return { root: h("div", {}, alarm, list), take(s) {
    const is = s.health, o = is.on_error;
    set("Redis", is.redis_ms >= 0, is.redis_ms >= 0 ? "answers in " + ms(is.redis_ms) : "does not answer");
    set("NATS", is.nats !== "away", is.nats || "not used by this server");
    const workers = (s.processes || []).filter((p) => p.command === "work" || p.command === "dev").length;
    const servers = (s.processes || []).filter((p) => p.command !== "work").length;
    set("Workers", workers > 0, workers > 0 ? `${workers} running` : "none: events are not counted, throttles do not end");
    set("Servers", true, `${servers} running`);
    set("Answers", true, is.latency ? `half within ${ms(is.latency.p50)}, 99% within ${ms(is.latency.p99)} (this server)` : "no checks in the last minute");
    set("on_error", !o, o ? "in force" : "not in force");
    alarm.hidden = !o;
    if (o) {
      text(counted, `For ${span(s.at_ms - o.since_ms)}: ${number(o.allow)} allowed without counting, ${number(o.deny)} denied, ` +
        `${number(o.local)} counted in this process.`);
    }
    text(told, o ? `Redis does not answer. Since ${moment(o.since_ms)} on_error decides this server's checks.` : "");
  } };
}
