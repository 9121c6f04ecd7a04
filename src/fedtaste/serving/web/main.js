// The controller of the page: sends what a person picks to the worker and shows what the worker answers.

import { Catalogue } from "./catalogue.js";
import { $, counted, el, steps } from "./dom.js";
import { Engine, forbidRequests, keepOffline } from "./engine.js";
import { Ledger, describe } from "./ledger.js";
import { MapView } from "./map.js";
import { Mine } from "./mine.js";
import { Recommendations } from "./recommendations.js";
import { Search } from "./search.js";
import { Similar } from "./similar.js";
import { forget, keep, recall } from "./store.js";

const SHOWN = 20;
const root = document.documentElement;
const DIAL = [
  [-0.85, "the best known first"], [-0.45, "leaning to what is popular"], [-0.05, "a little towards the popular"],
  [0.05, "your taste as it is"], [0.45, "a little off the beaten track"], [0.85, "leaning to the little known"],
  [Infinity, "far off the beaten track"],
];

class Page {
  constructor(manifest, catalogue, places, ledger) {
    Object.assign(this, { manifest, catalogue, ledger });
    this.ranking = manifest.task === "ranking";
    this.picks = new Map(); // in the order in which they were made
    this.hidden = new Set();
    this.timed = false;
    this.said = "";
    const say = (text) => this.#say(text);
    const state = (item) => this.#state(item);
    const pick = (item, value) => this.#pick(item, value, true);
    this.similar = new Similar(catalogue, {
      say, state, ask: (item, n) => this.engine?.askSimilar(item, n),
      toggle: (item) => (this.picks.has(item) ? this.#set(item, undefined) : pick(item, this.ranking ? 1 : null)),
    });
    this.mine = new Mine(catalogue, manifest, {
      say, similar: this.similar, act: (item, value) => this.#set(item, value), take: (picks, timed, name) => this.#take(picks, timed, name),
    });
    this.map = new MapView(catalogue, places, {
      state, say, act: this.ranking ? "like" : "rate", pick: (item) => pick(item, this.ranking ? 1 : null),
    });
    this.search = new Search(catalogue, manifest, { pick, state, say });
    this.recommendations = new Recommendations(catalogue, manifest, {
      similar: this.similar,
      point: (item) => this.map.point(item),
      act: (item, what, value, keyboard) => (what === "hide" ? this.#hide(item) : this.#pick(item, value, keyboard)),
    });
    $("filter").hidden = !catalogue.genreNames.length;
    $("genre").append(...catalogue.genreNames.map((_, genre) => el("option", { value: genre }, catalogue.genre(genre))));
    this.#listen();
    this.#restore();
    this.#turnDial();
    this.mine.show(this.picks);
    this.map.mark(this.picks, [], null);
  }

  #listen() {
    $("skip").addEventListener("click", (event) => {
      event.preventDefault();
      $("search").focus();
    });
    $("adventurous").addEventListener("input", () => {
      this.#turnDial();
      this.#remember();
      this.#ask(false);
    });
    $("genre").addEventListener("change", () => this.#ask(true));
    $("undo").querySelector("button").addEventListener("click", () => this.#undo());
    $("hidden-note").querySelector("button").addEventListener("click", () => {
      this.hidden.clear();
      this.#changed("Hidden titles are shown again.");
      $("search").focus();
    });
    $("export").addEventListener("click", () => this.mine.save(this.picks));
    $("clear").addEventListener("click", () => this.#clear());
    $("remember").addEventListener("change", () => this.#remember(true));
    const recolour = () => this.map.recolour();
    $("theme").addEventListener("change", recolour);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  }

  #state(item) {
    const pick = this.picks.get(item);
    if (!pick) return "";
    if (this.ranking) return pick.value ? "liked" : "disliked";
    return pick.value === null ? "in your list" : `${counted(pick.value, "star")} from you`;
  }

  /** A pick from outside the list; the focus moves to it if it needs stars, or got them by keyboard. */
  #pick(item, value, keyboard) {
    if (value === null && this.picks.has(item)) return this.mine.focus(item);
    this.#set(item, value);
    if (!this.ranking && (keyboard || value === null)) this.mine.focus(item);
    return undefined;
  }

  /** Sets the value of an item, or with `undefined` takes it out. */
  #set(item, value) {
    const name = this.catalogue.full(item);
    if (value === undefined) {
      this.#mayUndo(`Removed ${name}.`);
      this.picks.delete(item);
      return this.#changed(`Removed ${name}.`);
    }
    this.#mayUndo(null);
    const before = this.picks.get(item), time = before?.time ?? null;
    if (this.manifest.recipe.sequence && before?.value === 0) this.picks.delete(item); // its like is new
    this.picks.set(item, { value, time });
    const text = value === null ? "choose its stars" : this.#state(item);
    return this.#changed(`${name}: ${text}.`, value !== null);
  }

  #hide(item) {
    this.#mayUndo(`Hid ${this.catalogue.full(item)}.`);
    this.hidden.add(item);
    this.#changed(`Hid ${this.catalogue.full(item)}.`);
  }

  /** Adds a list from a file; returns how many titles were there before, and whether dates count now. */
  #take(picks, timed, name) {
    this.#mayUndo(`Imported ${name}.`);
    this.timed = timed && (this.timed || !this.picks.size);
    let before = 0;
    for (const [item, pick] of picks) {
      if (this.picks.delete(item)) before += 1;
      this.picks.set(item, pick);
    }
    this.#changed("");
    return { before, timed: this.timed };
  }

