// The frame of the page: login, the live connection, and which view stands in it.

import { h, text } from "./dom.js";
import { token, keepToken, sendable } from "./api.js";
import { live } from "./live.js";
import { overview } from "./overview.js";
import { isSeveral, linkTo } from "./table.js";
import { setClock, zone } from "./words.js";
import { keyView } from "./key.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const logout = document.getElementById("logout");
const states = { live: "Live", connecting: "Connecting", away: "No connection, trying again", paused: "Paused while this tab is hidden" };

// shared is what views have in common: what the server said last, and what is chosen.
const shared = { hello: null, sample: null, plots: [], hours: null, enforced: [], shadow: [], show: "enforced", rule: "", long: false };
let view = null;
let connection = null;

function state(name) {
  link.dataset.state = name;
  text(link, states[name]);
}

function connect() {
  connection?.abort();
  connection = new AbortController();
  state("connecting");
  live({ take, state, denied, signal: connection.signal });
}

const keptTransitions = 100, keptPlots = 300;

function take(m) {
  if (m.hello) {
    shared.hello = m.hello;
    // A tab that was hidden keeps what it saw before.
    const from = m.hello.plots[0]?.t ?? Infinity;
    shared.plots = shared.plots.filter((p) => p.t < from).concat(m.hello.plots).slice(-keptPlots);
    text(document.getElementById("prefix"), "prefix " + m.hello.prefix);
    logout.hidden = !token();
    if (!view) route();
  }
  for (const t of (m.transitions || []).toReversed()) {
    const kind = t.shadow ? "shadow" : "enforced";
    shared[kind] = [t, ...shared[kind]].slice(0, keptTransitions);
  }
  if (m.hours) shared.hours = m.hours;
  if (m.sample) {
    shared.sample = m.sample;
    setClock(m.sample.at_ms);
    const p = { t: m.sample.at_ms, a: 0, d: 0, s: 0, e: 0, k: m.sample.throttled, l: m.sample.shadow };
    const shadows = new Set((m.sample.rules || []).filter((r) => r.shadow).map((r) => r.name));
    for (const [name, r] of Object.entries(m.sample.rates || {})) {
      if (shadows.has(name)) p.s += r.denied;
      else { p.a += r.allowed; p.d += r.denied; }
      p.e += r.events;
    }
    if (!shared.plots.some((q) => q.t === p.t)) shared.plots = shared.plots.concat(p).slice(-keptPlots);
  }
  view?.take(m);
}

// denied shows the login; what was seen before is taken off the page.
function denied(err) {
  leave();
  shared.hello = shared.sample = shared.hours = null;
  shared.plots = shared.enforced = shared.shadow = [];
  text(document.getElementById("prefix"), "");
  link.dataset.state = "";
  text(link, "");
  logout.hidden = true;
  const problem = h("p", { id: "tokenproblem", class: "problem", role: "alert" });
  const failed = token() ? (err?.message || "") : "";
  keepToken("");
  const input = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false",
    "aria-describedby": "tokenhelp tokenproblem" });
  main.replaceChildren(h("form", { class: "card login", onsubmit: (e) => {
    e.preventDefault();
    const given = input.value.trim();
    input.value = "";
    if (!sendable(given)) return text(problem, "The token is not known: a token has only printable ASCII characters.");
    keepToken(given);
    connect();
  } },
  h("h1", {}, "Log in"),
  h("label", { for: "token" }, "Token"), input,
  problem,
  h("p", { id: "tokenhelp", class: "muted" }, "One of the server's tokens with the scope read, or admin to change anything. " +
    "It stays in this tab until you close it."),
  h("button", { type: "submit" }, "Log in")));
  text(problem, failed);
  input.focus();
}

function leave() {
  view?.leave();
  view = null;
}

function route() {
  if (!shared.hello) return;
  leave();
  const hash = location.hash;
  // #/key/ is a key, whatever it holds, and #/match/ a pattern or a network.
  let [, kind, key] = hash.match(/^#\/(key|match)\/(.+)$/) || [];
  if (key) {
    try {
      key = decodeURIComponent(key);
    } catch {
      // it is shown as it stands
    }
  }
  view = key ? keyView(shared, key, kind === "match") : overview(shared);
  document.title = key ? key + " · streamcounter" : "streamcounter";
  main.replaceChildren(view.root);
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", () => { route(); main.focus({ preventScroll: true }); });
document.getElementById("find").addEventListener("submit", (e) => {
  e.preventDefault();
  const input = document.getElementById("key");
  if (input.value) location.hash = linkTo(input.value, isSeveral(input.value));
  input.value = "";
});
logout.addEventListener("click", () => { connection?.abort(); keepToken(""); denied(); });
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); main.focus(); });
document.getElementById("foot").textContent = "Times are of " + zone() + ".";
connect();
