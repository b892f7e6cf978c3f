// How numbers, times and what happened are worded.

const whole = new Intl.NumberFormat("en");
export const number = (n) => whole.format(Math.round(n));

// several words how many there are of a thing.
export const several = (n, thing) => `${number(n)} ${thing}${n === 1 ? "" : "s"}`;

// rate words a number per second.
export const rate = (n) => (n > 0 && n < 9.95 ? n.toFixed(1) : number(n));

let ahead = 0; // of the server's clock before this browser's, in ms

// setClock goes by the server's time from now on.
export const setClock = (ms) => { ahead = ms - Date.now(); };
export const now = () => Date.now() + ahead;

// zone names the time zone in which times are shown.
export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

// ends says in how long something ends, or that it has to be looked at.
export const ends = (ms) => (!ms ? "until it is cleared" : ms > now() ? "in " + span(Math.max(1000, ms - now())) : "now");

const pad = (n, digits = 2) => String(n).padStart(digits, "0");

export function clock(ms) {
  const d = new Date(ms);
  return pad(d.getHours()) + ":" + pad(d.getMinutes()) + ":" + pad(d.getSeconds());
}

// moment is the clock, with the date where that is not today.
export function moment(ms) {
  const d = new Date(ms);
  const today = d.toDateString() === new Date().toDateString();
  return (today ? "" : d.getFullYear() + "-" + pad(d.getMonth() + 1) + "-" + pad(d.getDate()) + " ") + clock(ms);
}

// span words a duration: 500ms, 8s, 5m, 1h 30m, 2d.
export function span(ms) {
  if (ms < 1000) return Math.max(0, Math.round(ms)) + "ms";
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  let s = Math.round(ms / 1000);
  const parts = [];
  for (const [size, unit] of units) {
    if (s >= size && parts.length < 2) {
      parts.push(Math.floor(s / size) + unit);
      s %= size;
    } else if (parts.length > 0) break;
  }
  return parts.join(" ");
}

// per says what a window's limit is counted in.
export const per = (w) => (w.in_flight ? "in flight" : (w.distinct ? `different values of ${w.distinct} ` : "") + "per " + span(w.window_ms));

// why says what a throttle decision is about.
export function why(t) {
  if (t.rule === "override") return "blocked by an operator" + (t.reason ? ": " + t.reason : "");
  return number(t.used) + " of " + number(t.limit) + " " + per(t) + (t.penalty ? ", " + penaltyText(t.penalty) : "");
}

export const penaltyText = (p) => `penalty ${p.step} of ${p.of} until ${moment(p.until_ms)}`;

// what names a transition.
export function what(t) {
  if (t.state === "raised" || t.state === "cleared") return `${t.level}% ${t.state}${t.shadow ? " (shadow)" : ""}`;
  return (t.shadow ? "would be " : "") + t.state;
}

// ruleText names a rule for people: a block is no rule.
export const ruleText = (name) => (name === "override" ? "blocked by an operator" : name);

// overrideText words what an operator has set.
export function overrideText(o) {
  let text = o.block ? "blocked" : o.exempt ? "exempt" : o.rule ? "tier " + o.rule
    : "limit " + (o.windows || []).map((w) => number(w.limit) + " per " + w.per).join(", ") + (o.only ? " alone" : "");
  if (o.until_ms) text += " until " + moment(o.until_ms);
  if (o.by) text += ", by " + o.by;
  if (o.reason) text += ", " + o.reason;
  return text;
}
