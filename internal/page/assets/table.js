// A table whose rows change in place.

import { h } from "./dom.js";

// table makes one: columns are [{name, class}], and update(rows) takes rows of cells.
export function table(caption, columns, empty) {
  const body = h("tbody");
  const root = h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", {}, h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: c.class }, c.name)))), body));
  root.update = (rows) => {
    // The focus stays on the link that had it, though its row is made anew.
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    body.replaceChildren(...(rows.length ? rows.map((cells) => h("tr", {},
      cells.map((cell, i) => h("td", { class: columns[i].class, "data-label": columns[i].name }, cell))))
      : [h("tr", {}, h("td", { colspan: columns.length, class: "empty" }, empty))]));
    if (focused) [...body.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  };
  return root;
}

// isSeveral tells what looks like a pattern or a network from a key. What is meant as a network is one here, as it is
// for the server (api/network.go), which says what is wrong with it.
const network = /(^|[^a-z0-9./])(\d+(\.\d+){2,4}|[0-9a-f:]*::[0-9a-f:.]*|[0-9a-f]+(:[0-9a-f]+){7})\/[\d.]*$/i;
export const isSeveral = (name) => /[*?]/.test(name) || network.test(name);

// linkTo leads to the view of a key, or of a pattern or a network.
export const linkTo = (name, several) => (several ? "#/match/" : "#/key/") + encodeURIComponent(name);
export const keyLink = (name, several = false) => h("a", { href: linkTo(name, several), class: "key" }, name);
