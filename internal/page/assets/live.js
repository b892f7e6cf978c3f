// The connection that stays: it asks again when it ends, at once after a clean end, later and later
// after failures. A hidden tab has none: a browser has six connections for all tabs of a server.

import { stream, Refused } from "./api.js";

const longestWait = 5000;

// live connects until the given signal aborts. take gets messages, state says "live", "connecting", "paused" or
// "away", and denied is called where the token does not do.
export async function live({ take, state, denied, signal }) {
  for (let wait = 250; !signal.aborted;) {
    if (document.hidden) {
      state("paused");
      await change(signal);
      if (!document.hidden) state("connecting");
      continue;
    }
    let heard = false;
    const hidden = new AbortController(), hide = () => hidden.abort();
    document.addEventListener("visibilitychange", hide, { once: true });
    try {
      await stream((m) => {
        if (!heard) state("live");
        heard = true;
        wait = 250;
        take(m);
      }, AbortSignal.any([signal, hidden.signal]));
    } catch (err) {
      if (signal.aborted) return;
      if (hidden.signal.aborted) continue;
      if (err instanceof Refused && (err.status === 401 || err.status === 403)) {
        denied(err);
        return;
      }
      state("away");
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (signal.aborted) return;
    if (heard && wait === 250) {
      // It ended as it does every minute, or with the server: the next try tells.
      await sleep(50, signal);
      wait = 251;
      continue;
    }
    state("away");
    await sleep(wait, signal);
    wait = Math.min(wait * 2, longestWait);
  }
}

// change waits until the tab is hidden or shown.
function change(signal) {
  return new Promise((done) => {
    document.addEventListener("visibilitychange", done, { once: true, signal });
    signal.addEventListener("abort", done, { once: true });
  });
}

function sleep(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