  #clear() {
    this.#mayUndo("Cleared everything.");
    this.picks.clear();
    this.hidden.clear();
    this.timed = false;
    $("adventurous").value = 0;
    $("genre").value = "";
    this.#turnDial();
    forget();
    $("remember").checked = false;
    $("remember-note").hidden = true;
    $("import-note").hidden = true;
    this.#changed("Cleared everything. Nothing is remembered on this device.");
    $("undo").querySelector("button").focus();
  }

  /** Stores the present state for Undo; with null there is nothing to undo. */
  #mayUndo(text) {
    this.before = text && { picks: new Map(this.picks), hidden: new Set(this.hidden), timed: this.timed,
      dial: $("adventurous").value, genre: $("genre").value, remember: $("remember").checked };
    $("undo").hidden = !text;
    $("undo").querySelector("span").textContent = text ?? "";
  }

  #undo() {
    const { picks, hidden, timed, dial, genre, remember } = this.before;
    Object.assign(this, { picks, hidden, timed });
    $("adventurous").value = dial;
    $("genre").value = genre;
    $("remember").checked = remember;
    $("import-note").hidden = true;
    this.#turnDial();
    this.#mayUndo(null);
    this.#changed("Undone.");
    $("search").focus();
  }

  #changed(text, counts = true) {
    if (!this.picks.size) this.timed = false;
    this.mine.show(this.picks);
    this.similar.update();
    $("clear").disabled = !this.picks.size && !this.hidden.size;
    $("hidden-note").hidden = !this.hidden.size;
    $("hidden-note").querySelector("span").textContent = `${counted(this.hidden.size, "title")} hidden.`;
    this.#remember();
    if (counts) this.#ask(true, text);
    else this.#say(text);
  }

  #turnDial() {
    const dial = $("adventurous");
    const value = Number(dial.value);
    const text = DIAL.find(([below]) => value < below)[1];
    const idle = `from your first ${this.ranking ? "like" : "rating"} on`;
    $("adventurous-text").textContent = this.idle ? idle : text;
    dial.setAttribute("aria-valuetext", text);
    dial.style.setProperty("--at", `${50 + 50 * value}%`);
  }

  #ask(fresh, text = "") {
    if (text) this.said = text;
    const entries = [...this.picks].filter(([, { value }]) => value !== null);
    const likes = entries.filter(([, { value }]) => !this.ranking || value === 1);
    this.engine?.ask({
      likes: likes.map(([item, { value }]) => ({ item, value })),
      dislikes: this.ranking ? entries.filter(([, { value }]) => value === 0).map(([item]) => item) : [],
      timed: this.timed,
      adventurous: Number($("adventurous").value),
      genres: $("genre").value === "" ? [] : [Number($("genre").value)],
      n: SHOWN + this.hidden.size,
    }, fresh);
  }

  /** Called when the worker is ready: asks the first question. */
  begin(engine) {
    this.engine = engine;
    this.#ask(true);
  }

  #basis(popular) {
    const order = this.manifest.recipe.sequence ? " Its order counts: the newest pick is on top." : "";
    if (!popular) return `Worked out from your list, and from nothing else.${order}`;
    const values = [...this.picks.values()].map(({ value }) => value).filter((value) => value !== null);
    if (values.some((value) => value > 0)) return "There is too little to go by: simply what most people take.";
    if (values.length) return "Simply what most people take, without what you dislike. Like something.";
    const verb = this.ranking ? "Like" : "Rate";
    return `Nothing is known of you yet, so this is simply what most people take. ${verb} something.`;
  }

  show(answer, { adventurous, genres }) {
    const items = answer.items.filter(({ item }) => !this.hidden.has(item)).slice(0, SHOWN);
    this.recommendations.show(answer, items, { adventurous, filtered: genres.length > 0 });
    this.map.mark(this.picks, items.map(({ item }) => item), answer.you);
    const title = answer.popular ? "A start: what most people take" : "For you";
    $("rec-title").textContent = items.length ? title : "Nothing is left";
    $("basis").textContent = items.length ? this.#basis(answer.popular) : "";
    this.idle = answer.popular;
    root.querySelector(".dial").classList.toggle("idle", answer.popular);
    this.#turnDial();
    Object.assign(root.dataset, { state: "ready", generation: answer.id, ms: answer.ms.toFixed(2) });
    this.ledger.say("speed", `The last update took ${answer.ms.toFixed(1)} ms.`);
    const first = items.length ? `first: ${this.catalogue.full(items[0].item)}` : "nothing is left";
    this.#say(`${this.said} ${counted(items.length, "recommendation")}; ${first}`.trim());
    this.said = "";
  }

  #say(text) {
    $("status").textContent = text;
  }

  #restore() {
    const memory = recall();
    if (!Array.isArray(memory?.picks) || !Array.isArray(memory.hidden) || memory.task !== this.manifest.task) return;
    const { byName, titles } = this.catalogue;
    const allowed = this.ranking ? [0, 1] : [null, ...steps(this.manifest)];
    const known = (entry) => Array.isArray(entry) && byName.has(entry[0]) && titles[byName.get(entry[0])] === entry[1];
    const picks = memory.picks.filter((entry) => known(entry) && allowed.includes(entry[2]));
    const when = (time) => (Number.isFinite(time) ? time : null);
    this.picks = new Map(picks.map(([name, , value, time]) => [byName.get(name), { value, time: when(time) }]));
    this.hidden = new Set(memory.hidden.filter(known).map(([name]) => byName.get(name)));
    this.timed = memory.timed === true;
    $("adventurous").value = memory.adventurous;
    $("remember").checked = true;
    this.#changed("");
  }

  /** Stores the list on this device if that is switched on; tells the person when the browser denies it. */
  #remember(asked = false) {
    const wanted = $("remember").checked;
    const { names, titles } = this.catalogue;
    const kept = wanted && keep({
      task: this.manifest.task, // with the titles: a list is not for another model at the same address
      picks: [...this.picks].map(([item, { value, time }]) => [names[item], titles[item], value, time]),
      hidden: [...this.hidden].map((item) => [names[item], titles[item]]),
      timed: this.timed,
      adventurous: Number($("adventurous").value),
    });
    if (asked && !wanted) forget();
    if (wanted && !kept) $("remember").checked = false;
    if (!asked && !(wanted && !kept)) return;
    $("remember-note").hidden = false;
    $("remember-note").textContent = kept ? "Your list is kept in this browser, and nowhere else."
      : wanted ? "This browser does not let the page keep anything. All else works; export your list to keep it."
        : "Nothing is kept: what was remembered is removed.";
    this.#say($("remember-note").textContent);
  }
}

