// What an operator can do to a key. Each is confirmed first; the server writes down who did it.

import { h, text } from "./dom.js";
import { call, isStep, keyPath, target } from "./api.js";
import { number, several } from "./words.js";

function field(label, input) {
  return h("label", {}, h("span", {}, label), input);
}

// confirm asks, with what will happen, and resolves to whether to go on.
function confirm(question, go) {
  return new Promise((done) => {
    const dialog = h("dialog", { "aria-labelledby": "question" }, h("form", { method: "dialog" }, h("p", { id: "question" }, question),
      h("div", { class: "pager" }, h("button", { value: "no", class: "quiet" }, "Cancel"), h("button", { value: "yes", id: "confirm" }, go))));
    dialog.addEventListener("close", () => { done(dialog.returnValue === "yes"); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// effect says what an override does that its text does not say.
function effect(o) {
  const c = o.covers;
  return [o.replaces && "It replaces " + o.replaces.join(", ") + ".", o.keeps && "It keeps " + o.keeps.join(", ") + ".",
    c && `It covers ${c.at_least ? "at least " : ""}${several(c.keys, "known key")}, ${c.throttled} of them throttled.`,
    ...(o.warnings || []).map((w) => "Warning: " + w + ".")].filter(Boolean);
}

// operate changes a key; or, where that is said, all keys of a pattern or a network.
export function operate(key, isSeveral, changed) {
  const path = keyPath("/v1/overrides/", isSeveral ? key : target(key));
  const lasts = h("input", { id: "for", value: "1h", size: "6", placeholder: "1h", "aria-describedby": "forhelp" });
  const reason = h("input", { id: "reason", maxlength: "250", placeholder: "why, for the history" });
  const limit = h("input", { id: "limit", type: "number", min: "1", value: "1000" });
  const per = h("input", { id: "per", value: "1m", size: "6" });
  const all = h("input", { id: "all", type: "checkbox" });
  const outcome = h("p", { role: "status", id: "outcome" });

  async function act(question, go, method, path, body, said) {
    if (!await confirm(question, go)) return;
    try {
      const done = await call(method, path, body);
      text(outcome, [done.cleared === false ? "There was no override." : said, ...effect(done)].join(" "));
      outcome.className = "done";
    } catch (err) {
      failed(err);
    }
    changed();
  }
  function failed(err) {
    text(outcome, err.message);
    outcome.className = "problem";
  }

  const span = () => (lasts.value.trim() ? " for " + lasts.value.trim() : " until it is cleared");
  // set asks the server first what it would do, and says that in the question.
  async function set(verb, what, said, to = "") {
    const body = { ...what };
    if (lasts.value.trim()) body.for = lasts.value.trim();
    if (reason.value.trim()) body.reason = reason.value.trim();
    try {
      const would = await call("PUT", path + "?dry_run=true", body);
      await act([`${verb} ${key}${to}${span()}?`, ...effect(would)].join(" "), verb, "PUT", path, body, said + to + span() + ".");
    } catch (err) {
      failed(err);
    }
  }
  const button = (id, name, click, kind) => h("button", { type: "button", id, class: kind, onclick: click }, name);

  const limits = h("div", { class: "fields" }, field("Limit", limit), field("per", per), field("in place of all windows", all),
    button("setlimit", "Set limit", () => set("Limit", { windows: [{ limit: Number(limit.value), per: per.value.trim() }],
      ...(all.checked ? { only: true } : {}) }, "Limited", ` to ${number(Number(limit.value))} per ${per.value.trim()}`)));
  const exempt = button("exempt", "Exempt", () => set("Exempt", { exempt: true }, "Exempt"));
  const reset = button("reset", "Reset counts", () => act(`Set the counts of ${key} to zero?`, "Reset", "DELETE", keyPath("/v1/keys/", key), null,
    "The counts are zero."), "quiet");
  const root = h("section", { class: "card", id: "operate" }, h("h2", {}, "Change"),
    h("div", { class: "fields" }, field("For", lasts), field("Reason", reason)),
    h("p", { class: "muted", id: "forhelp" }, "90s, 1h or 7d; empty: until it is cleared."),
    h("div", { class: "actions" },
      button("block", "Block", () => set("Block", { block: true }, "Blocked"), "danger"),
      exempt),
    limits,
    h("div", { class: "actions" },
      button("clear", "Clear override", () => act(`Remove the override of ${key}?`, "Remove", "DELETE",
        path + (reason.value.trim() ? "?reason=" + encodeURIComponent(reason.value.trim()) : ""), null,
        "The override is removed."), "quiet"),
      reset),
    outcome);
  reset.hidden = isSeveral || isStep(key);
  // Without a rule there is nothing to exempt from, to limit or to reset.
  return { root, unruled: (is) => { limits.hidden = exempt.hidden = is; reset.hidden = is || isStep(key); } };
}
