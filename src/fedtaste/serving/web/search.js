// The search box: an ARIA 1.2 combobox. The first hit is marked, so that typing and Enter is enough.

import { $, counted, el, icon } from "./dom.js";

const SHOWN = 12;

export class Search {
  /** `pick(item, value)` is called with the choice; `state(item)` says in words how an item stands. */
  constructor(catalogue, manifest, { pick, state, say }) {
    Object.assign(this, { catalogue, manifest, pick, state, say });
    this.ranking = manifest.task === "ranking";
    this.input = $("search");
    this.box = $("options");
    this.at = -1;
    const keys = matchMedia("(pointer: coarse)").matches
      ? "Tap a title to like it, or the thumb that points down."
      : "Enter likes the marked title, Shift and Enter dislikes it.";
    $("search-hint").textContent = this.ranking ? keys : "Choose a title, then give it stars.";
    this.input.addEventListener("input", () => this.update());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("blur", () => this.close());
    this.input.addEventListener("focus", () => this.input.value && this.update());
    $("popup").addEventListener("mousedown", (event) => event.preventDefault());
    this.box.addEventListener("click", (event) => this.#click(event));
    this.box.addEventListener("mousemove", (event) => {
      const option = event.target.closest("li");
      if (option) this.#mark([...this.box.children].indexOf(option), false);
    });
  }

  update() {
    const query = this.input.value;
    if (!query.trim()) return this.close();
    let hits = this.catalogue.search(query);
    const none = !hits.length;
    const total = hits.length;
    if (none) hits = this.catalogue.closest(query, 5);
    $("none").hidden = !none;
    const meant = ["", " Did you mean this one?"][hits.length] ?? " Did you mean one of these?";
    $("none").textContent = `No such title in this catalogue.${meant}`;
    $("more").hidden = total <= SHOWN;
    $("more").textContent = `and ${counted(total - SHOWN, "more title", "more titles")}: type on`;
    this.box.replaceChildren(...hits.slice(0, SHOWN).map((item, i) => this.#option(item, i)));
    this.box.hidden = !hits.length;
    $("popup").hidden = false;
    this.input.setAttribute("aria-expanded", String(hits.length > 0));
    this.#mark(none || !hits.length ? -1 : 0, true);
    this.say(none ? $("none").textContent : `${counted(total, "title")} found`);
    return undefined;
  }

  close() {
    $("popup").hidden = true;
    this.box.replaceChildren();
    this.input.setAttribute("aria-expanded", "false");
    this.#mark(-1, false);
  }

  #option(item, i) {
    const { catalogue } = this;
    const state = this.state(item);
    const kinds = catalogue.kinds(item);
    const label = [catalogue.full(item), kinds, state].filter(Boolean).join(", ");
    const text = el("span", { class: "what" },
      el("span", { class: "name" }, catalogue.name(item), " ", el("span", { class: "year" }, catalogue.year(item))),
      el("span", { class: "meta" }, [kinds, state].filter(Boolean).join(" · ")));
    const aria = { selected: "false", label };
    const option = el("li", { id: `option-${i}`, role: "option", data: { item }, aria }, text);
    if (this.ranking) {
      option.append(el("span", { class: "thumbs", aria: { hidden: "true" } },
        el("span", { title: "Like", data: { value: 1 } }, icon("like")),
        el("span", { title: "Dislike", data: { value: 0 } }, icon("dislike"))));
    }
    return option;
  }

  #mark(at, scroll) {
    this.box.children[this.at]?.setAttribute("aria-selected", "false");
    this.at = at;
    const option = this.box.children[at];
    if (!option) return this.input.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    this.input.setAttribute("aria-activedescendant", option.id);
    if (scroll) option.scrollIntoView({ block: "nearest" });
    return undefined;
  }

  #key(event) {
    const count = this.box.children.length;
    const open = count > 0;
    const up = (this.at <= 0 ? count : this.at) - 1;
    const moves = { ArrowDown: (this.at + 1) % count, ArrowUp: up, Home: 0, End: count - 1 };
    if (open && event.key in moves) this.#mark(moves[event.key], true);
    else if (event.key === "ArrowDown") this.update();
    else if (event.key === "Enter" && open && this.at >= 0) this.#choose(this.at, event.shiftKey ? 0 : 1);
    else if (event.key === "Escape" && !$("popup").hidden) this.close();
    else if (event.key === "Escape") this.input.value = "";
    else return;
    event.preventDefault();
  }

  #click(event) {
    const option = event.target.closest("li");
    if (!option) return;
    const value = event.target.closest("[data-value]")?.dataset.value ?? "1";
    this.#choose([...this.box.children].indexOf(option), Number(value));
  }

  #choose(at, value) {
    const item = Number(this.box.children[at].dataset.item);
    this.input.value = "";
    this.close();
    this.pick(item, this.ranking ? value : null);
  }
}