function offlineText(why) {
  return why ? `Without a network it will not open next time: ${why}.`
    : "A copy is on this device, made by asking for the same files once more: it opens without a network.";
}

/** Called by boot.js with all parts, checked. `fail(headline, text)` shows a problem instead of the page. */
export async function start(manifest, files, fail) {
  const text = (name) => new TextDecoder().decode(files[name]);
  const catalogue = new Catalogue(JSON.parse(text("items.json")), new Uint8Array(files["popularity.u8"]));
  const ledger = new Ledger([".", "index.html", "manifest.json", "sw.js", ...Object.keys(manifest.files)]);
  describe(manifest);
  root.dataset.task = manifest.task;
  const page = new Page(manifest, catalogue, new Int16Array(files["map.i16"].slice(0)), ledger);
  $("loading").hidden = true;
  for (const id of ["app", "theme", "skip"]) $(id).hidden = false;
  const { "worker.js": source, ...tables } = files;
  ledger.say("how", `For this page every title is ${counted(manifest.k, "number")}. From your list, this device works `
    + "out the numbers that stand for your taste, anew at each change, and keeps them nowhere.");
  await keepOffline((why) => ledger.say("offline", offlineText(why)));
  forbidRequests(text("icon.svg"));
  ledger.shut();
  ledger.say("policy", "The browser now refuses whatever this page, and the worker that computes, would load or "
    + "send. No browser can forbid a page to open another one; this page has no link and never does.", "out-facts");
  const engine = new Engine(source, { manifest, files: tables }, {
    ready({ cases }) {
      const times = counted(cases, "case");
      ledger.say("checked", `Checked just now: its arithmetic agrees with the publisher’s, in ${times}.`);
      page.begin(engine);
    },
    ranked: (answer, question) => page.show(answer, question),
    similar: (answer) => page.similar.show(answer),
    failed({ reason }) {
      fail("The computation does not work in this browser", `${reason} Nothing left this device. `
        + "Reload the page; if this comes again, tell whoever publishes it.");
    },
  });
}
