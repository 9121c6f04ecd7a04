// The list of recommendations: rows move when the order changes, rather than being made again.

import { $, counted, el, iconButton, icon, listed, stars } from "./dom.js";

const SLOW = matchMedia("(prefers-reduced-motion: reduce)");

export class Recommendations {
  /** `act(item, "rate" or "hide", value, byKeyboard)` is called, and `point(item or NaN)` when a row is looked at. */
  constructor(catalogue, manifest, { act, point, similar }) {
    Object.assign(this, { catalogue, manifest, act, similar });
    this.ranking = manifest.task === "ranking";
    this.list = $("recommendations");
    this.rows = new Map();
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.#do(button, button.dataset.do, Number(button.dataset.value));
    });
    this.list.addEventListener("change", (event) => this.#do(event.target, "rate", Number(event.target.value)));
    const look = (event) => point(Number(event.target.closest("li")?.dataset.item ?? NaN));
    this.list.addEventListener("pointerover", look);
    this.list.addEventListener("focusin", look);
    for (const end of ["pointerleave", "focusout"]) this.list.addEventListener(end, () => point(NaN));
  }

  #do(target, what, value) {
    const row = target.closest("li");
    const same = value >= 0 ? `[data-value="${value}"]` : "";
    const kind = target.dataset.do ? `[data-do="${what}"]${same}` : "input, select";
    this.next = { at: [...this.list.children].indexOf(row), kind };
    this.act(Number(row.dataset.item), what, value, target.matches(":focus-visible"));
  }

  /** Shows an answer of the worker; scores are expected stars only while `adventurous` is 0. */
  show(answer, items, { adventurous, filtered }) {
    const { catalogue } = this;
    const places = new Map([...this.rows].map(([item, row]) => [item, row.getBoundingClientRect().top]));
    const focused = this.list.contains(document.activeElement);
    const rows = new Map(items.map((entry) => [entry.item, this.rows.get(entry.item) ?? this.#row(entry.item)]));
    for (const [item, row] of this.rows) if (!rows.has(item)) row.remove();
    this.rows = rows;
    let at = 0;
    for (const entry of items) {
      const row = rows.get(entry.item);
      if (this.list.children[at] !== row) this.list.insertBefore(row, this.list.children[at] ?? null);
      at += 1;
      row.querySelector(".because").replaceChildren(...this.#because(entry, answer.popular));
      if (this.ranking) continue;
      row.querySelector(".expected").textContent = answer.popular || adventurous ? "" : this.#expected(entry.score);
    }
    if (focused && !this.list.contains(document.activeElement)) this.#refocus();
    if (!SLOW.matches) this.#glide(places);
    $("empty").hidden = items.length > 0;
    $("empty").textContent = answer.left > 0
      ? "All that is left is hidden. “Show again” in your list brings it back."
      : filtered ? "Nothing of this genre is left to recommend. Choose another genre."
        : `Nothing is left to recommend: your list holds everything there is here (${counted(catalogue.size, "title")}).`;
  }

  /** Moves the focus to the row that took the place of the one just rated or hidden. */
  #refocus() {
    const { at, kind } = this.next ?? { at: 0, kind: "button" };
    const row = this.list.children[Math.min(at, this.list.children.length - 1)];
    (row?.querySelector(kind) ?? $("search")).focus({ preventScroll: true });
  }

  #glide(places) {
    for (const [item, row] of this.rows) {
      const before = places.get(item);
      const top = row.getBoundingClientRect().top;
      if (before === undefined) row.animate({ opacity: [0, 1] }, { duration: 260, easing: "ease-out" });
      else if (Math.abs(before - top) > 1) {
        row.animate({ transform: [`translateY(${before - top}px)`, "none"] }, { duration: 280, easing: "ease-out" });
      }
    }
  }

  #because({ because }, popular) {
    if (popular) return [];
    if (!because.length) return ["From your list as a whole"];
    const names = because.map((item) => this.catalogue.name(item));
    return ["Because you liked ", el("span", {}, listed(names))];
  }

  #expected(score) {
    const [low, high] = this.manifest.scale;
    return `${Math.min(high, Math.max(low, score)).toFixed(1)} stars expected`;
  }

  #row(item) {
    const { catalogue } = this;
    const name = catalogue.full(item);
    const kinds = catalogue.kinds(item, 3);
    const meta = [kinds, catalogue.fame(item)].filter(Boolean).join(" · ");
    const what = el("div", { class: "what" },
      el("p", { class: "name" }, catalogue.name(item), " ", el("span", { class: "year" }, catalogue.year(item))),
      el("p", { class: "meta" }, kinds && el("i", { class: `g${catalogue.colours[item]}` }), meta),
      el("p", { class: "because" }), this.similar.button(item, "Similar titles"));
    const hide = iconButton("hide", `Hide ${name}`, { class: "quiet", data: { do: "hide" } });
    hide.title = "Hide: neither liked nor disliked";
    if (!this.ranking) {
      what.append(el("p", { class: "expected" }));
      return el("li", { data: { item } }, what, el("div", { class: "votes" }, stars(this.manifest, name, null), hide));
    }
    const like = el("button", { type: "button", class: "like", title: "Like", data: { do: "rate", value: 1 },
      aria: { label: `Like ${name}` } }, icon("like"), el("span", {}, "Like"));
    const dislike = iconButton("dislike", `Dislike ${name}`, { class: "dislike", data: { do: "rate", value: 0 } });
    dislike.title = "Dislike";
    return el("li", { data: { item } }, what, el("div", { class: "votes" }, like, dislike, hide));
  }
}
