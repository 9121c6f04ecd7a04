// Similar titles: a button beside a title opens the five titles whose vectors are most similar to its own.

import { el, icon, iconButton } from "./dom.js";

const SHOWN = 5;
let panels = 0;

export class Similar {
  /** `ask(item, n)` asks the worker; `toggle(item)` puts a title into the list or takes it out; `state(item)` says how
   * it stands, "" where it is not picked. */
  constructor(catalogue, { ask, toggle, state, say }) {
    Object.assign(this, { catalogue, ask, toggle, state, say });
    this.open = new Map();
  }

  /** A button that opens and closes the similar titles of an item, at the end of the row that it stands in. */
  button(item, text = "") {
    const label = `Similar titles: ${this.catalogue.full(item)}`;
    const button = text ? el("button", { type: "button", class: "text similar-button", aria: { label } }, text)
      : iconButton("similar", label, { class: "quiet similar-button" });
    if (!text) button.title = "Similar titles";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", (event) => {
      event.stopPropagation(); // the list around it has actions of its own
      this.#press(button, item);
    });
    return button;
  }

  #press(button, item) {
    const row = button.closest("li");
    const expanded = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!expanded));
    if (expanded) {
      row.querySelector(".similar").remove();
      button.removeAttribute("aria-controls");
      return;
    }
    const label = `Similar to ${this.catalogue.full(item)}`;
    const panel = el("div", { class: "similar", id: `similar-${panels++}`, role: "group", aria: { label } });
    panel.addEventListener("click", (event) => event.stopPropagation());
    row.append(panel);
    button.setAttribute("aria-controls", panel.id);
    this.open.set(panel, item);
    this.ask(item, SHOWN);
  }

  /** Fills the panels that wait for this answer of the worker. */
  show({ item, items }) {
    for (const [panel, of] of this.open) {
      if (of !== item || panel.childElementCount) continue;
      panel.append(...items.map((one) => this.#title(one.item)));
      if (!items.length) panel.append(el("p", { class: "hint" }, "Too little is known of this title."));
    }
    this.say(items.length ? `${items.length} titles are similar to ${this.catalogue.full(item)}.`
      : `Too little is known of ${this.catalogue.full(item)}.`);
    this.update();
  }

  #title(item) {
    const button = el("button", { type: "button", data: { item } }, icon("like"),
      el("span", {}, this.catalogue.full(item)));
    button.addEventListener("click", () => this.toggle(item));
    return button;
  }

  /** Shows which similar titles are in the list now. */
  update() {
    for (const panel of this.open.keys()) {
      if (!panel.isConnected) this.open.delete(panel);
      for (const button of panel.querySelectorAll("button")) {
        const state = this.state(Number(button.dataset.item));
        button.setAttribute("aria-pressed", String(Boolean(state)));
        button.title = state || "Put into your list";
      }
    }
  }
}
