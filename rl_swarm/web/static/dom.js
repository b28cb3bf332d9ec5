// Build elements and write figures. Every text becomes a text node: nothing from the server is ever parsed as markup.

export function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) {
      made.addEventListener(name.slice(2), value);
      made.listens = true;
    }
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
  return parent;
}

// Give an element new children. Nodes that are alike stay in place, so a reader keeps focus, selection and scroll positions.
export function renew(parent, ...children) {
  match(parent, fill(document.createElement("div"), ...children));
  return parent;
}

function match(shown, wanted) {
  const before = [...shown.childNodes];
  const after = [...wanted.childNodes];
  after.forEach((next, place) => {
    const now = before[place];
    if (!now) shown.append(next);
    else if (now.nodeName !== next.nodeName || now.listens || next.listens) now.replaceWith(next);
    else if (now.nodeType === Node.TEXT_NODE) {
      if (now.data !== next.data) now.data = next.data;
    } else {
      matchAttributes(now, next);
      match(now, next);
    }
  });
  for (const surplus of before.slice(after.length)) surplus.remove();
}

function matchAttributes(now, next) {
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) {
    if (name === "style") now.style.cssText = next.style.cssText; // the policy forbids the attribute itself
    else if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
}

export const NOTHING = "–";
export const number = (value, digits = 3) =>
  value === null || value === undefined ? NOTHING : (Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits);
export const percent = (value, digits = 1) => (value === null || value === undefined ? NOTHING : `${number(100 * value, digits)}\u00a0%`);
export const whole = (value) => (value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en"));
export const counted = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

export function roughly(seconds) {
  const known = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (known >= size) return `${Math.floor(known / size)} ${unit}`;
  return `${known} s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const known = Math.max(0, Math.round(seconds));
  if (known < 60) return `${known} s`;
  if (known < 3600) return `${Math.floor(known / 60)} min ${known % 60} s`;
  return `${Math.floor(known / 3600)} h ${Math.floor((known % 3600) / 60)} min`;
}

export const ago = (moment) => (moment ? roughly(Date.now() / 1000 - moment) : NOTHING);

export function tile(name, figure, more, extra) {
  return h("div", { class: "tile" }, h("span", null, name), h("b", null, figure), more && h("span", null, more), extra);
}

export function table(heads, rows, { numbers = 0, caption = "", label = "" } = {}) {
  const words = heads.length - numbers;
  const line = (tag, cells) =>
    h("tr", null, cells.map((cell, place) =>
      h(place === 0 && tag === "td" ? "th" : tag, { class: place >= words ? "number" : "", scope: tag === "th" ? "col" : place ? null : "row" }, cell)));
  const body = h("table", { class: "figures" }, caption && h("caption", null, caption),
    h("thead", null, line("th", heads)), h("tbody", null, rows.map((row) => line("td", row))));
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label || caption || "table" }, body);
}

export function section(title, ...parts) {
  return h("section", { class: "card" }, h("h2", null, title), parts);
}

// A node: its id, and below it the name that is easier to remember.
export function who(node) {
  return [node.id, h("span", { class: "name" }, node.name)];
}

// What is shown instead of figures: nothing yet, still loading, or an error; each says what to do.
export function state(title, detail, ...more) {
  return h("div", { class: "state", role: "status" }, h("h2", null, title), detail && h("p", null, detail), more);
}
