// The person's list: change and remove titles, import a list from a file, export it to one.

import { $, counted, el, iconButton, listed, setStars, stars } from "./dom.js";
import { ListError, formatList, ratingRule, readList, understand } from "./lists.js";

const NAMED = 5;

export class Mine {
  /** `act(item, value)` sets a value, `undefined` takes the item out; `take(picks, timed)` adds an imported list. */
  constructor(catalogue, manifest, { act, take, say, similar }) {
    Object.assign(this, { catalogue, manifest, act, take, say, similar });
    this.ranking = manifest.task === "ranking";
    this.list = $("mine");
    this.rows = new Map();
    this.list.addEventListener("click", (event) => this.#click(event));
    this.list.addEventListener("change", (event) => {
      if (event.target.value) this.act(this.#item(event.target), Number(event.target.value));
    });
    this.list.addEventListener("keydown", (event) => {
      if (event.key === "Escape" || (event.key === "Enter" && event.target.type === "radio")) $("search").focus();
    });
    $("import").addEventListener("change", () => this.read($("import").files[0]));
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) this.read(event.dataTransfer.files[0]);
    });
  }

  #item(target) {
    return Number(target.closest("li").dataset.item);
  }

  #click(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const row = button.closest("li");
    if (button.dataset.value !== undefined) return this.act(this.#item(button), Number(button.dataset.value));
    const near = row.nextElementSibling ?? row.previousElementSibling;
    this.act(this.#item(button), undefined);
    (near?.querySelector(".remove") ?? $("search")).focus({ preventScroll: true });
    return undefined;
  }

  /** Updates the rows to the picks, newest first. */
  show(picks) {
    for (const [item, row] of this.rows) {
      if (picks.has(item)) continue;
      row.remove();
      this.rows.delete(item);
    }
    let next = null;
    for (const [item, { value }] of picks) {
      if (!this.rows.has(item)) this.rows.set(item, this.#row(item));
      const row = this.rows.get(item);
      this.#mark(row, value);
      if (row.nextElementSibling !== next || !row.isConnected) this.list.insertBefore(row, next);
      next = row;
    }
    $("mine-count").textContent = picks.size ? String(picks.size) : "";
    $("mine-empty").hidden = picks.size > 0;
    $("export").disabled = !picks.size;
  }

  /** Moves the focus to the stars of an item. */
  focus(item) {
    const row = this.rows.get(item);
    const target = row.querySelector("input:checked, select") ?? row.querySelector("input");
    target?.focus();
    row.scrollIntoView({ block: "nearest" });
  }

  #mark(row, value) {
    row.dataset.value = value ?? "";
    if (!this.ranking) {
      row.querySelector(".unrated").hidden = value !== null;
      return setStars(row.querySelector(".stars"), value);
    }
    for (const button of row.querySelectorAll("[data-value]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.value) === value));
    }
    return undefined;
  }

  #row(item) {
    const name = this.catalogue.full(item);
    const what = el("div", { class: "what" }, el("p", { class: "name" }, this.catalogue.name(item), " ",
      el("span", { class: "year" }, this.catalogue.year(item))));
    const remove = iconButton("remove", `Remove ${name}`, { class: "quiet remove" });
    remove.title = "Remove";
    if (!this.ranking) {
      what.append(el("p", { class: "unrated" }, "No stars yet: it does not count"));
      return el("li", { data: { item } }, what,
        el("div", { class: "votes" }, stars(this.manifest, name, null), this.similar.button(item), remove));
    }
    const like = iconButton("like", `Like ${name}`, { class: "like", data: { value: 1 } });
    const dislike = iconButton("dislike", `Dislike ${name}`, { class: "dislike", data: { value: 0 } });
    const similar = this.similar.button(item);
    return el("li", { data: { item } }, what, el("div", { class: "votes" }, like, dislike, similar, remove));
  }

  save(picks) {
    const blob = new Blob([formatList(picks, this.catalogue, this.manifest)], { type: "text/csv" });
    const link = el("a", { href: URL.createObjectURL(blob), download: "my-list.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    this.say(`Your list was written to my-list.csv: ${counted(picks.size, "title")}.`);
  }

  async read(file) {
    if (!file) return;
    $("import").value = "";
    try {
      const { picks, account } = understand(await readList(file), this.catalogue, this.manifest);
      const taken = picks.length ? this.take(picks, account.timed, file.name) : {};
      this.#report(file.name, this.#sentences(picks, account, taken), account.missing);
    } catch (error) {
      if (!(error instanceof ListError || error instanceof DOMException)) throw error;
      this.#report(file.name, [error instanceof ListError ? error.message : "The browser could not read it.",
        "Your list is as it was."], []);
    }
  }

  #sentences(picks, account, { before, timed }) {
    const values = picks.map(([, pick]) => pick.value);
    const [low, high] = this.manifest.scale;
    const { top, missing, several } = account;
    const said = [];
    if (this.ranking) {
      const likes = values.filter((value) => value === 1).length;
      said.push(`${likes} liked, ${values.length - likes} disliked.`);
    } else {
      const without = values.filter((value) => value === null).length;
      said.push(`${counted(values.length - without, "title")} with stars.`);
      if (without) said.push(`${without} without: they count once you rate them.`);
    }
    if (this.ranking && account.rated && top !== Infinity) said.push(ratingRule(top));
    if (!this.ranking && top !== high && top !== Infinity) {
      said.push(`Ratings of 0 to ${top} were brought to ${low} to ${high}.`);
    }
    if (account.rounded) said.push(`${account.rounded} rounded to a step of this scale.`);
    if (account.leftOut) said.push(`${account.leftOut} left out: no clear opinion given.`);
    if (account.twice) said.push(`${account.twice} came more than once: one of each counts.`);
    if (before) said.push(`${before} had been in your list: the file’s opinion counts.`);
    const order = account.timed ? "their dates" : "the file";
    if (this.manifest.recipe.sequence) said.push(`The model reads them in the order of ${order}.`);
    else if (timed) said.push("They have dates: where the model looks at that, recent ones count more.");
    if (several.length) {
      said.push(`${several.length} left out, as several titles here have that name (${listed(several.slice(0, NAMED))})`
        + ": choose them by searching.");
    }
    const some = missing.length > NAMED ? ", such as" : "";
    if (missing.length) said.push(`${missing.length} not found in this catalogue${some}:`);
    return said;
  }

  #report(name, sentences, missing) {
    const names = missing.slice(0, NAMED).map((title) => {
      const [near] = this.catalogue.closest(title);
      const short = title.length > 60 ? `${title.slice(0, 60)}…` : title;
      const closest = near === undefined ? "" : ` (closest: ${this.catalogue.full(near)})`;
      return el("li", {}, short, el("span", { class: "near" }, closest));
    });
    const close = iconButton("remove", "Close this note", { class: "quiet" });
    close.addEventListener("click", () => {
      $("import-note").hidden = true;
      $("import").focus();
    });
    $("import-note").replaceChildren(el("h3", { id: "import-title" }, `From ${name}`), close,
      ...sentences.map((text) => el("p", {}, text)), ...(names.length ? [el("ul", {}, ...names)] : []));
    $("import-note").hidden = false;
    $("import-note").focus({ preventScroll: true });
    this.say(`From ${name}: ${sentences.join(" ")} ${listed(missing.slice(0, NAMED))}`);
  }
}
