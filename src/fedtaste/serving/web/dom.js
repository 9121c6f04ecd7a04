// Builds page elements. Text is always inserted as text, never parsed as markup.

export const $ = (id) => document.getElementById(id);

/** An element with properties (`data` and `aria` are objects, `class` is the class) and children. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "aria") for (const [name, text] of Object.entries(value)) node.setAttribute(`aria-${name}`, text);
    else if (key === "role" || key === "for") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button with an icon and a name, as a tooltip and for screen readers. */
export function iconButton(name, label, props = {}) {
  return el("button", { type: "button", title: label, ...props, aria: { label, ...props.aria } }, icon(name));
}

/** "A", "A and B", "A, B and C" */
export function listed(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** "1 title", "2,000 titles" */
export function counted(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** The values one can give on the manifest's scale, lowest first. */
export function steps({ scale: [low, high], integer_steps: whole }) {
  const step = whole ? 1 : 0.5;
  return Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
}

let groups = 0;

/** Stars to choose from, as radio buttons that listen to digits too; a scale too long for stars becomes a menu. */
export function stars(manifest, title, value) {
  const values = steps(manifest);
  const label = `Your stars for ${title}`;
  if (values.length > 10 || values[0] < 0) {
    const menu = el("select", { class: "stars", aria: { label } }, el("option", { value: "" }, "Rate…"));
    menu.append(...values.map((v) => el("option", { value: v, selected: v === value }, String(v))));
    return menu;
  }
  const name = `stars-${groups++}`;
  const box = el("span", { class: "stars", role: "radiogroup", aria: { label } });
  for (const v of values) {
    const text = `${counted(v, "star")} of ${values.at(-1)}`;
    const input = el("input", { type: "radio", name, value: v, checked: v === value, aria: { label: text } });
    box.append(el("label", { title: text }, input, icon("star")));
  }
  box.addEventListener("keydown", (event) => box.querySelector(`input[value="${CSS.escape(event.key)}"]`)?.click());
  return box;
}

/** Shows `value` in stars made above, or none. */
export function setStars(box, value) {
  if (box.tagName === "SELECT") box.value = value ?? "";
  else for (const input of box.querySelectorAll("input")) input.checked = Number(input.value) === value;
}
