// Elements made of text, never of markup: whatever a key holds, it is shown as it is.

// h makes an element: h("td", {class: "num"}, "42"). on… attributes are listeners.
export function h(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat(2).filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

// svg is h for drawings.
export function svg(name, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// time shows a moment, with the date and the zone where one points at it.
export const time = (ms, said) => h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toString() }, said);

// text sets what an element says, if that changed: a screen reader hears only changes.
export function text(e, value) {
  if (e.textContent !== value) e.textContent = value;
}
