// Calls of the server. The token lives in this tab alone and goes with the tab.

const place = "streamcounter-token";
export const token = () => sessionStorage.getItem(place) || "";
export const keepToken = (t) => (t ? sessionStorage.setItem(place, t) : sessionStorage.removeItem(place));

// sendable tells whether a header can hold a token. fetch throws for others.
export const sendable = (t) => /^[\x21-\x7e]+$/.test(t);

// Refused is an answer that is no success.
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

function headers() {
  return token() ? { Authorization: "Bearer " + token() } : {};
}

async function refused(response) {
  let detail = response.status + " " + response.statusText;
  try {
    detail = (await response.json()).detail || detail;
  } catch {
    // it is no problem document
  }
  return new Refused(response.status, detail);
}

// A browser lets calls wait where other tabs have all its connections.
const longestMs = 10000;
const late = () => new Error("No answer came within 10 seconds. Close other tabs of this page if there are many.");

// call asks for JSON.
export async function call(method, path, body) {
  try {
    const response = await fetch(path, {
      method, headers: { ...headers(), ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body && JSON.stringify(body), cache: "no-store", signal: AbortSignal.timeout(longestMs),
    });
    if (!response.ok) throw await refused(response);
    return await response.json();
  } catch (err) {
    throw err.name === "TimeoutError" ? late() : err;
  }
}

// keyPath gives the path of a key that is no step.
export const keyPath = (before, key) => before + encodeURIComponent(key);

// isStep tells a key that a browser takes for a step in a path, however it is escaped.
export const isStep = (key) => /^\.{1,2}$/.test(key);

// target names a key where a pattern or a network could stand too. It is never a step.
export const target = (key) => key.replace(/[\\*?/]|^\.{1,2}$/g, "\\$&");

// stream hands on each message of the live stream until that ends. EventSource could send no token.
export async function stream(take, signal) {
  const slow = new AbortController(), timer = setTimeout(() => slow.abort(late()), longestMs);
  const response = await fetch("/page/live", { headers: headers(), signal: AbortSignal.any([signal, slow.signal]), cache: "no-store" })
    .finally(() => clearTimeout(timer));
  if (!response.ok) throw await refused(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
    }
  }
}
